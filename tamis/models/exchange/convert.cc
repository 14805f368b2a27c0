#include "tamis/models/exchange/convert.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/storage_error.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/exchange/rotary_layout.h"
#include "tamis/models/manifest.h"
#include "tamis/models/model.h"
#include "tamis/models/stored_config.h"
#include "tamis/models/stored_tensors.h"
#include "tamis/nn/safetensors_set.h"

namespace tamis::models::exchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kGeneration = "generation_config.json";
/// Files next to a model that do not depend on its format.
const std::array<const char*, 10> kCopied = {kTokenizer,
                                             kGeneration,
                                             "tokenizer_config.json",
                                             "special_tokens_map.json",
                                             "added_tokens.json",
                                             "tokenizer.model",
                                             "vocab.json",
                                             "merges.txt",
                                             "vocab.txt",
                                             "chat_template.jinja"};

/// The directory of a model in any format: a checkpoint, a run's newest, or what another program wrote.
fs::path model_directory(const fs::path& path) {
  if (fs::is_regular_file(path / "config.json") && nn::has_tensors(path)) return path;
  if (fs::is_directory(path / "checkpoints")) return resolve_checkpoint(path);
  if (!fs::is_directory(path)) fail(ExitCode::kInput, "{}: expected the directory of a model", path.string());
  fail(ExitCode::kInput,
       "{}: expected config.json and model.safetensors or its index; python/tamis/pickle_to_safetensors.py turns a .pt "
       "file into safetensors",
       path.string());
}

template <typename Tensors>
std::vector<LazyTensor> lazy_tensors(const std::shared_ptr<const Tensors>& file, const fs::path& directory) {
  std::vector<LazyTensor> result;
  for (const std::string& name : file->names()) {
    const auto make = [file, name, where = directory.string()] {
      const at::Tensor tensor = file->tensor(name);
      if (!all_finite(tensor)) {
        fail(ExitCode::kInput, "{}: {} holds numbers that are not finite; expected a model that has not diverged",
             where, quoted_name(name));
      }
      return tensor;
    };
    const auto shape = file->shape(name);
    result.push_back({name, file->dtype(name), Shape(shape.begin(), shape.end()), make});
  }
  return result;
}

struct Opened {
  fs::path directory;
  std::string where;  // of the tensors
  Source source;
  std::shared_ptr<const nn::SafetensorsSet> file;

  TensorTable table() const { return {where, lazy_tensors(file, directory)}; }
};

Opened open(const fs::path& path) {
  Opened opened{.directory = model_directory(path), .where = {}, .source = {}, .file = nullptr};
  check_manifest(opened.directory);
  const fs::path config = opened.directory / "config.json";
  opened.source = {config.string(), read_json(config, /*most_levels=*/8)};
  if (!opened.source.config.is_object()) {
    fail(ExitCode::kInput, "{}: expected an object, but got {}", config.string(), shown(opened.source.config));
  }
  opened.file = std::make_shared<nn::SafetensorsSet>(opened.directory);
  opened.where = opened.directory.string() + ": " + opened.file->name();
  return opened;
}

const Format& format_of(const Opened& opened, const TensorTable& tensors, const std::string& name) {
  if (!name.empty()) return find_format(name);
  std::string known;
  for (const Format* format : formats()) {
    if (format->recognises(opened.source.config, tensors)) return *format;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", format->name(), format->description());
  }
  fail(ExitCode::kInput, "{}: model_type {} and its tensors are of no known format; known: {}; --from names one",
       opened.source.where, shown(opened.source.config.value("model_type", json())), known);
}

/// Errors of a configuration are usage errors in a recipe; here the file is damaged or of something else.
template <typename Action>
auto as_input_errors(const std::string& where, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInput) throw;
    fail(ExitCode::kInput, "{}: {}", where, error.what());
  }
}

/// The dtype of most numbers, as config.json names it.
std::string main_dtype(const std::vector<LazyTensor>& tensors) {
  const LazyTensor& largest = *std::ranges::max_element(tensors, {}, &LazyTensor::bytes);
  if (largest.dtype == at::kBFloat16) return "bfloat16";
  return largest.dtype == at::kHalf ? "float16" : "float32";
}

/// The special tokens of config.json, and those that only generation_config.json has. What a checkpoint could not say
/// (stored_config.h) is refused, a dtype too.
json special_tokens_of(const Opened& opened, const ModelConfig& config) {
  json tokens = special_tokens(opened.source.config);
  json checked = tokens;
  for (const char* key : {"dtype", "torch_dtype"}) checked[key] = opened.source.config.value(key, json());
  as_input_errors(opened.source.where, [&] { check_foreign_keys(checked, config); });

  const fs::path generation = opened.directory / kGeneration;
  if (!fs::is_regular_file(generation)) return tokens;
  const json settings = read_json(generation, /*most_levels=*/8);
  if (!settings.is_object()) return tokens;
  json more = special_tokens(settings);
  for (const auto& token : tokens.items()) more.erase(token.key());
  as_input_errors(generation.string(), [&] { check_foreign_keys(more, config); });
  tokens.update(more);
  return tokens;
}

void check_options(const FormatOptions& options, const Format& from, const Format& to) {
  if (options.wrap_positions && !from.may_wrap_positions()) {
    fail(ExitCode::kUsage, "--wrap-positions: models of the format {} have no positions that wrap", from.name());
  }
  if (options.rotary_layout.empty()) return;
  is_interleaved(options);  // an unknown name is the first error
  if (from.has_rotary_layouts() != to.has_rotary_layouts()) return;
  if (to.has_rotary_layouts()) {
    fail(ExitCode::kUsage, "--rotary-layout: from {} to {} it could be that of either; convert to {} in between",
         from.name(), to.name(), tamis_format().name());
  }
  fail(ExitCode::kUsage, "--rotary-layout: models of the formats {} and {} have no other layout; leave it out",
       from.name(), to.name());
}

/// Reports what has been written.
std::vector<LazyTensor> with_progress(std::vector<LazyTensor> tensors, int64_t total, const Progress& progress) {
  if (!progress) return tensors;
  const auto done = std::make_shared<double>(0);
  for (LazyTensor& tensor : tensors) {
    tensor.make = [=, make = tensor.make, bytes = tensor.bytes()] {
      at::Tensor made = make();
      progress(*done += static_cast<double>(bytes), static_cast<double>(total));
      return made;
    };
  }
  return tensors;
}

}  // namespace

Converted convert(const fs::path& source, const fs::path& target, const ConvertOptions& options,
                  const Progress& progress) {
  const Format& to = find_format(options.to);
  if (fs::exists(fs::symlink_status(target))) {
    fail(ExitCode::kUsage, "{}: exists; name a directory that does not", target.string());
  }
  const Opened opened = open(source);
  TensorTable tensors = opened.table();
  const Format& from = format_of(opened, tensors, options.from);
  check_options(options.format, from, to);
  Converted result{.from = from.name(), .to = to.name(), .copied = {}, .notes = {}};

  const ModelConfig config = as_input_errors(opened.source.where, [&] {
    return read_model_config(complete_config(from.import_config(opened.source, tensors, options.format)));
  });
  const json tokens = special_tokens_of(opened, config);
  if (&from == &tamis_format()) {  // under today's names
    tensors = TensorTable(
        opened.where,
        lazy_tensors(std::make_shared<const StoredTensors>(opened.directory, to_json(config)), opened.directory));
  }
  TensorTable own(opened.where, from.import_tensors(opened.source, tensors, config, options.format));
  tensors.refuse_others();
  json written_config = to.export_config(config, options.format);
  std::vector<LazyTensor> written = to.export_tensors(own, config, options.format);
  own.refuse_others();

  for (const LazyTensor& tensor : written) {
    result.bytes += tensor.bytes();
    result.parameters += tensor.bytes() / static_cast<int64_t>(c10::elementSize(tensor.dtype));
  }
  result.tensors = std::ssize(written);
  written = with_progress(std::move(written), result.bytes, progress);
  written_config["torch_dtype"] = main_dtype(written);
  written_config.update(tokens);

  write_directory_atomic(target, [&](const fs::path& place) {
    write_config(place, written_config);
    nn::write_safetensors_set(place, written, options.shard_bytes);
    for (const char* name : kCopied) {
      if (!fs::is_regular_file(opened.directory / name)) continue;
      std::error_code error;
      if (!fs::copy_file(opened.directory / name, place / name, error)) {
        errno = error.value();
        fail_storage(place / name, "cannot write");
      }
      result.copied.push_back(name);
    }
  });
  if (std::ranges::find(result.copied, kTokenizer) == result.copied.end()) {
    result.notes.push_back(
        fmt::format("{} has no {}: texts need one, token ids do not", opened.directory.string(), kTokenizer));
  }
  return result;
}

}  // namespace tamis::models::exchange

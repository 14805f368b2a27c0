#include "tamis/models/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_set>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/models/manifest.h"
#include "tamis/models/model_config.h"
#include "tamis/models/stored_config.h"
#include "tamis/models/stored_tensors.h"
#include "tamis/nn/safetensors_set.h"

namespace tamis::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kCheckpoints = "checkpoints";
constexpr std::string_view kStep = "step-";

std::vector<at::Tensor> tensors_of(const Model& model) {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : model.parameters()) result.push_back(parameter.tensor.detach());
  return result;
}

bool fits(at::IntArrayRef stored, at::IntArrayRef expected) {
  const bool scalar = expected.empty() && stored == at::IntArrayRef{1};  // some frameworks have no 0-d parameters
  return stored == expected || scalar;
}

/// Exactly the expected tensors, or at most these, in their shapes; nothing is read or allocated yet.
void check_tensors(const fs::path& directory, const StoredTensors& file, const std::vector<nn::NamedTensor>& expected,
                   bool all = true) {
  for (const auto& [name, tensor] : expected) {
    if (!file.contains(name)) {
      if (!all) continue;
      fail(ExitCode::kInput, "{}: {} has no tensor \"{}\", which config.json requires", directory.string(),
           file.file_name(), name);
    }
    if (!fits(file.shape(name), tensor.sizes())) {
      fail(ExitCode::kInput, "{}: {} is {} but config.json makes it {}; was it trained with another recipe?",
           directory.string(), name, c10::str(at::IntArrayRef(file.shape(name))), c10::str(tensor.sizes()));
    }
    if (!at::isFloatingType(file.dtype(name))) {
      fail(ExitCode::kInput, "{}: {} must be F32, F16 or BF16, but is {}", directory.string(), name,
           c10::toString(file.dtype(name)));
    }
  }
  std::unordered_set<std::string_view> known;
  for (const nn::NamedTensor& named : expected) known.insert(named.name);
  for (const std::string& name : file.names()) {
    if (known.contains(name)) continue;
    fail(ExitCode::kInput, "{}: {} holds {}, which is not a tensor of the model in config.json", directory.string(),
         file.file_name(), quoted_name(name));
  }
}

void fill(const fs::path& directory, const StoredTensors& file, const std::string& name, const at::Tensor& tensor) {
  tensor.copy_(file.tensor(name).view(tensor.sizes()));
  if (all_finite(tensor)) return;
  fail(ExitCode::kInput, "{}: {} holds numbers that are not finite; expected a model that has not diverged",
       directory.string(), name);
}

/// The configuration with what --set-model says. Throws ExitCode::kUsage where the trained tensors would not fit.
nlohmann::json changed(const nlohmann::json& config, const nlohmann::json& changes) {
  nlohmann::json result = config;
  result.update(changes);
  result = complete_config(result);
  for (const auto& change : changes.items()) {
    if (result.contains(change.key()) || config.contains(change.key()) || change.value().is_null()) continue;
    fail(ExitCode::kUsage, "--set-model: {} would change nothing in this model", quoted_name(change.key()));
  }
  const std::vector<nn::NamedTensor> trained = checkpoint_shapes(config), wanted = checkpoint_shapes(result);
  const auto same = [](const nn::NamedTensor& a, const nn::NamedTensor& b) {
    return a.name == b.name && a.tensor.sizes() == b.tensor.sizes();
  };
  if (std::equal(trained.begin(), trained.end(), wanted.begin(), wanted.end(), same)) return result;
  std::string keys;
  for (const auto& change : changes.items()) keys += (keys.empty() ? "" : ", ") + quoted_name(change.key());
  fail(ExitCode::kUsage, "--set-model: with this {} the model would have other tensors than those that were trained",
       keys);
}

bool is_checkpoint(const fs::path& path) {
  return fs::is_regular_file(path / kConfig) && nn::has_tensors(path);
}

std::optional<fs::path> newest_checkpoint(const fs::path& checkpoints) {
  std::optional<fs::path> newest;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(checkpoints, none)) {
    const auto step = step_of(entry.path());
    if (!step || !fs::is_directory(entry.path())) continue;
    if (!newest || *step > *step_of(*newest)) newest = entry.path();
  }
  return newest;
}

/// The file that a directory lacks to be a checkpoint.
std::string missing_file(const fs::path& checkpoint) {
  if (!fs::is_regular_file(checkpoint / kConfig)) return kConfig;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(checkpoint, none)) {
    if (entry.path().filename().string().starts_with("model-")) return nn::kTensorIndex;  // there are shards
  }
  return nn::kTensorFile;
}

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto [least, greatest] = at::aminmax(tensor);
  return std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>());
}

std::vector<nn::NamedTensor> checkpoint_shapes(const nlohmann::json& complete_config) {
  const auto model = make_model(complete_config, Start{.seed = std::nullopt, .device = at::kMeta});
  return model->checkpoint_tensors(tensors_of(*model));
}

void save_model(const Model& model, const fs::path& directory, const nlohmann::json& special_tokens) {
  write_config(directory, to_stored_config(model.config(), special_tokens));
  nn::write_safetensors(directory / nn::kTensorFile, model.checkpoint_tensors(tensors_of(model)), nn::kTensorMetadata);
}

void write_config(const fs::path& directory, const nlohmann::json& stored_config) {
  write_file(directory / kConfig, stored_config.dump(2) + "\n");
}

nlohmann::json read_config(const fs::path& directory) {
  const fs::path path = directory / kConfig;
  const nlohmann::json json = read_json(path, /*most_levels=*/8);
  try {
    return complete_stored_config(json);
  } catch (const Error& error) {  // what is a usage error in a recipe is a damaged file here
    fail(ExitCode::kInput, "{}: {}", path.string(), error.what());
  }
}

nlohmann::json read_changes(std::span<const std::string> assignments) {
  nlohmann::json changes = nlohmann::json::object();
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    if (equals == 0 || equals == std::string::npos) {
      fail(ExitCode::kUsage, "--set-model: expected KEY=VALUE, but got {}", quoted_name(assignment));
    }
    const std::string value = assignment.substr(equals + 1);
    const nlohmann::json parsed = try_parse_json(value);
    changes[assignment.substr(0, equals)] = parsed.is_discarded() ? nlohmann::json(value) : parsed;
  }
  return changes;
}

std::unique_ptr<Model> load_model(const fs::path& directory, const nlohmann::json& changes) {
  nlohmann::json config = read_config(directory);
  if (!changes.empty()) {
    static const std::vector<std::string> kSizes = {"model_type",          "vocab_size",        "hidden_size",
                                                    "num_hidden_layers",   "key_dim",           "value_dim",
                                                    "num_attention_heads", "intermediate_size", "psi"};
    for (const std::string& size : kSizes) {
      if (!changes.contains(size)) continue;
      fail(ExitCode::kUsage, "--set-model: \"{}\" is what the model was trained with and cannot be changed", size);
    }
    config = changed(config, changes);
  }
  const StoredTensors file(directory, config);
  check_tensors(directory, file, checkpoint_shapes(config));

  auto model = make_model(config, Start{});
  for (const auto& [name, tensor] : model->checkpoint_tensors(tensors_of(*model))) fill(directory, file, name, tensor);
  return model;
}

std::vector<std::string> copy_parameters(const Model& model, const fs::path& directory) {
  check_manifest(directory);
  const StoredTensors file(directory, model.config());
  const std::vector<nn::NamedTensor> tensors = model.checkpoint_tensors(tensors_of(model));
  check_tensors(directory, file, tensors, /*all=*/false);
  std::vector<std::string> kept;
  for (const auto& [name, tensor] : tensors) {
    if (file.contains(name)) {
      fill(directory, file, name, tensor);
    } else {
      kept.push_back(name);
    }
  }
  return kept;
}

std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kStep.size(), end, step);
  return error == std::errc() && rest == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::optional<fs::path> find_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) return path;
  auto newest = newest_checkpoint(path / kCheckpoints);
  while (newest && !is_checkpoint(*newest)) {
    const auto now = newest_checkpoint(path / kCheckpoints);
    if (now == newest) {
      fail(ExitCode::kInput, "{}: damaged: it has no file {}; restore it, or name another checkpoint", newest->string(),
           missing_file(*newest));
    }
    newest = now;  // training has removed an old one meanwhile
  }
  return newest;
}

fs::path resolve_checkpoint(const fs::path& path) {
  const std::string expected =
      "a checkpoint directory (config.json, model.safetensors) or a run with checkpoints/step-N";
  if (!fs::exists(path)) fail(ExitCode::kInput, "{}: does not exist; expected {}", path.string(), expected);
  if (!fs::is_directory(path)) fail(ExitCode::kInput, "{}: is a file; expected {}", path.string(), expected);
  if (const auto found = find_checkpoint(path)) return *found;
  fail(ExitCode::kInput, "{}: holds no checkpoint; expected {}", path.string(), expected);
}

}  // namespace tamis::models

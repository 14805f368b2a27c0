#include "tamis/train/training_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/object_reader.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/manifest.h"
#include "tamis/models/model_config.h"
#include "tamis/models/stored_config.h"
#include "tamis/models/stored_tensors.h"
#include "tamis/nn/safetensors_set.h"
#include "tamis/train/optimizer_shards.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/toml.h"
#include "tamis/train/weight_shards.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kMostTrainedTokens = 1e18;
constexpr double kMostSeconds = 1e12;

/// Both moments of every checkpoint tensor, with prefixed names; views of the given tensors.
std::vector<nn::NamedTensor> moment_tensors(const models::Model& model, std::span<const at::Tensor> first_moments,
                                            std::span<const at::Tensor> second_moments) {
  std::vector<nn::NamedTensor> tensors;
  for (const auto& [prefix, moments] :
       {std::pair("exp_avg.", first_moments), std::pair("exp_avg_sq.", second_moments)}) {
    for (const auto& [name, tensor] : model.checkpoint_tensors(moments)) tensors.push_back({prefix + name, tensor});
  }
  return tensors;
}

/// The contents without tensors.
CheckpointContents contents_in_shards(const models::Model& model, const text::Tokenizer& tokenizer,
                                      const TrainingState& state) {
  return {.config = model.config(),
          .model = {},
          .moments = {},
          .tokenizer = tokenizer.to_json(),
          .end_of_text = tokenizer.end_of_text(),
          .state = state};
}

/// The contents with every tensor replaced by `of` of it.
template <typename Function>
CheckpointContents contents_of(const models::Model& model, const AdamW& optimizer, const text::Tokenizer& tokenizer,
                               const TrainingState& state, const Function& of) {
  const auto all = [&](const auto& tensors) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors) result.push_back(of(tensor));
    return result;
  };
  std::vector<at::Tensor> parameters;
  for (const models::Parameter& parameter : model.parameters()) parameters.push_back(of(parameter.tensor.detach()));
  CheckpointContents contents = contents_in_shards(model, tokenizer, state);
  contents.model = model.checkpoint_tensors(parameters);
  contents.moments = moment_tensors(model, all(optimizer.first_moments()), all(optimizer.second_moments()));
  return contents;
}

json state_to_json(const TrainingState& state) {
  json result = {{"step", state.step},     {"tokens", state.tokens},     {"seconds", state.seconds},
                 {"recipe", state.recipe}, {"numerics", state.numerics}, {"data", state.checksums}};
  if (const NonFiniteSteps& non_finite = state.non_finite; !non_finite.steps.empty()) {
    json left_out = json::array();
    for (const auto& [first, last] : non_finite.left_out) left_out.push_back({first, last});
    result["non_finite"] = {{"steps", non_finite.steps}, {"left_out", left_out}};
  }
  if (const LossScale& scale = state.loss_scale; scale != LossScale()) {
    result["loss_scale"] = {{"value", scale.value}, {"good_steps", scale.good_steps}};
  }
  return result;
}

/// Typed access to trainer.json; every key except "numerics" is required. Failures throw ExitCode::kInput.
class StateReader : public ObjectReader {
 public:
  StateReader(const json& state, std::string file) : ObjectReader(state), file_(std::move(file)) {
    check_object(file_);
  }

  int64_t count(const char* key, double most) const {
    int64_t value = 0;
    read(key, at(key), value, {.least = 0, .most = most});
    return value;
  }

  double seconds() const {
    double value = 0;
    read("seconds", at("seconds"), value, {.least = 0, .most = kMostSeconds});
    return value;
  }

  std::map<std::string, std::string> texts(const char* key) const {
    const json value = at(key);
    std::map<std::string, std::string> texts;
    if (!value.is_object()) refuse(key, "an object of texts", value);
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) refuse(key, "an object of texts", value);
      texts[name] = text.get<std::string>();
    }
    return texts;
  }

  /// Empty for checkpoints of earlier versions, which did not record it.
  json numerics() const {
    json value = object().value("numerics", json::object());
    if (value.is_object() && value.empty()) return value;
    bool texts = value.is_object() && value.value("matmul", json::object()).is_object();
    for (const json& each : texts ? value.flatten() : json()) texts = texts && each.is_string();
    if (!texts) refuse("numerics", "an object of texts", value);
    return value;
  }

  NonFiniteSteps non_finite() const {
    if (!object().contains("non_finite")) return {};
    const json value = at("non_finite");
    const json steps = value.is_object() ? value.value("steps", json()) : json();
    const json ranges = value.is_object() ? value.value("left_out", json()) : json();
    const auto numbers = [](const json& list) {
      return list.is_array() && std::ranges::all_of(list, [](const json& each) { return each.is_number_integer(); });
    };
    const auto pair = [&](const json& each) { return numbers(each) && each.size() == 2; };
    if (!numbers(steps) || !ranges.is_array() || !std::ranges::all_of(ranges, pair)) {
      refuse("non_finite", "the lists \"steps\" and \"left_out\"", value);
    }
    NonFiniteSteps result{.steps = steps.get<std::vector<int64_t>>()};
    for (const json& range : ranges) result.left_out.push_back({range[0], range[1]});
    return result;
  }

  LossScale loss_scale() const {
    if (!object().contains("loss_scale")) return {};
    const json value = at("loss_scale");
    const json factor = value.is_object() ? value.value("value", json()) : json();
    const json steps = value.is_object() ? value.value("good_steps", json()) : json();
    const bool valid = factor.is_number() && factor.get<double>() >= LossScale::kLeast && steps.is_number_integer() &&
                       steps.get<int64_t>() >= 0 && steps.get<int64_t>() < LossScale::kGoodSteps;
    if (!valid) refuse("loss_scale", "a \"value\" of at least 1 and a count of \"good_steps\"", value);
    return {.value = factor, .good_steps = steps};
  }

  /// Also checks that this version can create the model.
  json recipe() const {
    json value = at("recipe");
    if (!value.is_object() || !value.value("model", json()).is_object()) refuse("recipe", "a recipe", value);
    try {
      models::complete_stored_config(value["model"]);
    } catch (const Error& error) {
      fail(ExitCode::kInput, "{}: \"recipe\": {}", file_, error.what());
    }
    return value;
  }

 private:
  json at(const char* key) const { return object().value(key, json()); }

  std::string name_of(const std::string& key) const override { return fmt::format("{}: \"{}\"", file_, key); }
  std::string kind_of_choice(const std::string& key) const override { return key; }
  std::string kind_of_key() const override { return "key"; }
  Error error_at(const std::string&, const std::string& text) const override {
    return Error(ExitCode::kInput, text + "; restore the file, or begin a new run with --fresh");
  }

  const std::string file_;
};

/// A recipe that a run saved, perhaps by an earlier version.
Recipe read_stored_recipe(const TomlDocument& document) {
  Recipe recipe = read_recipe(document);
  keep_stored_defaults(recipe, document.values.value("model", json::object()));
  return recipe;
}

}  // namespace

CheckpointContents copy_for_checkpoint(const models::Model& model, const AdamW& optimizer,
                                       const text::Tokenizer& tokenizer, const TrainingState& state, bool in_shards) {
  if (in_shards) return contents_in_shards(model, tokenizer, state);
  const auto copied = [](const at::Tensor& tensor) { return at::empty_like(tensor, at::kCPU).copy_(tensor); };
  return contents_of(model, optimizer, tokenizer, state, copied);
}

void save_training_checkpoint(const fs::path& directory, const CheckpointContents& contents,
                              const AddFiles& add_files) {
  write_directory_atomic(directory, [&](const fs::path& place) {
    models::write_config(place, models::to_stored_config(contents.config, {{"eos_token_id", contents.end_of_text}}));
    if (!contents.model.empty()) {
      nn::write_safetensors(place / nn::kTensorFile, contents.model, nn::kTensorMetadata);
    }
    write_file(place / "tokenizer.json", contents.tokenizer);
    const json generation = {{"do_sample", false},
                             {"eos_token_id", contents.end_of_text < 0 ? json() : json(contents.end_of_text)}};
    write_file(place / "generation_config.json", generation.dump(2) + "\n");
    if (!contents.moments.empty()) nn::write_safetensors(place / "optimizer.safetensors", contents.moments);
    std::map<std::string, std::string> digests;
    if (add_files) digests = add_files(place);
    models::write_manifest(place, state_to_json(contents.state), digests);
  });
}

void save_training_checkpoint(const fs::path& directory, const models::Model& model, const AdamW& optimizer,
                              const text::Tokenizer& tokenizer, const TrainingState& state) {
  const auto same = [](const at::Tensor& tensor) { return tensor; };
  save_training_checkpoint(directory, contents_of(model, optimizer, tokenizer, state, same));
}

std::string find_damage(const fs::path& directory) {
  std::vector<std::string> files = {"config.json", "tokenizer.json", "generation_config.json"};
  try {
    const std::vector<fs::path> shards = optimizer_shards(directory);
    for (const fs::path& shard : shards) files.push_back(shard.filename().string());
    if (shards.empty()) files.push_back("optimizer.safetensors");
  } catch (const Error& error) {
    return error.what();
  }
  return models::find_damage(directory, files);
}

TrainingState read_training_state(const fs::path& directory) {
  const fs::path file = directory / models::kManifestFile;
  const json saved = read_json(file);
  const StateReader reader(saved, file.string());
  TrainingState state{.step = reader.count("step", kMostSteps),
                      .tokens = reader.count("tokens", kMostTrainedTokens),
                      .seconds = reader.seconds(),
                      .recipe = reader.recipe(),
                      .checksums = reader.texts("data"),
                      .numerics = reader.numerics(),
                      .non_finite = reader.non_finite(),
                      .loss_scale = reader.loss_scale()};
  if (const auto named = models::step_of(directory); named && *named != state.step) {
    fail(ExitCode::kInput, "{}: \"step\" is {}, but the checkpoint is called step-{}; is it a copy of another?",
         file.string(), state.step, *named);
  }
  return state;
}

Recipe load_run_recipe(const fs::path& run) {
  const fs::path config = run / "config.toml";
  if (fs::exists(config)) return read_stored_recipe(read_toml(config));
  const fs::path checkpoint = models::resolve_checkpoint(run);
  const TomlDocument document{.name = (checkpoint / models::kManifestFile).string(),
                              .values = read_training_state(checkpoint).recipe};
  try {
    return read_stored_recipe(document);
  } catch (const Error& error) {  // a usage error in a recipe, but a damaged file here
    throw Error(ExitCode::kInput, error.what());
  }
}

namespace {

std::vector<Piece> whole_pieces(const std::vector<models::Parameter>& parameters) {
  std::vector<Piece> pieces;
  for (size_t p = 0; p < parameters.size(); ++p) pieces.push_back({p, 0, parameters[p].tensor.numel()});
  return pieces;
}

/// Fills moments from optimizer.safetensors, in which one process has saved those of every tensor of the model.
void read_whole_moments(const fs::path& file_path, const models::Model& model, const std::string& prefix,
                        const MomentsOfPieces& into, bool all) {
  const models::StoredTensors file(file_path, model.config());
  const std::vector<at::Tensor> parameters = shapes_of(model);
  for (const auto& [name, tensor] : model.checkpoint_tensors(parameters)) {
    const std::string stored = prefix + "." + name;
    if (!all && !file.contains(stored)) continue;
    if (const std::vector<int64_t> shape = file.shape(stored); at::IntArrayRef(shape) != tensor.sizes()) {
      fail(ExitCode::kInput, "{}: {} has shape {}, but the model needs {}", file_path.string(), stored,
           fmt::format("[{}]", fmt::join(shape, ", ")), fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
    }
    const auto parameter = std::ranges::find_if(
        parameters, [&tensor = tensor](const at::Tensor& whole) { return whole.is_alias_of(tensor); });
    TAMIS_ASSERT(parameter != parameters.end() && tensor.is_contiguous());
    const int64_t begin = tensor.storage_offset();
    into.copy_from({static_cast<size_t>(parameter - parameters.begin()), begin, begin + tensor.numel()},
                   [&] { return file.tensor(stored).contiguous(); });
  }
}

}  // namespace

void restore_optimizer(const fs::path& directory, const models::Model& model, AdamW& optimizer, bool all,
                       const std::vector<Piece>* pieces) {
  const std::vector<models::Parameter> parameters = model.parameters();
  const std::vector<Piece> own = pieces ? *pieces : whole_pieces(parameters);
  const std::vector<fs::path> shards = optimizer_shards(directory);
  for (const auto& [prefix, moments] :
       {std::pair("exp_avg", optimizer.first_moments()), std::pair("exp_avg_sq", optimizer.second_moments())}) {
    const MomentsOfPieces into{own, moments};
    if (shards.empty()) {
      read_whole_moments(directory / "optimizer.safetensors", model, prefix, into, all);
    } else {
      read_shards(shards, prefix, parameters, into, all);
    }
  }
}

}  // namespace tamis::train

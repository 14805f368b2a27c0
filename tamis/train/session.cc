#include "tamis/train/session.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/version.h"
#include "tamis/models/checkpoint.h"
#include "tamis/train/machine.h"

namespace tamis::train {

using nlohmann::json;

Session::Session(Recipe recipe, at::Device device, std::function<void(const std::string&)> say,
                 distributed::ProcessMesh* mesh)
    : recipe_(std::move(recipe)), device_(device), say_(std::move(say)), mesh_(mesh) {
  loaded_.tokenizer = open_tokenizer(recipe_.data.tokenizer);
  data_ = open_data(recipe_, *loaded_.tokenizer);
  for (const std::string& note : data_.notes) say_(fmt::format("{}: {}", recipe_.run.dir, note));
  if (recipe_.train.epochs > 0) recipe_.train.steps = steps_of_epochs(data_, recipe_.train);
  if (mesh_) check_mesh();
  check_processes(recipe_.train, mesh_ ? mesh_->all().size() : 1);
}

namespace {

/// The first key in which the recipes of two processes differ; threads may.
std::string difference_between(const json& first, const json& other) {
  const json ours = other.flatten(), theirs = first.flatten();
  json all = theirs;
  all.update(ours);
  for (const auto& [path, ignored] : all.items()) {
    const json is = ours.value(path, json()), should = theirs.value(path, json());
    if (is == should || path == "/train/threads") continue;
    std::string key = path.substr(1);
    std::ranges::replace(key, '/', '.');
    return fmt::format("{} is {}, not {}", key, is.is_null() ? "absent" : shown(is),
                       should.is_null() ? "absent" : shown(should));
  }
  return "";
}

}  // namespace

void check_same_run(const std::vector<json>& all) {
  const json& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (const std::string difference = difference_between(first["recipe"], all[rank]["recipe"]); !difference.empty()) {
      fail(ExitCode::kUsage, "process {} has another recipe than process 0: {}; start all with the same command", rank,
           difference);
    }
    if (all[rank].value("device", "") != first.value("device", "")) {
      fail(ExitCode::kUsage,
           "process {} computes on another device than process 0: {} and {}; give all the same --device", rank,
           shown(all[rank]["device"]), shown(first["device"]));
    }
    if (all[rank]["data"] == first["data"]) continue;
    fail(ExitCode::kUsage, "process {} reads other data than process 0: {} and {}", rank, shown(all[rank]["data"]),
         shown(first["data"]));
  }
}

void Session::check_mesh() const {
  const json mine = {{"data", data_.checksums},
                     {"device", c10::DeviceTypeName(device_.type(), /*lower_case=*/true)},
                     {"recipe", to_json(recipe_)}};
  std::vector<json> all;
  for (const std::string& text : mesh_->all().gather(json_text(mine))) all.push_back(try_parse_json(text));
  check_same_run(all);
}

/// Processors may differ in what is fastest on them; results do not depend on which of them computes.
void Session::use_arithmetic_of_first_process() {
  recipe_.train.precision = mesh_->all().broadcast(recipe_.train.precision);
  const json numerics = try_parse_json(mesh_->all().broadcast(json_text(describe_numerics())));
  const std::vector<std::string> different =
      mesh_->all().gather(mesh_->all().rank() > 0 ? restore_numerics(numerics) : "");
  for (size_t rank = 1; rank < different.size(); ++rank) {
    if (different[rank].empty()) continue;
    say_(
        fmt::format("{}: process {} has other arithmetic than process 0, so results depend on the number of processes: "
                    "{}",
                    recipe_.run.dir, rank, different[rank]));
  }
}

void Session::begin() {
  if (recipe_.train.precision == "auto") recipe_.train.precision = fastest_precision(device_);
  if (mesh_) use_arithmetic_of_first_process();
  state_ = {};
  std::filesystem::path from;  // a run that is still training may have a newer checkpoint for each process that looks
  if (!recipe_.train.start_from.empty()) from = models::resolve_checkpoint(recipe_.train.start_from);
  if (mesh_) from = mesh_->all().broadcast(from.string());
  make_trainer(new_model(from));
  if (recipe_.train.start_state == "all" && !from.empty()) continue_from(from);
  complete_state();
}

namespace {

/// False when the checkpoint has another tokenizer.
bool may_be_tokenizer_of(const std::filesystem::path& checkpoint, const text::Tokenizer& tokenizer) {
  try {
    const auto known = find_tokenizer(checkpoint);
    return !known || known->digest() == tokenizer.digest();
  } catch (const Error&) {  // one that this build cannot read, unlike `tokenizer`
    return false;
  }
}

}  // namespace

std::unique_ptr<models::Model> Session::new_model(const std::filesystem::path& from) const {
  const TrainRecipe& train = recipe_.train;
  auto model = models::make_model(
      recipe_.model, models::Start{.seed = train.seed, .device = at::kCPU, .unit_deviation = train.unit_deviation});
  if (from.empty()) return model;
  const std::vector<std::string> kept = models::copy_parameters(*model, from);
  if (!may_be_tokenizer_of(from, tokenizer())) {
    say_(fmt::format("{}: warning: data.tokenizer = {} is not the tokenizer of {}, whose embeddings get other tokens",
                     recipe_.run.dir, shown(recipe_.data.tokenizer), from.string()));
  }
  say_(fmt::format("{}: starts from {}{}", recipe_.run.dir, from.string(),
                   kept.empty() ? "" : fmt::format("; new: {}", fmt::join(kept, ", "))));
  return model;
}

/// Takes over the moments and the position in the data from another run's checkpoint.
void Session::continue_from(const std::filesystem::path& checkpoint) {
  const TrainingState other = read_training_state(checkpoint);
  const auto batch_size = other.recipe.value(json::json_pointer("/train/batch_size"), int64_t{0});
  if (batch_size != recipe_.train.batch_size) {
    fail(ExitCode::kUsage,
         "train.start_state = \"all\" continues at the other run's position in the data, so train.batch_size must be "
         "{} as there, but is {}; choose start_state = \"weights\" to start at the beginning of the data",
         batch_size, recipe_.train.batch_size);
  }
  restore_optimizer(checkpoint, *loaded_.model, trainer_->optimizer(), /*all=*/false, trainer_->pieces());
  state_.step = other.step;
  state_.tokens = other.tokens;
  state_.loss_scale = other.loss_scale;
  trainer_->set_loss_scale(state_.loss_scale);
}

void Session::resume(const std::filesystem::path& checkpoint) {
  state_ = read_training_state(checkpoint);
  if (recipe_.train.precision == "auto") {
    recipe_.train.precision = state_.recipe.value(json::json_pointer("/train/precision"), std::string("float32"));
  }
  keep_stored_defaults(recipe_, state_.recipe.at("model"));
  const std::string difference = first_difference(state_.recipe, to_json(recipe_));
  if (!difference.empty()) {
    fail(ExitCode::kUsage, "{}: belongs to another recipe: {}; choose another run.dir, or start a new run with --fresh",
         recipe_.run.dir, difference);
  }
  for (const auto& [source, checksum] : data_.checksums) {
    if (state_.checksums[source] == checksum) continue;
    fail(ExitCode::kInput, "{}: the text of data.sources.{} has changed since this run started", recipe_.run.dir,
         source);
  }
  const std::string elsewhere = restore_numerics(state_.numerics);
  if (!elsewhere.empty()) {
    say_(fmt::format("{}: resumes with different arithmetic, so the bits of its results will differ: {}",
                     recipe_.run.dir, elsewhere));
  }
  if (mesh_) use_arithmetic_of_first_process();
  auto model = models::load_model(checkpoint);
  const std::string mismatch = first_difference({{"model", model->config()}}, {{"model", recipe_.model}});
  if (!mismatch.empty()) {
    fail(ExitCode::kInput, "{}: does not fit the recipe: {}", checkpoint.string(), mismatch);
  }
  make_trainer(std::move(model));
  restore_optimizer(checkpoint, *loaded_.model, trainer_->optimizer(), /*all=*/true, trainer_->pieces());
  trainer_->set_loss_scale(state_.loss_scale);
  complete_state();
}

void Session::make_trainer(std::unique_ptr<models::Model> model) {
  trainer_.reset();  // frees the previous model's memory first
  if (device_ != at::kCPU) models::move_to(*model, device_);
  loaded_.model = std::move(model);
  trainer_.emplace(recipe_, *loaded_.model, *data_.training, mesh_);
}

/// What the state records besides the progress.
void Session::complete_state() {
  state_.recipe = to_json(recipe_);
  state_.numerics = describe_numerics();
  state_.checksums = data_.checksums;
}

}  // namespace tamis::train

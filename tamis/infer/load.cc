#include "tamis/infer/load.h"

#include <ATen/ATen.h>

#include <utility>

#include "tamis/base/error.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/manifest.h"

namespace tamis::infer {
namespace {

/// Resolves the path to a checkpoint and verifies its files against its manifest.
std::filesystem::path intact_checkpoint(const std::filesystem::path& path) {
  std::filesystem::path checkpoint = models::resolve_checkpoint(path);
  models::check_manifest(checkpoint);
  return checkpoint;
}

std::unique_ptr<models::Model> read_model(const std::filesystem::path& checkpoint, at::Device device,
                                          const nlohmann::json& changes) {
  auto model = models::load_model(checkpoint, changes);
  if (device != at::kCPU) models::move_to(*model, device);
  return model;
}

}  // namespace

LoadedModel load(const std::filesystem::path& path, at::Device device, const nlohmann::json& changes) {
  LoadedModel loaded{.checkpoint = intact_checkpoint(path), .model = nullptr, .tokenizer = nullptr};
  const std::filesystem::path tokenizer = loaded.checkpoint / "tokenizer.json";
  if (!std::filesystem::exists(tokenizer)) {
    fail(ExitCode::kInput,
         "{}: has no tokenizer.json; copy the model's there, or give token ids, which need none: tamis score {} --ids "
         "FILE",
         loaded.checkpoint.string(), path.string());
  }
  loaded.tokenizer = text::load_tokenizer(tokenizer);
  loaded.model = read_model(loaded.checkpoint, device, changes);
  if (loaded.model->vocab_size() < loaded.tokenizer->vocab_size()) {
    fail(ExitCode::kInput,
         "{}: the model has a vocabulary of {}, but its {} tokenizer has {} tokens; expected at least as many",
         loaded.checkpoint.string(), loaded.model->vocab_size(), loaded.tokenizer->name(),
         loaded.tokenizer->vocab_size());
  }
  return loaded;
}

std::unique_ptr<models::Model> load_model(const std::filesystem::path& path, at::Device device,
                                          const nlohmann::json& changes) {
  return read_model(intact_checkpoint(path), device, changes);
}

at::Device device_of(const models::Model& model) {
  return model.head_weight().device();
}

}  // namespace tamis::infer

#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>

#include "tamis/models/model.h"
#include "tamis/text/tokenizer.h"

namespace tamis::infer {

/// A trained model and its tokenizer.
struct LoadedModel {
  std::filesystem::path checkpoint;  // the directory of the checkpoint itself
  std::unique_ptr<models::Model> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
};

/// Loads a checkpoint, or the newest one of a run directory. Throws ExitCode::kInput when files are missing or damaged,
/// or when the tokenizer has more tokens than the model's vocabulary; it may have fewer. `changes`: see
/// models::load_model.
LoadedModel load(const std::filesystem::path& path, at::Device device = at::kCPU,
                 const nlohmann::json& changes = nlohmann::json::object());

/// Loads the model without the tokenizer, for use with token ids.
std::unique_ptr<models::Model> load_model(const std::filesystem::path& path, at::Device device = at::kCPU,
                                          const nlohmann::json& changes = nlohmann::json::object());

/// The device that holds the weights.
at::Device device_of(const models::Model& model);

}  // namespace tamis::infer

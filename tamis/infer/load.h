#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>

#include "tamis/models/model.h"
#include "tamis/text/tokenizer.h"

namespace tamis::infer {

/// A trained model and its tokenizer.
struct LoadedModel {
  std::filesystem::path checkpoint;  // the directory that was read
  std::unique_ptr<models::Model> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
};

/// Reads a checkpoint, or the newest one of a run directory. Throws ExitCode::kInput when something is missing,
/// damaged, or when the model and the tokenizer disagree on the vocabulary.
/// `changes`: see models::load_model.
LoadedModel load(const std::filesystem::path& path, at::Device device = at::kCPU,
                 const nlohmann::json& changes = nlohmann::json::object());

/// The model alone, for what works on token ids.
std::unique_ptr<models::Model> load_model(const std::filesystem::path& path, at::Device device = at::kCPU,
                                          const nlohmann::json& changes = nlohmann::json::object());

/// Where the weights lie.
at::Device device_of(const models::Model& model);

}  // namespace tamis::infer

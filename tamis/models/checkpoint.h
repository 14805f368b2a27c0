#pragma once

#include <filesystem>
#include <memory>

#include "tamis/models/model.h"

namespace tamis::models {

/// Writes config.json and model.safetensors (Hugging Face layout, the names of docs/checkpoints.md) into an existing
/// directory, which the caller makes appear atomically.
void save_model(const Model& model, const std::filesystem::path& directory);

/// Reads what save_model wrote; every shape is checked against the configuration. Throws ExitCode::kInput.
std::unique_ptr<Model> load_model(const std::filesystem::path& directory);

/// The checkpoint directory that a path means: the directory itself when it holds config.json and model.safetensors,
/// or, for a run directory, its newest checkpoints/step-N. Throws ExitCode::kInput and says what was looked for.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace tamis::models

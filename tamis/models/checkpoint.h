#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/model.h"

namespace tamis::models {

/// Writes config.json and model.safetensors (Hugging Face layout, the names of docs/checkpoints.md) into an existing
/// directory, which the caller makes appear atomically.
void save_model(const Model& model, const std::filesystem::path& directory);

/// Reads what save_model wrote; every shape is checked against the configuration. Throws ExitCode::kInput.
/// `changes` replace keys of config.json that no tensor depends on: a window, a factor of positions, what mixes.
std::unique_ptr<Model> load_model(const std::filesystem::path& directory,
                                  const nlohmann::json& changes = nlohmann::json::object());

/// Fills a model's parameters from a checkpoint of another configuration: every tensor that it has must be one of the
/// model's, in its shape. Returns the names of those that it has not, which stay as they are. Throws ExitCode::kInput,
/// also where check_manifest (manifest.h) does.
std::vector<std::string> copy_parameters(const Model& model, const std::filesystem::path& directory);

/// `{"rope_factor", "4"}` from `rope_factor=4`, many of them; a value is JSON where it can be, else a text. Throws
/// ExitCode::kUsage.
nlohmann::json read_changes(std::span<const std::string> assignments);

/// The checkpoint directory that a path means: the directory itself when it holds config.json and model.safetensors,
/// or, for a run directory, its newest checkpoints/step-N. Throws ExitCode::kInput and says what was looked for.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

/// N of a path whose last part is step-N.
std::optional<int64_t> step_of(const std::filesystem::path& path);

}  // namespace tamis::models

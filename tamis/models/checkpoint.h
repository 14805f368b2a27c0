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
/// directory, which the caller makes appear atomically. `special_tokens` is an object with `eos_token_id` and the like.
void save_model(const Model& model, const std::filesystem::path& directory,
                const nlohmann::json& special_tokens = nlohmann::json::object());
/// Writes config.json.
void write_config(const std::filesystem::path& directory, const nlohmann::json& stored_config);

/// The complete configuration in a directory's config.json. Throws ExitCode::kInput.
nlohmann::json read_config(const std::filesystem::path& directory);
/// Name and shape of every tensor that a checkpoint of this configuration has, on the meta device.
std::vector<nn::NamedTensor> checkpoint_shapes(const nlohmann::json& complete_config);
/// In one pass, without other tensors of this size.
bool all_finite(const at::Tensor& tensor);

/// Reads what save_model wrote; every shape is checked against the configuration. Throws ExitCode::kInput.
/// `changes` replaces keys of config.json on which no tensor depends, such as a window or a factor of positions.
std::unique_ptr<Model> load_model(const std::filesystem::path& directory,
                                  const nlohmann::json& changes = nlohmann::json::object());

/// Fills a model's parameters from a checkpoint of another configuration. Every tensor of the checkpoint must be one of
/// the model's and have its shape. Returns the names of the model's other tensors, which are unchanged. Throws
/// ExitCode::kInput, also where check_manifest (manifest.h) does.
std::vector<std::string> copy_parameters(const Model& model, const std::filesystem::path& directory);

/// Parses `rope_factor=4` and the like into an object: each value is JSON if it parses, else a string. Throws
/// ExitCode::kUsage.
nlohmann::json read_changes(std::span<const std::string> assignments);

/// The checkpoint directory that a path means: the directory itself when it holds config.json and model.safetensors,
/// or the index of its shards, or, for a run directory, its newest checkpoints/step-N; none where there is neither.
/// Throws ExitCode::kInput where files of the newest one are missing.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& path);

/// The same. Throws ExitCode::kInput where there is none, too.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

/// N of a path whose last part is step-N.
std::optional<int64_t> step_of(const std::filesystem::path& path);

}  // namespace tamis::models

#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

// trainer.json of a training checkpoint is also its manifest: sizes and SHA-256 digests of the files next to it and of
// itself. Damage is noticed before a number is read. No digest helps against a forged trainer.json, so every reader
// also checks the values that it reads.

namespace tamis::models {

inline constexpr const char* kManifestFile = "trainer.json";

/// Writes trainer.json: `state`, and the sizes and SHA-256 digests of all files in the directory, of which those in
/// `digests` are known. Throws ExitCode::kStorage.
void write_manifest(const std::filesystem::path& directory, const nlohmann::json& state,
                    const std::map<std::string, std::string>& digests = {});

/// Why the checkpoint cannot be trusted ("model.safetensors: checksum differs"); empty when trainer.json, all of
/// `files` and the files of the model's tensors, their index included, are what they were. Checkpoints of version 0.1
/// before SHA-256, with FNV-1a sums, are read too.
std::string find_damage(const std::filesystem::path& directory, std::span<const std::string> files);

/// Throws ExitCode::kInput when a file that a model and its tokenizer are read from is damaged. A checkpoint without
/// trainer.json is not of training: there is nothing to compare with.
void check_manifest(const std::filesystem::path& checkpoint);

}  // namespace tamis::models

#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tamis/models/model_config.h"

// A config.json also has keys that describe the file and not the model, or say again what the model is: those of
// Hugging Face's tools. They are read here.

namespace tamis::models {

/// Keys that decide nothing in the forward pass: `transformers_version`, `use_cache`, dropout, generation settings ...
std::span<const std::string> ignored_keys();

/// The configuration without the keys of Hugging Face's tools. Throws ExitCode::kUsage, with the nearest known name,
/// when a key is neither one of theirs nor of model_keys().
nlohmann::json without_foreign_keys(const nlohmann::json& stored);

/// Checks the keys of Hugging Face's tools that mean something: `torch_dtype`, `hidden_act`, `attention_bias`, ... must
/// say what the model is, token ids must be in the vocabulary. Throws ExitCode::kUsage with the key.
void check_foreign_keys(const nlohmann::json& stored, const ModelConfig& config);

/// The ids of special tokens in a config.json, as they are there (a number, or a list of them); only those present.
nlohmann::json special_tokens(const nlohmann::json& stored);

/// What save_model writes: a complete configuration with `architectures`, `torch_dtype` and `special_tokens`.
nlohmann::json to_stored_config(const nlohmann::json& complete_config, const nlohmann::json& special_tokens,
                                const std::string& dtype = "float32");

}  // namespace tamis::models

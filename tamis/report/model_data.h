#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/models/model.h"

namespace tamis::report {

/// {type, parameters, parameters_without_embedding, parts, layers, heads, hidden_size, vocab_size, training_length,
/// config} of a complete configuration.
nlohmann::json describe_model(const nlohmann::json& complete_config);

/// {length, weights, similarities, values}: models::Flops of the forward pass, per token.
nlohmann::json describe_flops(const models::Model& model, int64_t length);

/// [{layer, head, window, accept}]; an infinite window is null.
nlohmann::json describe_screening_heads(const std::vector<models::Model::ScreeningHead>& heads);

}  // namespace tamis::report

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace tamis::models {

/// Parameters of a configuration by the part of the model they belong to, without making the model.
struct ParameterParts {
  int64_t embedding = 0;
  int64_t mixers = 0;  // all of a layer but its MLP and norms
  int64_t mlp = 0;
  int64_t norms = 0;  // of layers, and the final one
  int64_t head = 0;   // 0 where the head is the embedding

  int64_t total() const { return embedding + mixers + mlp + norms + head; }
};
ParameterParts count_parts(const nlohmann::json& complete_config);

/// An estimate of the activations that a training step keeps for the backward pass, in numbers per token: inputs and
/// results of all matrix products, and the residual stream.
struct KeptActivations {
  int64_t products = 0;  // in the compute dtype
  int64_t residual = 0;  // float32
};
KeptActivations count_activations(const nlohmann::json& complete_config);

}  // namespace tamis::models

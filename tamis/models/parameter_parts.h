#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace tamis::models {

/// Parameters of a configuration by what they belong to, without making the model.
struct ParameterParts {
  int64_t embedding = 0;
  int64_t mixers = 0;  // with all that a layer has besides its MLP and norms
  int64_t mlp = 0;
  int64_t norms = 0;  // before mixers and MLPs, and the last
  int64_t head = 0;   // 0 where the head is the embedding

  int64_t total() const { return embedding + mixers + mlp + norms + head; }
};
ParameterParts count_parts(const nlohmann::json& complete_config);

/// Numbers that a training step keeps for the backward pass, for each token, about: what goes into the matrices of all
/// layers and what comes out of them, and the residual stream, which is float32 in any case.
struct KeptActivations {
  int64_t products = 0;  // in the compute dtype
  int64_t residual = 0;  // float32
};
KeptActivations count_activations(const nlohmann::json& complete_config);

}  // namespace tamis::models

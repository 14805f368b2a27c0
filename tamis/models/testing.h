#pragma once

// Small models and inputs for the tests of this layer.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "tamis/base/random.h"
#include "tamis/models/model.h"

namespace tamis::models::testing {

/// A complete configuration of three layers and four heads, trained at 32 tokens, with `change` on top.
inline nlohmann::json small_config(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json config = {
      {"vocab_size", 37}, {"hidden_size", 24}, {"num_hidden_layers", 3},       {"num_attention_heads", 4},
      {"key_dim", 6},     {"value_dim", 10},   {"max_position_embeddings", 32}};
  config.update(change);
  return complete_config(config);
}

inline at::Tensor random_tokens(int64_t B, int64_t T, int64_t N, uint64_t seed) {
  const at::Tensor tokens = at::empty({B, T}, at::kLong);
  Random random({seed});
  for (int64_t i = 0; i < B * T; ++i) {
    tokens.data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(N)));
  }
  return tokens;
}

/// Moves the learned scalars away from their round initial values.
inline void disturb(const Model& model) {
  const at::NoGradGuard no_grad;
  Random random({5});
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.tensor.dim() > 1) continue;
    for (at::Tensor element : parameter.tensor.view(-1).unbind()) element += 0.3 * random.normal();
  }
}

}  // namespace tamis::models::testing

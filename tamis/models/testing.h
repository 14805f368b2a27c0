#pragma once

// Small models and inputs for the tests of this layer.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/models/model.h"

namespace tamis::models::testing {

/// A complete Multiscreen configuration of three layers and four heads, training length 32, with `change` applied.
inline nlohmann::json small_config(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json config = {
      {"vocab_size", 37}, {"hidden_size", 24}, {"num_hidden_layers", 3},       {"num_attention_heads", 4},
      {"key_dim", 6},     {"value_dim", 10},   {"max_position_embeddings", 32}};
  config.update(change);
  return complete_config(config);
}

/// The same for a Transformer.
inline nlohmann::json small_model(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", "transformer"},
                           {"vocab_size", 37},
                           {"hidden_size", 24},
                           {"num_hidden_layers", 3},
                           {"num_attention_heads", 4},
                           {"max_position_embeddings", 32},
                           {"window", 9}};
  config.update(change);
  return complete_config(config);
}

/// Copies of the tensors of a checkpoint, by their names.
inline std::map<std::string, at::Tensor> named_tensors(const Model& model) {
  std::vector<at::Tensor> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter.tensor.detach());
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : model.checkpoint_tensors(parameters)) result[name] = tensor.clone();
  return result;
}

/// named_tensors in float64.
inline std::map<std::string, at::Tensor> named_doubles(const Model& model) {
  std::map<std::string, at::Tensor> result = named_tensors(model);
  for (auto& [name, tensor] : result) tensor = tensor.to(at::kDouble);
  return result;
}

/// One sequence through the model's decoding, on the CPU.
inline at::Tensor decode(const Model& model, DecodingState& state, const at::Tensor& tokens_T) {
  DecodingState* const states[] = {&state};
  return model.decode(tokens_T.unsqueeze(0), states)[0].cpu();
}

inline void expect_near(const at::Tensor& found, const at::Tensor& full, double tolerance = 1e-5) {
  ASSERT_EQ(found.sizes(), full.sizes());
  EXPECT_LT((found - full).abs().max().item<double>(), tolerance * full.abs().max().item<double>());
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

/// The largest difference between attention_mass and the last rows of the relevance maps, for spans at the beginning,
/// inside and at the end.
inline double mass_error(const Model& model, const at::Tensor& tokens_1T, const ForwardOptions& options = {}) {
  const int64_t T = tokens_1T.size(1);
  double error = 0;
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 4}, {T / 2, T - 2}, {T - 1, T}, {0, T}}) {
    const at::Tensor mass_LH = model.attention_mass(tokens_1T, first, last, options);
    for (const RelevanceMap& map : model.relevance(tokens_1T, options)) {
      const at::Tensor row_HT = map.relevance.select(1, T - 1).to(at::kDouble), all = row_HT.sum(-1);
      const at::Tensor expected = at::where(all > 0, row_HT.narrow(1, first, last - first).sum(-1) / all, 0 * all);
      const auto here = (mass_LH[map.layer] - expected).abs().max().item<double>();
      if (!(here <= error) && !std::isnan(error)) error = here;  // NaN stays
    }
  }
  return error;
}

}  // namespace tamis::models::testing

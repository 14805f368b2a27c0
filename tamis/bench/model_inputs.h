#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tamis/models/model.h"

namespace tamis::bench {

/// A fresh Multiscreen of this Psi. `windows` is "initial", or "infinite": every key is visible.
std::unique_ptr<models::Model> make_model(int64_t psi, int64_t vocab, const std::string& windows = "initial");

/// s_w of `heads` heads, float32 [H].
at::Tensor window_scalars(const std::string& windows, int64_t heads);

/// int64 [B, T] in [0, vocab).
at::Tensor random_tokens(int64_t B, int64_t T, int64_t vocab);

/// Weights that are multiplied for every token: all matrices but the embedding, and the head (N x D).
struct CountedWeights {
  double layers = 0, head = 0;
};
CountedWeights count_weights(const models::Model& model);

/// Tokens on which a bench is checked against the definition: more than the longest initial window of 257, where the
/// measured lengths are longer.
int64_t check_tokens(const std::vector<int64_t>& lengths);

}  // namespace tamis::bench

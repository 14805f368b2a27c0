#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tanh.h>

#include <cmath>

// Activation functions of single numbers, for decoding single tokens. Where none is given, at::sigmoid, at::silu and
// at::gelu are their tensor forms.

namespace tamis::nn {

inline float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

/// x sigmoid(x).
inline float silu(float x) {
  return x / (1 + std::exp(-x));
}

/// x Phi(x), with the error function.
inline float gelu(float x) {
  return 0.5f * x * (1 + std::erf(x * static_cast<float>(M_SQRT1_2)));
}

/// cap tanh(x / cap): between -cap and cap, and about x near 0.
inline float soft_capped(float x, double cap) {
  return static_cast<float>(cap * std::tanh(x / cap));
}
inline at::Tensor soft_capped(const at::Tensor& x, double cap) {
  return at::tanh(x / cap) * cap;
}

}  // namespace tamis::nn

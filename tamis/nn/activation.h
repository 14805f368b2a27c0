#pragma once

#include <cmath>

// Activation functions of single numbers, for decoding single tokens. at::sigmoid, at::silu and at::gelu are their
// tensor forms.

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

}  // namespace tamis::nn

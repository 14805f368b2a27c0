#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tamis::nn {

/// How Llama 3.1 stretches the wavelengths 2 pi / f of a model that was trained on `original_length` = L tokens, by
/// s = RotaryOptions::factor:
///
///   f          if the wavelength is below L / high_frequency_factor
///   f / s      if it is above L / low_frequency_factor
///   (1 - g) f / s + g f,  g = (L / wavelength - low) / (high - low),  between
struct Llama3Scaling {
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;  // above the low one
  double original_length = 8192;       // tokens
};

struct RotaryOptions {
  double theta = 10'000.0;  // base of the wavelengths
  double factor = 1.0;      // position i counts as i / factor; with `llama3` the s above instead
  std::optional<Llama3Scaling> llama3 = std::nullopt;
};

/// Dimensions d and d + D/2 of every row rotated by an angle, in float32 (float64 for float64 rows) and differentiably.
///
/// x_BTHD        rows; D even
/// angle_BTHF    float64; F = D/2; B, T and H may be missing or 1
at::Tensor rotated(const at::Tensor& x_BTHD, const at::Tensor& angle_BTHF);

/// Rotary position embedding (half-split pairs, as in LLaMA checkpoints): dimensions d and d + D/2 of a row at position
/// i are rotated by i / factor * theta^(-2 d / D). Angles are made in float64.
///
/// x_BTHD    rows at the positions first, first + 1, ...; D even
at::Tensor rotated(const at::Tensor& x_BTHD, int64_t first, const RotaryOptions& options);

/// The same in plain memory for rows at one position, whose cosines and sines are computed once.
class Rotation {
 public:
  Rotation(int64_t dim, const RotaryOptions& options);
  void set_position(int64_t position);
  void rotate(float* row) const;

 private:
  std::vector<double> frequency_;  // [dim / 2], radians a position
  std::vector<float> cosine_, sine_;
};

}  // namespace tamis::nn

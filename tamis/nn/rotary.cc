#include "tamis/nn/rotary.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tamis::nn {
namespace {

double clamped(double x) {
  return std::clamp(x, 0.0, 1.0);
}
at::Tensor clamped(const at::Tensor& x) {
  return x.clamp(0, 1);
}

/// The frequency is kept by the share g of Llama3Scaling, which is 1 above the high factor and 0 below the low one. Of
/// a number or, elementwise, of a tensor.
template <typename Number>
Number stretched(const Number& frequency, double factor, const Llama3Scaling& scaling) {
  const double low = scaling.low_frequency_factor, high = scaling.high_frequency_factor;
  const Number waves = scaling.original_length * frequency / (2 * std::numbers::pi);  // L / wavelength
  const Number kept = clamped((waves - low) / (high - low));
  return (1 - kept) * frequency / factor + kept * frequency;
}

/// Radians per position of the pairs numbered d, of `half`: theta^(-d / half) / factor, or as llama3 says. Of a number
/// or, elementwise, of a tensor.
template <typename Number>
Number frequency(const Number& d, int64_t half, const RotaryOptions& options) {
  using std::exp;
  const Number own = exp(d * (-std::log(options.theta) / static_cast<double>(half)));
  return options.llama3 ? stretched(own, options.factor, *options.llama3) : own / options.factor;
}

}  // namespace

at::Tensor rotated(const at::Tensor& x_BTHD, const at::Tensor& angle_BTHF) {
  const int64_t half = x_BTHD.size(3) / 2;
  const auto dtype = x_BTHD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor cosine = angle_BTHF.cos().to(dtype), sine = angle_BTHF.sin().to(dtype);
  const at::Tensor x = x_BTHD.to(dtype), a = x.slice(3, 0, half), b = x.slice(3, half);
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, 3).to(x_BTHD.scalar_type());
}

at::Tensor rotated(const at::Tensor& x_BTHD, int64_t first, const RotaryOptions& options) {
  const int64_t T = x_BTHD.size(1), half = x_BTHD.size(3) / 2;
  const auto doubles = at::TensorOptions(x_BTHD.device()).dtype(at::kDouble);
  const at::Tensor position_T1 = at::arange(first, first + T, doubles).unsqueeze(1);
  const at::Tensor angle_T1F = (position_T1 * frequency(at::arange(half, doubles), half, options)).unsqueeze(1);
  return rotated(x_BTHD, angle_T1F);
}

Rotation::Rotation(int64_t dim, const RotaryOptions& options) {
  const int64_t half = dim / 2;
  for (int64_t d = 0; d < half; ++d) frequency_.push_back(frequency(static_cast<double>(d), half, options));
  cosine_.resize(frequency_.size());
  sine_.resize(frequency_.size());
  set_position(0);
}

void Rotation::set_position(int64_t position) {
  for (size_t d = 0; d < frequency_.size(); ++d) {
    const double angle = static_cast<double>(position) * frequency_[d];
    cosine_[d] = static_cast<float>(std::cos(angle));
    sine_[d] = static_cast<float>(std::sin(angle));
  }
}

void Rotation::rotate(float* row) const {
  float* const other = row + frequency_.size();
  for (size_t d = 0; d < frequency_.size(); ++d) {
    const float a = row[d], b = other[d];
    row[d] = a * cosine_[d] - b * sine_[d];
    other[d] = b * cosine_[d] + a * sine_[d];
  }
}

}  // namespace tamis::nn

#include "tamis/nn/rotary.h"

#include <ATen/ATen.h>

#include <cmath>

namespace tamis::nn {

at::Tensor rotated(const at::Tensor& x_BTHD, int64_t first, const RotaryOptions& options) {
  const int64_t T = x_BTHD.size(1), half = x_BTHD.size(3) / 2;
  const auto doubles = at::TensorOptions(x_BTHD.device()).dtype(at::kDouble);
  const at::Tensor position = at::arange(first, first + T, doubles) / options.factor;
  const at::Tensor frequency = at::exp(at::arange(half, doubles) * (-std::log(options.theta) / half));
  const at::Tensor angle_T1F = (position.unsqueeze(1) * frequency).unsqueeze(1);
  const auto dtype = x_BTHD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor cosine = angle_T1F.cos().to(dtype), sine = angle_T1F.sin().to(dtype);
  const at::Tensor x = x_BTHD.to(dtype), a = x.slice(3, 0, half), b = x.slice(3, half);
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, 3).to(x_BTHD.scalar_type());
}

}  // namespace tamis::nn

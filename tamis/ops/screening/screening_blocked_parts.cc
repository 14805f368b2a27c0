#include "tamis/ops/screening/screening_blocked_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tamis/kernels/rows.h"
#include "tamis/ops/attention.h"
#include "tamis/ops/blocked.h"
#include "tamis/ops/screening/screening_functions.h"
#include "tamis/ops/window.h"

namespace tamis::ops {

using at::Tensor;
using kernels::kMinNorm;

HeadNumbers::HeadNumbers(double s_w, double s_r, const ScreeningHeadOptions& options)
    : window(expanded_window(window_tokens(s_w), options.expand_beyond)),
      inverse_w(std::isinf(window) ? 0 : 1 / window),
      inverse_r(inverse_acceptance_width(s_r)),
      one_minus_r(acceptance_width(-s_r)) {
  if (options.position != "mipe") return;
  angle_step = mipe_step(window, options.mipe_threshold);
  angle_step_slope = mipe_step_slope(window, options.mipe_threshold);
}

bool HeadNumbers::flat(int64_t keys) const {
  return std::numbers::pi * static_cast<double>(keys) * inverse_w < 1e-12;
}

std::vector<HeadNumbers> head_numbers(const Tensor& s_w, const Tensor& s_r, const ScreeningHeadOptions& options) {
  const Tensor both = at::stack({s_w.detach(), s_r.detach()}).cpu().to(at::kDouble);
  const double *w = both.const_data_ptr<double>(), *r = w + s_w.size(0);
  std::vector<HeadNumbers> numbers;
  for (int64_t h = 0; h < s_w.size(0); ++h) numbers.emplace_back(w[h], r[h], options);
  return numbers;
}

Tensor numbers_of(const std::vector<HeadNumbers>& heads, double HeadNumbers::*number) {
  std::vector<double> values;
  for (const HeadNumbers& head : heads) values.push_back(head.*number);
  return at::tensor(values, at::kDouble);
}

void check_shapes(const char* name, const ScreeningHeadOptions& options) {
  TORCH_CHECK_VALUE(options.trim_power >= 1 && options.trim_power <= 3, name, ": trim_power must be 1, 2 or 3, but is ",
                    options.trim_power);
  TORCH_CHECK_VALUE(options.softmask == "cosine" || options.softmask == "linear" || options.softmask == "none", name,
                    ": softmask must be \"cosine\", \"linear\" or \"none\", but is \"", options.softmask, "\"");
}

Tensor trim_of(const Tensor& root, const ScreeningHeadOptions& options) {
  if (options.trim_power == 1) return root.clone();
  const Tensor square = at::mul(root, root);
  return options.trim_power == 2 ? square : square.mul_(root);
}

Tensor trim_slope_of(const Tensor& root, const ScreeningHeadOptions& options) {
  if (options.trim_power == 1) return (root > 0).to(root.scalar_type());
  return options.trim_power == 2 ? root : at::mul(root, root);
}

Tensor softmask_of(const Tensor& x, const ScreeningHeadOptions& options) {
  if (options.softmask == "linear") return 1 - x / std::numbers::pi;
  return options.softmask == "none" ? at::ones_like(x) : softmask_inside(x);
}

Tensor softmask_slope_of(const Tensor& x, const Tensor& inverse_w, const ScreeningHeadOptions& options) {
  if (options.softmask == "linear") return x / std::numbers::pi * (1 - inverse_w);  // dw/ds_w = w - 1
  return options.softmask == "none" ? at::zeros_like(x) : softmask_slope_inside(x, inverse_w);
}

UnitRows::UnitRows(const Tensor& x, at::ScalarType dtype) : dtype_(dtype) {
  squared_ = x.to(dtype).square().sum({-1}, /*keepdim=*/true, widest_dtype(x.device()));
  unit = (x / norm()).to(x.scalar_type());
}

Tensor UnitRows::norm() const {
  return squared_.clamp_min(kMinNorm * kMinNorm).sqrt_().to(dtype_);
}

Tensor UnitRows::gradient(const Tensor& grad) const {
  const Tensor clipped = squared_ <= kMinNorm * kMinNorm;
  const Tensor inverse_norm = ((squared_ != 0) / norm()).to(unit.scalar_type());
  const Tensor along = (unit * grad).sum(-1, /*keepdim=*/true).masked_fill_(clipped, 0);
  return grad.addcmul_(unit, along, -1).mul_(inverse_norm);
}

void Rotation::turn(const Tensor& x_NTD, double direction) const {
  const Tensor x0 = x_NTD.select(-1, 0), x1 = x_NTD.select(-1, 1);
  const Tensor turned = x0 * cos - x1 * sin * direction;
  x1.copy_(x0 * sin * direction + x1 * cos);
  x0.copy_(turned);
}

Tensor angle_steps(const std::vector<HeadNumbers>& heads, at::Device device) {
  if (std::none_of(heads.begin(), heads.end(), [](const auto& head) { return head.angle_step != 0; })) return {};
  const at::Device of_angles = device.is_mps() ? at::Device(at::kCPU) : device;
  return numbers_of(heads, &HeadNumbers::angle_step).to(of_angles).unsqueeze(1);
}

Rotation rotation_of(const Tensor& angle_step_N1, int64_t first, int64_t tokens, const at::TensorOptions& options) {
  const Tensor angle = angle_step_N1 * at::arange(first, first + tokens, angle_step_N1.options());
  return {at::cos(angle).to(options), at::sin(angle).to(options)};
}

TanhNorm::TanhNorm(const Tensor& h) {
  const Tensor squared = h.square().sum(-1, /*keepdim=*/true);
  norm = squared.sqrt();
  factor = (at::tanh(norm) / norm).masked_fill_(squared == 0, 1);
}

Tensor TanhNorm::gradient(const Tensor& h, const Tensor& du) const {
  // f'(n)/n loses its digits near n = 0, where it is -2/3.
  const double small = h.scalar_type() == at::kDouble ? 1e-4 : 1e-2;
  const Tensor slope = at::where(norm < small, -2.0 / 3, (1 - at::tanh(norm).square() - factor) / norm.square());
  return factor * du + slope.to(h.scalar_type()) * (h * du).sum(-1, /*keepdim=*/true) * h;
}

Tensor gate_factor(const Tensor& gate) {
  return at::tanh(at::silu(widened(gate).contiguous()));
}

}  // namespace tamis::ops

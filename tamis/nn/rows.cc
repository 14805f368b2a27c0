#include "tamis/nn/rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "tamis/kernels/rows.h"

namespace tamis::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using kernels::kMinNorm;

struct UnitLength : torch::autograd::Function<UnitLength> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
    const at::Tensor inverse = at::where(norm > kMinNorm, norm, INFINITY).reciprocal_();
    const at::Tensor y = x * inverse;
    ctx->save_for_backward({y, inverse});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &g = grads[0], &y = saved[0], &inverse = saved[1];
    const at::Tensor along = (g * y).sum(-1, /*keepdim=*/true);
    return {at::addcmul(g, y, along, -1).mul_(inverse)};
  }
};

struct ExpScaled : torch::autograd::Function<ExpScaled> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& log_scale) {
    const at::Tensor y = x * log_scale.exp();
    ctx->save_for_backward({y, log_scale});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &g = grads[0], &y = saved[0], &log_scale = saved[1];
    // d/ds exp(s) x = y. ATen splits a sum to one number between threads, a sum along rows not: one dimension at a
    // time.
    return {g * log_scale.exp(), (g * y).sum(-1).sum(-1).sum(-1)};
  }
};

}  // namespace

at::Tensor unit_rows(const at::Tensor& x_nD) {
  return UnitLength::apply(x_nD);
}

void unit_row(const float* x, int64_t dim, double scale, float* out) {
  double squared = 0;
  for (int64_t d = 0; d < dim; ++d) squared += static_cast<double>(x[d]) * x[d];
  const auto factor = static_cast<float>(squared > kMinNorm * kMinNorm ? scale / std::sqrt(squared) : 0.0);
  for (int64_t d = 0; d < dim; ++d) out[d] = x[d] * factor;
}

at::Tensor exp_scaled(const at::Tensor& x_BTD, const at::Tensor& log_scale) {
  return ExpScaled::apply(x_BTD, log_scale);
}

void exp_scaled_row(const float* x, int64_t size, double log_scale, float* out) {
  const auto factor = static_cast<float>(std::exp(log_scale));
  for (int64_t i = 0; i < size; ++i) out[i] = x[i] * factor;
}

}  // namespace tamis::nn

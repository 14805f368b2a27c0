#include "tamis/nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>
#include <numeric>

#include "tamis/ops/attention.h"

namespace tamis::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Sum over all but the last dimension. ATen splits one long sum between threads: rows of rows first, then those.
Tensor sum_of_rows(const Tensor& x) {
  constexpr int64_t kRows = 64;
  Tensor rows = x.reshape({-1, x.size(-1)});
  while (rows.size(0) > 1) {
    const int64_t whole = rows.size(0) / kRows * kRows;
    if (whole == 0) return rows.cumsum(0).select(0, -1);  // in order, row after row
    const Tensor sums = rows.slice(0, 0, whole).unflatten(0, {-1, kRows}).transpose(1, 2).contiguous().sum(-1);
    rows = whole < rows.size(0) ? at::cat({sums, rows.slice(0, whole)}) : sums;
  }
  return rows.size(0) == 1 ? rows.select(0, 0) : at::zeros({x.size(-1)}, rows.options());
}

/// y = (x - centre) * inverse, centre 0 or the mean; out = y * weight.
struct Normalised : torch::autograd::Function<Normalised> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_in, const std::optional<Tensor>& weight, double eps,
                        bool centred) {
    Tensor x = ops::widened(x_in);
    if (centred) x = x - x.mean(-1, /*keepdim=*/true);
    const Tensor inverse = (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
    const Tensor y = x * inverse;
    ctx->save_for_backward({y, inverse, weight.value_or(Tensor())});
    ctx->saved_data["centred"] = centred;
    ctx->saved_data["dtype"] = x_in.scalar_type();
    return (weight ? y * *weight : y).to(x_in.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &y = saved[0], &inverse = saved[1], &weight = saved[2];
    const Tensor g = grads[0].to(y.scalar_type());
    Tensor dy = weight.defined() ? g * weight : g;
    Tensor dx = dy - y * (dy * y).mean(-1, /*keepdim=*/true);
    if (ctx->saved_data["centred"].toBool()) dx = dx - dy.mean(-1, /*keepdim=*/true);
    const Tensor d_weight = weight.defined() ? sum_of_rows(g * y) : Tensor();
    return {(dx * inverse).to(ctx->saved_data["dtype"].toScalarType()), d_weight, {}, {}};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double eps) {
  return Normalised::apply(x, weight, eps, /*centred=*/false);
}

Tensor layer_norm(const Tensor& x, const std::optional<Tensor>& weight, double eps) {
  return Normalised::apply(x, weight, eps, /*centred=*/true);
}

void rms_norm_row(const float* x, const float* weight, int64_t dim, double eps, float* out) {
  constexpr int64_t kSums = 8;  // one would make every addition wait for the one before
  std::array<double, kSums> sums{};
  int64_t first = 0;
  for (; first + kSums <= dim; first += kSums) {
    for (int64_t i = 0; i < kSums; ++i) sums[i] += static_cast<double>(x[first + i]) * x[first + i];
  }
  for (int64_t d = first; d < dim; ++d) sums[0] += static_cast<double>(x[d]) * x[d];
  const double squared = std::accumulate(sums.begin(), sums.end(), 0.0);
  const auto inverse = static_cast<float>(1 / std::sqrt(squared / static_cast<double>(dim) + eps));
  for (int64_t d = 0; d < dim; ++d) out[d] = x[d] * inverse * weight[d];
}

void layer_norm_row(const float* x, const float* weight, int64_t dim, double eps, float* out) {
  double sum = 0, squared = 0;
  for (int64_t d = 0; d < dim; ++d) sum += x[d];
  const double mean = sum / static_cast<double>(dim);
  for (int64_t d = 0; d < dim; ++d) squared += (x[d] - mean) * (x[d] - mean);
  const double inverse = 1 / std::sqrt(squared / static_cast<double>(dim) + eps);
  for (int64_t d = 0; d < dim; ++d) out[d] = static_cast<float>((x[d] - mean) * inverse) * weight[d];
}

}  // namespace tamis::nn

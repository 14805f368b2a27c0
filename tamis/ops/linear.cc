#include "tamis/ops/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>

#include "tamis/ops/matmul_backend.h"
#include "tamis/ops/onednn_linear.h"
#include "tamis/ops/tiled_product.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Whether the backend of the product is not kAten.
bool ours(const Tensor& a, const Tensor& b) {
  if (!a.is_cpu() || !b.is_cpu() || a.scalar_type() != b.scalar_type() || a.numel() == 0 || b.numel() == 0) {
    return false;
  }
  const MatmulBackend backend = matmul_backend(a.scalar_type());
  return backend == MatmulBackend::kWidened || backend == MatmulBackend::kTiled ||
         (backend == MatmulBackend::kOneDnn && at::globalContext().userEnabledMkldnn());
}

/// Whether products of bfloat16 are tiled.
bool is_tiled() {
  return matmul_backend(at::kBFloat16) == MatmulBackend::kTiled;
}

/// Whether autograd records this product.
bool recorded(const Tensor& a, const Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
}

/// Rows that oneDNN sums at once: longer sums take more time (15% for 4,096 rows of [2560, 256]).
constexpr int64_t kSummedRows = 512;
/// Rows that are widened at once: a pass over 4,096 tokens takes a fifth longer with 512 (two threads of a Zen 3).
constexpr int64_t kWidenedRows = 2048;

/// Calls work(first, rows) for all rows, `most` at a time.
template <typename Work>
void for_row_blocks(int64_t rows, int64_t most, const Work& work) {
  for (int64_t first = 0; first < rows; first += most) work(first, std::min(most, rows - first));
}

/// A^T B of matrices with the same rows; A is copied.
Tensor onednn_transposed_product(const Tensor& a, const Tensor& b) {
  Tensor sum;
  for_row_blocks(a.size(0), kSummedRows, [&](int64_t first, int64_t rows) {
    const Tensor part = onednn_linear(a.narrow(0, first, rows).t(), b.narrow(0, first, rows).t());
    sum = sum.defined() ? sum.add_(part) : part;
  });
  return sum;
}

/// dY^T X, its rows or its columns adjacent.
Tensor onednn_weight_gradient(const Tensor& dy_RE, const Tensor& x_RD) {
  if (dy_RE.size(1) < x_RD.size(1)) return onednn_transposed_product(dy_RE, x_RD);
  return onednn_transposed_product(x_RD, dy_RE).t();
}

Tensor as_matrix(const Tensor& x) {
  return x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
}

/// A result of [..., columns] for the rows of x [..., D].
Tensor empty_product(const Tensor& x, int64_t columns) {
  at::DimVector sizes(x.sizes());
  sizes.back() = columns;
  return at::empty(sizes, x.options());
}

/// X W^T of bfloat16 in float32, rounded once.
Tensor widened_linear(const Tensor& x, const Tensor& weight_ED) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor x_RD = as_matrix(x), widened_ED = weight_ED.to(at::kFloat);
  const Tensor y = empty_product(x, weight_ED.size(0)), y_RE = as_matrix(y);
  for_row_blocks(x_RD.size(0), kWidenedRows, [&](int64_t first, int64_t rows) {
    y_RE.narrow(0, first, rows).copy_(ops::linear(x_RD.narrow(0, first, rows).to(at::kFloat), widened_ED));
  });
  return y;
}

/// dY^T X of bfloat16, summed in float32 and rounded once; and, where a matrix W is given, dY W as widened_linear has
/// it.
LinearGradients widened_gradients(const Tensor& dy, const Tensor& x, const Tensor& weight_ED = {}) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor dy_RE = as_matrix(dy), x_RD = as_matrix(x);
  const Tensor sum_ED = at::empty({dy_RE.size(1), x_RD.size(1)}, dy.options().dtype(at::kFloat));
  Tensor dx, dx_RD, widened_DE;
  if (weight_ED.defined()) {
    dx = empty_product(dy, weight_ED.size(1));
    dx_RD = as_matrix(dx);
    widened_DE = weight_ED.t().to(at::kFloat);
  }
  for_row_blocks(x_RD.size(0), kWidenedRows, [&](int64_t first, int64_t rows) {
    const Tensor widened_dy = dy_RE.narrow(0, first, rows).to(at::kFloat);
    if (dx.defined()) dx_RD.narrow(0, first, rows).copy_(ops::linear(widened_dy, widened_DE));
    linear_weight_gradient_into(sum_ED, first == 0 ? Into::kReplace : Into::kAdd, widened_dy,
                                x_RD.narrow(0, first, rows).to(at::kFloat));
  });
  return {dx, sum_ED.to(at::kBFloat16)};
}

/// X W^T by tiled_product.
Tensor tiled_linear(const Tensor& x, const Tensor& weight_ED) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::DimVector sizes(x.sizes());
  sizes.back() = weight_ED.size(0);
  return tiled_product(as_matrix(x), weight_ED.t()).view(sizes);
}

/// X W^T and dY^T X by a backend other than kAten.
Tensor our_product(const Tensor& x, const Tensor& weight_ED) {
  if (x.scalar_type() == at::kFloat) return onednn_linear(x, weight_ED);
  return is_tiled() ? tiled_linear(x, weight_ED) : widened_linear(x, weight_ED);
}
Tensor our_weight_gradient(const Tensor& dy_RE, const Tensor& x_RD) {
  if (dy_RE.scalar_type() == at::kFloat) return onednn_weight_gradient(dy_RE, x_RD);
  return is_tiled() ? tiled_product(dy_RE.t(), x_RD) : widened_gradients(dy_RE, x_RD).dw_ED;
}

/// Whether the shapes fit; at:: reports what is wrong otherwise.
bool fit(const Tensor& x, const Tensor& weight, int64_t shared_dimension) {
  return x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(shared_dimension);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_ED) {
    // Each is needed for the gradient of the other.
    ctx->save_for_backward({weight_ED.requires_grad() ? x : Tensor(), x.requires_grad() ? weight_ED : Tensor()});
    return our_product(x, weight_ED);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    if (ctx->needs_input_grad(0) && ctx->needs_input_grad(1)) {
      const auto [dx, dw_ED] = linear_gradients(grads[0], saved[0], saved[1]);
      return {dx, dw_ED};
    }
    return {ctx->needs_input_grad(0) ? linear_input_gradient(grads[0], saved[1]) : Tensor(),
            ctx->needs_input_grad(1) ? linear_weight_gradient(grads[0], saved[0]) : Tensor()};
  }
};

/// Writes or adds A B.
void aten_into(const Tensor& result, Into into, const Tensor& a, const Tensor& b) {
  result.addmm_(a, b, /*beta=*/into == Into::kAdd ? 1 : 0);
}
/// Writes or adds a product that was computed apart.
void write(const Tensor& made, const Tensor& result, Into into) {
  TORCH_CHECK_VALUE(made.sizes() == result.sizes(), "linear: the result has the shape ", made.sizes(),
                    ", but its memory has ", result.sizes());
  into == Into::kAdd ? result.add_(made) : result.copy_(made);
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight_ED) {
  check_onednn_memory();
  if (!fit(x, weight_ED, 1) || !ours(x, weight_ED)) return at::linear(x, weight_ED);
  return recorded(x, weight_ED) ? Linear::apply(x, weight_ED) : our_product(x, weight_ED);
}

Tensor linear_input_gradient(const Tensor& dy, const Tensor& weight_ED) {
  check_onednn_memory();
  if (!fit(dy, weight_ED, 0) || recorded(dy, weight_ED) || !ours(dy, weight_ED)) return at::matmul(dy, weight_ED);
  return our_product(dy, weight_ED.t());
}

Tensor linear_weight_gradient(const Tensor& dy, const Tensor& x) {
  check_onednn_memory();
  const Tensor dy_RE = as_matrix(dy), x_RD = as_matrix(x);
  if (!fit(dy_RE.t(), x_RD, 0) || recorded(dy, x) || !ours(dy, x)) return dy_RE.t().mm(x_RD);
  return our_weight_gradient(dy_RE, x_RD).contiguous();
}

LinearGradients linear_gradients(const Tensor& dy, const Tensor& x, const Tensor& weight_ED) {
  const bool widened = dy.scalar_type() == at::kBFloat16 && !is_tiled() && fit(dy, weight_ED, 0) &&
                       fit(as_matrix(dy).t(), as_matrix(x), 0) && !recorded(dy, x) && !recorded(dy, weight_ED) &&
                       ours(dy, x) && ours(dy, weight_ED);
  if (widened) return widened_gradients(dy, x, weight_ED);
  return {linear_input_gradient(dy, weight_ED), linear_weight_gradient(dy, x)};
}

void linear_into(const Tensor& result_RE, Into into, const Tensor& x_RD, const Tensor& weight_ED) {
  check_onednn_memory();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!fit(x_RD, weight_ED, 1) || !ours(x_RD, weight_ED)) return aten_into(result_RE, into, x_RD, weight_ED.t());
  write(our_product(x_RD, weight_ED), result_RE, into);
}

void linear_input_gradient_into(const Tensor& result_RD, Into into, const Tensor& dy_RE, const Tensor& weight_ED) {
  check_onednn_memory();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!fit(dy_RE, weight_ED, 0) || !ours(dy_RE, weight_ED)) return aten_into(result_RD, into, dy_RE, weight_ED);
  write(our_product(dy_RE, weight_ED.t()), result_RD, into);
}

void linear_weight_gradient_into(const Tensor& result_ED, Into into, const Tensor& dy_RE, const Tensor& x_RD) {
  check_onednn_memory();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!fit(dy_RE.t(), x_RD, 0) || !ours(dy_RE, x_RD)) return aten_into(result_ED, into, dy_RE.t(), x_RD);
  write(our_weight_gradient(dy_RE, x_RD), result_ED, into);
}

}  // namespace tamis::ops

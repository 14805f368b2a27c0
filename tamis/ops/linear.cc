#include "tamis/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace tamis::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// oneDNN's X W^T with plain matrices, which LibTorch has for its compiler.
using OneDnnLinear = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                            std::string_view then, c10::List<std::optional<at::Scalar>> scalars,
                            std::optional<std::string_view> algorithm);
using OneDnnHandle = c10::TypedOperatorHandle<OneDnnLinear>;

Tensor call(const OneDnnHandle& handle, const Tensor& x, const Tensor& weight_ED) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return handle.call(x, weight_ED, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

/// A small product says whether it is there, of this form and for plain matrices.
std::optional<OneDnnHandle> find_onednn_linear() {
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
  try {
    const auto handle = found->typed<OneDnnLinear>();
    const Tensor ones = at::ones({16, 16}, at::kFloat);
    if ((call(handle, ones, ones) == 16).all().item().toBool()) return handle;
  } catch (const c10::Error&) {
  }
  return std::nullopt;
}

const std::optional<OneDnnHandle>& onednn_linear() {
  static const std::optional<OneDnnHandle> found = find_onednn_linear();
  return found;
}

bool is_amd_family_1ah() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  if (std::string_view(vendor, sizeof(vendor)) != "AuthenticAMD") return false;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff) == 0x1a && __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

std::atomic<Float32Products>& chosen() {
  static std::atomic<Float32Products> products{
      is_amd_family_1ah() && at::hasMKL() && onednn_linear() ? Float32Products::kOneDnn : Float32Products::kAten};
  return products;
}

bool by_onednn(const Tensor& a, const Tensor& b) {
  return float32_products() == Float32Products::kOneDnn && a.is_cpu() && b.is_cpu() && a.scalar_type() == at::kFloat &&
         b.scalar_type() == at::kFloat && a.numel() > 0 && b.numel() > 0 && at::globalContext().userEnabledMkldnn();
}

/// A gradient through this product is wanted.
bool recorded(const Tensor& a, const Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
}

/// Without gaps, row by row or column by column: other matrices meet oneDNN's reference code.
Tensor dense(const Tensor& matrix) {
  return matrix.is_contiguous() || matrix.t().is_contiguous() ? matrix : matrix.contiguous();
}

Tensor onednn_product(const Tensor& x, const Tensor& weight_ED) {
  return call(*onednn_linear(), x, dense(weight_ED));
}

/// Long sums over rows are faster in stretches (15% at 4,096 rows of [2560, 256]).
constexpr int64_t kRowsAtOnce = 512;

/// A^T B of matrices with the same rows; A is copied.
Tensor onednn_transposed_product(const Tensor& a, const Tensor& b) {
  const auto stretch = [&](int64_t first) {
    const int64_t rows = std::min(kRowsAtOnce, a.size(0) - first);
    return onednn_product(a.narrow(0, first, rows).t(), b.narrow(0, first, rows).t());
  };
  const Tensor sum = stretch(0);
  for (int64_t first = kRowsAtOnce; first < a.size(0); first += kRowsAtOnce) sum.add_(stretch(first));
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

/// Whether at:: would take them: it says what is wrong otherwise.
bool fit(const Tensor& x, const Tensor& weight, int64_t shared_dimension) {
  return x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(shared_dimension);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_ED) {
    // Each is needed for the gradient of the other.
    ctx->save_for_backward({weight_ED.requires_grad() ? x : Tensor(), x.requires_grad() ? weight_ED : Tensor()});
    return onednn_product(x, weight_ED);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {ctx->needs_input_grad(0) ? linear_input_gradient(grads[0], saved[1]) : Tensor(),
            ctx->needs_input_grad(1) ? linear_weight_gradient(grads[0], saved[0]) : Tensor()};
  }
};

/// Writes A B to its place.
void aten_into(const Tensor& result, Into into, const Tensor& a, const Tensor& b) {
  result.addmm_(a, b, /*beta=*/into == Into::kAdd ? 1 : 0);
}
/// Writes what was made apart to its place.
void write(const Tensor& made, const Tensor& result, Into into) {
  TORCH_CHECK_VALUE(made.sizes() == result.sizes(), "linear: the result has the shape ", made.sizes(),
                    ", but its place has ", result.sizes());
  into == Into::kAdd ? result.add_(made) : result.copy_(made);
}

}  // namespace

Float32Products float32_products() {
  return chosen().load(std::memory_order_relaxed);
}

void set_float32_products(Float32Products products) {
  chosen() = onednn_linear() ? products : Float32Products::kAten;
}

Tensor linear(const Tensor& x, const Tensor& weight_ED) {
  if (!fit(x, weight_ED, 1) || !by_onednn(x, weight_ED)) return at::linear(x, weight_ED);
  return recorded(x, weight_ED) ? Linear::apply(x, weight_ED) : onednn_product(x, weight_ED);
}

Tensor linear_input_gradient(const Tensor& dy, const Tensor& weight_ED) {
  if (!fit(dy, weight_ED, 0) || recorded(dy, weight_ED) || !by_onednn(dy, weight_ED)) return at::matmul(dy, weight_ED);
  return onednn_product(dy, weight_ED.t());
}

Tensor linear_weight_gradient(const Tensor& dy, const Tensor& x) {
  const Tensor dy_RE = as_matrix(dy), x_RD = as_matrix(x);
  if (!fit(dy_RE.t(), x_RD, 0) || recorded(dy, x) || !by_onednn(dy, x)) return dy_RE.t().mm(x_RD);
  return onednn_weight_gradient(dy_RE, x_RD).contiguous();
}

void linear_into(const Tensor& result_RE, Into into, const Tensor& x_RD, const Tensor& weight_ED) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!fit(x_RD, weight_ED, 1) || !by_onednn(x_RD, weight_ED)) return aten_into(result_RE, into, x_RD, weight_ED.t());
  write(onednn_product(x_RD, weight_ED), result_RE, into);
}

void linear_input_gradient_into(const Tensor& result_RD, Into into, const Tensor& dy_RE, const Tensor& weight_ED) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!fit(dy_RE, weight_ED, 0) || !by_onednn(dy_RE, weight_ED)) return aten_into(result_RD, into, dy_RE, weight_ED);
  write(onednn_product(dy_RE, weight_ED.t()), result_RD, into);
}

void linear_weight_gradient_into(const Tensor& result_ED, Into into, const Tensor& dy_RE, const Tensor& x_RD) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!fit(dy_RE.t(), x_RD, 0) || !by_onednn(dy_RE, x_RD)) return aten_into(result_ED, into, dy_RE.t(), x_RD);
  write(onednn_weight_gradient(dy_RE, x_RD), result_ED, into);
}

}  // namespace tamis::ops

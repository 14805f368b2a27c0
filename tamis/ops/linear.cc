#include "tamis/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace tamis::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// oneDNN's X W^T with plain matrices. LibTorch offers it to its compiler; at::linear takes it for bfloat16 only.
using OneDnnLinear = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                            std::string_view then, c10::List<std::optional<at::Scalar>> scalars,
                            std::optional<std::string_view> algorithm);

std::optional<c10::OperatorHandle> find_onednn_linear() {
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
  return found;
}

const std::optional<c10::OperatorHandle>& onednn_linear() {
  static const std::optional<c10::OperatorHandle> found = find_onednn_linear();
  return found;
}

/// AMD's processors whose vector units are 512 bits wide: MKL gives 256-bit instructions to every processor of AMD's.
bool mkl_leaves_units_idle() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  if (std::string_view(vendor, sizeof(vendor)) != "AuthenticAMD") return false;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  const unsigned family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);  // AMD's families have 0xf in the base field
  return family >= 0x1a && __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

bool by_onednn(const Tensor& a, const Tensor& b, Float32Products products) {
  return products == Float32Products::kOneDnn && onednn_linear() && a.is_cpu() && b.is_cpu() &&
         a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && a.numel() > 0 && b.numel() > 0;
}

/// A graph of these operands would have to be kept: only at:: does that.
bool recorded(const Tensor& a, const Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
}

Tensor onednn_product(const Tensor& x, const Tensor& weight_ED) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  static const auto multiply = onednn_linear()->typed<OneDnnLinear>();
  return multiply.call(x, weight_ED, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

/// A long sum over rows is faster in stretches: both operands are read down their columns, a page or more apart.
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

Tensor as_matrix(const Tensor& x) {
  return x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
}

/// a b to its place: by oneDNN, who has made it already, or here.
void put(const Place& to, const Tensor& made) {
  to.add ? to.result.add_(made) : to.result.copy_(made);
}
void multiply(const Place& to, const Tensor& a, const Tensor& b) {
  to.result.addmm_(a, b, /*beta=*/to.add ? 1 : 0);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_ED) {
    ctx->save_for_backward({x, weight_ED});
    return onednn_product(x, weight_ED);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto products = Float32Products::kOneDnn;
    return {ctx->needs_input_grad(0) ? linear_input_gradient(grads[0], saved[1], products) : Tensor(),
            ctx->needs_input_grad(1) ? linear_weight_gradient(grads[0], saved[0], products) : Tensor()};
  }
};

}  // namespace

Float32Products float32_products() {
  static const auto chosen =
      mkl_leaves_units_idle() && onednn_linear() ? Float32Products::kOneDnn : Float32Products::kAten;
  return chosen;
}

Tensor linear(const Tensor& x, const Tensor& weight_ED, Float32Products products) {
  const bool fits =
      weight_ED.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight_ED.size(1);  // or at:: says what is wrong
  if (!fits || !by_onednn(x, weight_ED, products)) return at::linear(x, weight_ED);
  return recorded(x, weight_ED) ? Linear::apply(x, weight_ED) : onednn_product(x, weight_ED);
}

Tensor linear_input_gradient(const Tensor& dy, const Tensor& weight_ED, Float32Products products) {
  if (recorded(dy, weight_ED) || !by_onednn(dy, weight_ED, products)) return at::matmul(dy, weight_ED);
  return onednn_product(dy, weight_ED.t());
}

Tensor linear_weight_gradient(const Tensor& dy, const Tensor& x, Float32Products products) {
  const Tensor dy_RE = as_matrix(dy), x_RD = as_matrix(x);
  if (recorded(dy, x) || !by_onednn(dy, x, products)) return dy_RE.t().mm(x_RD);
  if (dy_RE.size(1) < x_RD.size(1)) return onednn_transposed_product(dy_RE, x_RD);
  return onednn_transposed_product(x_RD, dy_RE).t();
}

void linear_into(const Place& to, const Tensor& x_RD, const Tensor& weight_ED, Float32Products products) {
  if (!by_onednn(x_RD, weight_ED, products)) return multiply(to, x_RD, weight_ED.t());
  put(to, linear(x_RD, weight_ED, products));
}

void linear_input_gradient_into(const Place& to, const Tensor& dy_RE, const Tensor& weight_ED,
                                Float32Products products) {
  if (!by_onednn(dy_RE, weight_ED, products)) return multiply(to, dy_RE, weight_ED);
  put(to, linear_input_gradient(dy_RE, weight_ED, products));
}

void linear_weight_gradient_into(const Place& to, const Tensor& dy_RE, const Tensor& x_RD, Float32Products products) {
  if (!by_onednn(dy_RE, x_RD, products)) return multiply(to, dy_RE.t(), x_RD);
  put(to, linear_weight_gradient(dy_RE, x_RD, products));
}

}  // namespace tamis::ops

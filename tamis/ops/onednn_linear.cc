#include "tamis/ops/onednn_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <string_view>

#include "tamis/base/memory.h"

namespace tamis::ops {
namespace {

using at::Tensor;

constexpr int64_t kReserve = 16 << 20;

/// oneDNN's X W^T with plain matrices, an operator of LibTorch's compiler.
using OneDnnLinear = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                            std::string_view then, c10::List<std::optional<at::Scalar>> scalars,
                            std::optional<std::string_view> algorithm);
using OneDnnHandle = c10::TypedOperatorHandle<OneDnnLinear>;

Tensor call_onednn(const OneDnnHandle& handle, const Tensor& x, const Tensor& weight_ED) {
  check_onednn_memory();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return handle.call(x, weight_ED, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

/// A small product shows whether the operator exists with this signature and takes plain matrices.
std::optional<OneDnnHandle> find_onednn_linear() {
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
  try {
    const auto handle = found->typed<OneDnnLinear>();
    const Tensor ones = at::ones({16, 16}, at::kFloat);
    if ((call_onednn(handle, ones, ones) == 16).all().item().toBool()) return handle;
  } catch (const c10::Error&) {
  }
  return std::nullopt;
}

const std::optional<OneDnnHandle>& onednn_handle() {
  static const std::optional<OneDnnHandle> found = find_onednn_linear();
  return found;
}

/// Contiguous by rows or by columns, as for other matrices oneDNN uses its slow reference code.
Tensor dense(const Tensor& matrix) {
  return matrix.is_contiguous() || matrix.t().is_contiguous() ? matrix : matrix.contiguous();
}

}  // namespace

void check_onednn_memory() {
  static const bool limited = available_address_space() != std::numeric_limits<int64_t>::max();
  // What is left is read, not reserved for a moment: other threads may need it in that moment.
  if (limited && available_address_space() < kReserve) throw std::bad_alloc();
}

bool has_onednn_linear() {
  return onednn_handle().has_value();
}

Tensor onednn_linear(const Tensor& x, const Tensor& weight_ED) {
  return call_onednn(*onednn_handle(), x, dense(weight_ED));
}

}  // namespace tamis::ops

#pragma once

// What the registration of every operator needs.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <vector>

namespace tamis::ops {

/// The dispatcher's handle of an operator: `find_operator<Signature>("tamis::screening").call(...)`.
template <typename Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// Contiguous memory of x's shape and dtype, sizes perhaps symbolic; what it holds is not set.
inline at::Tensor empty_contiguous_like(const at::Tensor& x) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

/// A saved tensor as the optional argument that it was.
inline std::optional<at::Tensor> given(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

/// The gradients of `function(inputs)` for the gradient `grad` of its result, below autograd, where nothing records:
/// detached copies are differentiated with recording switched on again. An input without a gradient gets zeros.
template <typename Function>
std::vector<at::Tensor> gradients_below_autograd(const Function& function, std::vector<at::Tensor> inputs,
                                                 const at::Tensor& grad) {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  const c10::impl::ForceDispatchKeyGuard recorded(keys);
  const at::AutoGradMode enabled(true);
  for (at::Tensor& input : inputs) input = input.detach().requires_grad_();
  const at::Tensor result = function(inputs);
  std::vector<at::Tensor> gradients = torch::autograd::grad({result}, inputs, {grad}, /*retain_graph=*/false,
                                                            /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    gradients[i] = gradients[i].defined() ? gradients[i].contiguous() : at::zeros_like(inputs[i]);
  }
  return gradients;
}

}  // namespace tamis::ops

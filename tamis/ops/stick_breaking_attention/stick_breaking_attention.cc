// tamis::stick_breaking_attention as a torch operator: checks, schema, derivative, registrations. The work is in
// stick_breaking_attention_cpu.cc and, for other devices and dtypes, in stick_breaking_attention_blocked.cc.

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tamis/ops/checks.h"
#include "tamis/ops/registration.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_cpu.h"

namespace tamis::ops {

template <>
struct SchemaOptions<StickBreakingOptions> {
  static constexpr std::tuple kFields{&StickBreakingOptions::scale, &StickBreakingOptions::strict,
                                      &StickBreakingOptions::document};
};

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "stick_breaking_attention";

using Outputs = std::tuple<Tensor, Tensor>;            // out, remainder
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

// ---- checks

void check(const StickBreakingOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attention(kName, q, k, v, range_of(options));
}

void check_gradients(const Tensor& grad, const Tensor& grad_remainder, const Tensor& q, const Tensor& v) {
  check_shape(kName, "grad", grad, {q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
              "B, T_q and H of q, V of v");
  TORCH_CHECK_VALUE(grad.scalar_type() == v.scalar_type(), kName, ": grad must have the dtype of v, ", v.scalar_type(),
                    ", but has ", grad.scalar_type());
  check_shape(kName, "grad_remainder", grad_remainder, q.sym_sizes().slice(0, 3), "B, T_q and H of q");
}

// ---- shapes and dtypes only

Outputs meta(const StickBreakingOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  return {at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options()),
          at::empty_symint(q.sym_sizes().slice(0, 3), v.options().dtype(computing_dtype(v.scalar_type())))};
}

Gradients backward_meta(const StickBreakingOptions& options, const Tensor& grad, const Tensor& grad_remainder,
                        const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  check_gradients(grad, grad_remainder, q, v);
  return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v)};
}

// ---- any device and dtype

Outputs anywhere(const StickBreakingOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  const auto [out, remainder] = stick_breaking_attention_blocked(q, k, v, options);
  return {out.contiguous(), remainder.contiguous()};
}

Gradients backward_anywhere(const StickBreakingOptions& options, const Tensor& grad, const Tensor& grad_remainder,
                            const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  check_gradients(grad, grad_remainder, q, v);
  const auto [dq, dk, dv] = stick_breaking_attention_backward_blocked(grad, grad_remainder, q, k, v, options);
  return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
}

// ---- CPU: the fused kernels, for the dtypes that they support

Outputs on_cpu(const StickBreakingOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!attention_has_fused(q.scalar_type())) return anywhere(options, q, k, v);
  check(options, q, k, v);
  return stick_breaking_attention_cpu(q, k, v, options);
}

Gradients backward_on_cpu(const StickBreakingOptions& options, const Tensor& grad, const Tensor& grad_remainder,
                          const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!attention_has_fused(q.scalar_type())) return backward_anywhere(options, grad, grad_remainder, q, k, v);
  check(options, q, k, v);
  check_gradients(grad, grad_remainder, q, v);
  return stick_breaking_attention_backward_cpu(grad, grad_remainder, q, k, v, options);
}

// ---- the derivative

Outputs call(const StickBreakingOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return call_operator<&meta>("tamis::stick_breaking_attention", options, q, k, v);
}

struct StickBreaking : torch::autograd::Function<StickBreaking> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const StickBreakingOptions& options) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    save_for_backward(ctx, options, {q, k, v});  // weights are computed again
    const auto [out, remainder] = call(options, q, k, v);
    return {out, remainder};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const auto [dq, dk, dv] = call_operator<&backward_meta>("tamis::stick_breaking_attention_backward",
                                                            saved_options<StickBreakingOptions>(ctx, in), grads[0],
                                                            grads[1], in[0], in[1], in[2]);
    return {dq, dk, dv, {}};
  }
};

Outputs with_autograd(const StickBreakingOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  const variable_list out = StickBreaking::apply(q, k, v, options);
  return {out[0], out[1]};
}

}  // namespace

std::tuple<Tensor, Tensor> stick_breaking_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                                                    const StickBreakingOptions& options) {
  return call(options, q_BTHK, k_BTHK, v_BTHV);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "stick_breaking_attention(Tensor q, Tensor k, Tensor v, *, float? scale=None, bool strict=True, "
      "Tensor? document=None) -> (Tensor, Tensor)");
  m.def(
      "stick_breaking_attention_backward(Tensor grad, Tensor grad_remainder, Tensor q, Tensor k, Tensor v, *, "
      "float? scale=None, bool strict=True, Tensor? document=None) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("stick_breaking_attention", schema_form<&on_cpu>);
  m.impl("stick_breaking_attention_backward", schema_form<&backward_on_cpu>);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("stick_breaking_attention", schema_form<&meta>);
  m.impl("stick_breaking_attention_backward", schema_form<&backward_meta>);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("stick_breaking_attention", schema_form<&anywhere>);
  m.impl("stick_breaking_attention_backward", schema_form<&backward_anywhere>);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("stick_breaking_attention", schema_form<&with_autograd>);
  m.impl("stick_breaking_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

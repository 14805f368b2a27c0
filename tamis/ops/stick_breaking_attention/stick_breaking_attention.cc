// tamis::stick_breaking_attention as a torch operator: checks, schema, derivative, registrations. The work is in
// stick_breaking_attention_cpu.cc and, for other devices and dtypes, in stick_breaking_attention_reference.cc.

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tamis/ops/registration.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_cpu.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "stick_breaking_attention";

// ---- checks

void check(const Tensor& q, const Tensor& k, const Tensor& v, const StickBreakingOptions& options) {
  check_attention(kName, q, k, v, range_of(options));
}

void check_gradients(const Tensor& grad, const Tensor& grad_remainder, const Tensor& q, const Tensor& v) {
  TORCH_CHECK_VALUE(grad.dim() == 4 && grad.sym_size(0) == q.sym_size(0) && grad.sym_size(1) == q.sym_size(1) &&
                        grad.sym_size(2) == q.sym_size(2) && grad.sym_size(3) == v.sym_size(3),
                    kName, ": grad must have the shape of out, [B, T_q, H] of q ", q.sym_sizes(), " and V of v ",
                    v.sym_sizes(), ", but has ", grad.sym_sizes());
  TORCH_CHECK_VALUE(grad.scalar_type() == v.scalar_type(), kName, ": grad must have the dtype of v, ", v.scalar_type(),
                    ", but has ", grad.scalar_type());
  TORCH_CHECK_VALUE(grad_remainder.sym_sizes() == q.sym_sizes().slice(0, 3), kName,
                    ": grad_remainder must have the shape [B, T_q, H] of q ", q.sym_sizes(), ", but has ",
                    grad_remainder.sym_sizes());
}

// ---- schema: every form of the operator takes these arguments and turns them into StickBreakingOptions

#define TAMIS_STICK_BREAKING_ARGUMENTS                                                                       \
  const Tensor &q, const Tensor &k, const Tensor &v, optional<double> scale, bool strict, int64_t key_start, \
      const optional<Tensor>&document
#define TAMIS_STICK_BREAKING_PASS q, k, v, scale, strict, key_start, document

using Outputs = std::tuple<Tensor, Tensor>;            // out, remainder
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

StickBreakingOptions checked_options(TAMIS_STICK_BREAKING_ARGUMENTS) {
  const StickBreakingOptions options{.scale = scale, .strict = strict, .key_start = key_start, .document = document};
  check(q, k, v, options);
  return options;
}

// ---- shapes and dtypes only

Outputs meta(TAMIS_STICK_BREAKING_ARGUMENTS) {
  checked_options(TAMIS_STICK_BREAKING_PASS);
  return {at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options()),
          at::empty_symint(q.sym_sizes().slice(0, 3), v.options().dtype(computing_dtype(v.scalar_type())))};
}

Gradients backward_meta(const Tensor& grad, const Tensor& grad_remainder, TAMIS_STICK_BREAKING_ARGUMENTS) {
  checked_options(TAMIS_STICK_BREAKING_PASS);
  check_gradients(grad, grad_remainder, q, v);
  return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v)};
}

// ---- the definition, on any device and dtype

Outputs fallback(TAMIS_STICK_BREAKING_ARGUMENTS) {
  const auto [out, remainder] =
      reference::stick_breaking_attention(q, k, v, checked_options(TAMIS_STICK_BREAKING_PASS));
  return {out.contiguous(), remainder.contiguous()};
}

Gradients backward_fallback(const Tensor& grad, const Tensor& grad_remainder, TAMIS_STICK_BREAKING_ARGUMENTS) {
  const StickBreakingOptions options = checked_options(TAMIS_STICK_BREAKING_PASS);
  check_gradients(grad, grad_remainder, q, v);
  // Of a sum whose gradients by out and remainder are the given ones.
  const auto weighted = [&](const variable_list& in) {
    const auto [out, remainder] = reference::stick_breaking_attention(in[0], in[1], in[2], options);
    return (out * grad).sum().to(remainder.scalar_type()) + (remainder * grad_remainder).sum();
  };
  const Tensor one = at::ones({}, v.options().dtype(computing_dtype(v.scalar_type())));
  const variable_list d = gradients_below_autograd(weighted, {q, k, v}, one);
  return {d[0], d[1], d[2]};
}

// ---- CPU: the fused kernels, for the dtypes they know

Outputs on_cpu(TAMIS_STICK_BREAKING_ARGUMENTS) {
  if (!attention_has_fused(q.scalar_type())) return fallback(TAMIS_STICK_BREAKING_PASS);
  return stick_breaking_attention_cpu(q, k, v, checked_options(TAMIS_STICK_BREAKING_PASS));
}

Gradients backward_on_cpu(const Tensor& grad, const Tensor& grad_remainder, TAMIS_STICK_BREAKING_ARGUMENTS) {
  if (!attention_has_fused(q.scalar_type())) return backward_fallback(grad, grad_remainder, TAMIS_STICK_BREAKING_PASS);
  const StickBreakingOptions options = checked_options(TAMIS_STICK_BREAKING_PASS);
  check_gradients(grad, grad_remainder, q, v);
  return stick_breaking_attention_backward_cpu(grad, grad_remainder, q, k, v, options);
}

// ---- the derivative

Outputs call(TAMIS_STICK_BREAKING_ARGUMENTS) {
  static const auto op = find_operator<decltype(meta)>("tamis::stick_breaking_attention");
  return op.call(TAMIS_STICK_BREAKING_PASS);
}

struct StickBreaking : torch::autograd::Function<StickBreaking> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               optional<double> scale, bool strict, int64_t key_start,
                               const optional<Tensor>& document) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({q, k, v, document.value_or(Tensor())});  // inputs only: weights are recomputed
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["strict"] = strict;
    ctx->saved_data["key_start"] = key_start;
    const auto [out, remainder] = call(TAMIS_STICK_BREAKING_PASS);
    return {out, remainder};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = find_operator<decltype(backward_meta)>("tamis::stick_breaking_attention_backward");
    const variable_list in = ctx->get_saved_variables();
    const auto [dq, dk, dv] =
        op.call(grads[0], grads[1], in[0], in[1], in[2], ctx->saved_data["scale"].toOptional<double>(),
                ctx->saved_data["strict"].toBool(), ctx->saved_data["key_start"].toInt(), given(in[3]));
    return {dq, dk, dv, {}, {}, {}, {}};
  }
};

Outputs with_autograd(TAMIS_STICK_BREAKING_ARGUMENTS) {
  const variable_list out = StickBreaking::apply(TAMIS_STICK_BREAKING_PASS);
  return {out[0], out[1]};
}

}  // namespace

std::tuple<Tensor, Tensor> stick_breaking_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                                                    const StickBreakingOptions& options) {
  return call(q_BTHK, k_BTHK, v_BTHV, options.scale, options.strict, options.key_start, options.document);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "stick_breaking_attention(Tensor q, Tensor k, Tensor v, *, float? scale=None, bool strict=True, "
      "int key_start=0, Tensor? document=None) -> (Tensor, Tensor)");
  m.def(
      "stick_breaking_attention_backward(Tensor grad, Tensor grad_remainder, Tensor q, Tensor k, Tensor v, *, "
      "float? scale=None, bool strict=True, int key_start=0, Tensor? document=None) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("stick_breaking_attention", &on_cpu);
  m.impl("stick_breaking_attention_backward", &backward_on_cpu);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("stick_breaking_attention", &meta);
  m.impl("stick_breaking_attention_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("stick_breaking_attention", &fallback);
  m.impl("stick_breaking_attention_backward", &backward_fallback);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("stick_breaking_attention", &with_autograd);
  m.impl("stick_breaking_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

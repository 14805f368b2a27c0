// tamis::softmax_attention as a torch operator: checks, schema, derivative, registrations. The scales of
// Scalable-Softmax are plain torch (softmax_attention_scale.cc); what they multiply is tamis::_softmax_attention, whose
// work is in softmax_attention_cpu.cc and, for other devices and dtypes, in softmax_attention_blocked.cc.

#include "tamis/ops/softmax_attention/softmax_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "tamis/ops/checks.h"
#include "tamis/ops/registration.h"
#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"
#include "tamis/ops/softmax_attention/softmax_attention_cpu.h"
#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::ops {

template <>
struct SchemaOptions<SoftmaxAttentionOptions> {
  using Options = SoftmaxAttentionOptions;
  static constexpr std::tuple kFields{&Options::scale,     &Options::window,   &Options::strict,
                                      &Options::log_scale, &Options::log_bias, &Options::position_scale,
                                      &Options::key_start, &Options::document};
};

template <>
struct SchemaOptions<ScaledAttentionOptions> {
  static constexpr std::tuple kFields{&ScaledAttentionOptions::query_scale, &ScaledAttentionOptions::scale,
                                      &ScaledAttentionOptions::window, &ScaledAttentionOptions::strict,
                                      &ScaledAttentionOptions::document};
};

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "softmax_attention";

using Forward = std::tuple<Tensor, Tensor, Tensor>;            // result, the same in float32, statistics
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, query_scale

// ---- shapes and dtypes only

/// The result in float32, where it is something else.
Tensor saved_out_meta(const Tensor& q, const Tensor& v) {
  const auto options = v.options().dtype(at::kFloat);
  if (v.scalar_type() != at::kBFloat16) return at::empty({0}, options);
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, options);
}

Forward inner_meta(const ScaledAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attention(kName, q, k, v, options.range());
  TORCH_CHECK_VALUE(std::isfinite(options.scale), kName, ": scale must be finite, but is ", options.scale);
  if (options.query_scale) {
    check_shape(kName, "query_scale", *options.query_scale, q.sym_sizes().slice(0, 3), "B, T_q and H of q");
  }
  return {at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options()),
          saved_out_meta(q, v),
          at::empty_symint({q.sym_size(0), q.sym_size(2), q.sym_size(1), 2}, v.options().dtype(at::kFloat))};
}

Gradients inner_backward_meta(const ScaledAttentionOptions& options, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor& q, const Tensor& k, const Tensor& v) {
  inner_meta(options, q, k, v);  // checks
  return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v),
          options.query_scale ? empty_contiguous_like(*options.query_scale) : at::empty({0}, q.options())};
}

// ---- any device and dtype

Forward inner_anywhere(const ScaledAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor out = softmax_attention_blocked(q, k, v, options);
  const Tensor saved = v.scalar_type() == at::kBFloat16 ? out : at::empty({0}, out.options().dtype(at::kFloat));
  // The backward pass computes the statistics again.
  const Tensor statistics = at::zeros({q.size(0), q.size(2), q.size(1), 2}, v.options().dtype(at::kFloat));
  return {out.to(v.scalar_type()).contiguous(), saved.contiguous(), statistics};
}

Gradients inner_backward_anywhere(const ScaledAttentionOptions& options, const Tensor& grad, const Tensor&,
                                  const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto [dq, dk, dv, d_scale] = softmax_attention_backward_blocked(grad, q, k, v, options);
  return {dq.contiguous(), dk.contiguous(), dv.contiguous(), d_scale.contiguous()};
}

// ---- CPU

Forward inner_cpu(const ScaledAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!attention_has_fused(q.scalar_type())) return inner_anywhere(options, q, k, v);
  return softmax_attention_cpu(q, k, v, options);
}

Gradients inner_backward_cpu(const ScaledAttentionOptions& options, const Tensor& grad, const Tensor& out,
                             const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!attention_has_fused(q.scalar_type())) return inner_backward_anywhere(options, grad, out, statistics, q, k, v);
  return softmax_attention_backward_cpu(grad, q, k, v, out, statistics, options);
}

// ---- the derivative

Forward call_inner(const ScaledAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return call_operator<&inner_meta>("tamis::_softmax_attention", options, q, k, v);
}

struct InnerFunction : torch::autograd::Function<InnerFunction> {
  /// `query_scale` is that of the options: autograd only tracks arguments.
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const optional<Tensor>& /*query_scale*/, const ScaledAttentionOptions& options) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, out_float32, statistics] = call_inner(options, q, k, v);
    save_for_backward(ctx, options, {q, k, v, out_float32.numel() > 0 ? out_float32 : out, statistics});
    ctx->mark_non_differentiable({out_float32, statistics});
    return {out, out_float32, statistics};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const auto options = saved_options<ScaledAttentionOptions>(ctx, in);
    const auto [dq, dk, dv, d_scale] = call_operator<&inner_backward_meta>(
        "tamis::_softmax_attention_backward", options, grads[0], in[3], in[4], in[0], in[1], in[2]);
    return {dq, dk, dv, options.query_scale ? d_scale : Tensor(), {}};
  }
};

Forward inner_autograd(const ScaledAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  const variable_list out = InnerFunction::apply(q, k, v, options.query_scale, options);
  return {out[0], out[1], out[2]};
}

// ---- the operator

void check(const SoftmaxAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  TORCH_CHECK_VALUE(std::isfinite(options.scale.value_or(1)), kName, ": scale must be finite, but is ",
                    options.scale.value_or(1));
  TORCH_CHECK_VALUE(options.key_start >= 0, kName, ": key_start must not be negative, but is ", options.key_start);
  check_attention(kName, q, k, v, {.window = options.window, .strict = options.strict, .document = options.document});
  if (options.log_scale) check_per_head(kName, "log_scale", *options.log_scale, q);
  if (options.log_bias) check_per_head(kName, "log_bias", *options.log_bias, q);
  TORCH_CHECK_VALUE(options.log_scale || !options.log_bias, kName, ": log_bias needs log_scale");
  TORCH_CHECK_VALUE(options.log_scale || !options.position_scale, kName, ": position_scale needs log_scale");
  if (options.position_scale) {
    TORCH_CHECK_VALUE(options.position_scale->dim() == 1 && options.position_scale->sym_size(0) >= 1, kName,
                      ": position_scale must have the shape [P], P >= 1, but has ",
                      options.position_scale->sym_sizes());
  }
}

Tensor with_scales(const SoftmaxAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  ScaledAttentionOptions inner = scaled(options, q, k);
  if (inner.query_scale) inner.query_scale = inner.query_scale->expand({q.size(0), q.size(1), q.size(2)});
  return std::get<0>(call_inner(inner, q, k, v));
}

}  // namespace

Tensor softmax_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                         const SoftmaxAttentionOptions& options) {
  return with_scales(options, q_BTHK, k_BTHK, v_BTHV);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "softmax_attention(Tensor q, Tensor k, Tensor v, *, float? scale=None, int? window=None, "
      "bool strict=False, Tensor? log_scale=None, Tensor? log_bias=None, Tensor? position_scale=None, int key_start=0, "
      "Tensor? document=None) -> Tensor");
  m.def(
      "_softmax_attention(Tensor q, Tensor k, Tensor v, Tensor? query_scale, float scale, int? window, "
      "bool strict, Tensor? document) -> (Tensor, Tensor, Tensor)");
  m.def(
      "_softmax_attention_backward(Tensor grad, Tensor out, Tensor statistics, Tensor q, Tensor k, Tensor v, "
      "Tensor? query_scale, float scale, int? window, bool strict, Tensor? document) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CompositeImplicitAutograd, m) {
  m.impl("softmax_attention", schema_form<&with_scales>);
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("_softmax_attention", schema_form<&inner_cpu>);
  m.impl("_softmax_attention_backward", schema_form<&inner_backward_cpu>);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("_softmax_attention", schema_form<&inner_meta>);
  m.impl("_softmax_attention_backward", schema_form<&inner_backward_meta>);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("_softmax_attention", schema_form<&inner_anywhere>);
  m.impl("_softmax_attention_backward", schema_form<&inner_backward_anywhere>);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("_softmax_attention", schema_form<&inner_autograd>);
  m.impl("_softmax_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

// tamis::softmax_attention as a torch operator: checks, schema, derivative, registrations. The scales of
// Scalable-Softmax are plain torch (softmax_attention_scale.cc); what they multiply is tamis::_softmax_attention, whose
// work is in softmax_attention_cpu.cc and, for other devices and dtypes, in plain torch.

#include "tamis/ops/softmax_attention/softmax_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "tamis/ops/registration.h"
#include "tamis/ops/softmax_attention/softmax_attention_cpu.h"
#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "softmax_attention";

// ---- checks

void check_per_head(const char* name, const optional<Tensor>& x, const Tensor& q) {
  if (!x) return;
  TORCH_CHECK_VALUE(x->scalar_type() == at::kFloat || x->scalar_type() == at::kDouble, kName, ": ", name,
                    " must be float32 or float64, but is ", x->scalar_type());
  TORCH_CHECK_VALUE(x->dim() == 1 && x->sym_size(0) == q.sym_size(2), kName, ": ", name, " must have the shape [",
                    q.sym_size(2), "] (one number per head of q), but has ", x->sym_sizes());
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const SoftmaxAttentionOptions& options) {
  TORCH_CHECK_VALUE(std::isfinite(options.scale.value_or(1)), kName, ": scale must be finite, but is ",
                    options.scale.value_or(1));
  check_attention(kName, q, k, v, range_of(options));
  check_per_head("log_scale", options.log_scale, q);
  check_per_head("log_bias", options.log_bias, q);
  TORCH_CHECK_VALUE(options.log_scale || !options.log_bias, kName, ": log_bias needs log_scale");
  TORCH_CHECK_VALUE(options.log_scale || !options.position_scale, kName, ": position_scale needs log_scale");
  if (options.position_scale) {
    TORCH_CHECK_VALUE(options.position_scale->dim() == 1 && options.position_scale->sym_size(0) >= 1, kName,
                      ": position_scale must have the shape [P], P >= 1, but has ",
                      options.position_scale->sym_sizes());
  }
}

// ---- schema of the inner operator

#define TAMIS_SOFTMAX_ARGUMENTS                                                                        \
  const Tensor &q, const Tensor &k, const Tensor &v, const optional<Tensor>&query_scale, double scale, \
      optional<int64_t> window, const optional<Tensor>&document
#define TAMIS_SOFTMAX_PASS q, k, v, query_scale, scale, window, document

AttentionRange make_range(optional<int64_t> window, const optional<Tensor>& document) {
  return {.window = window, .document = document};
}

using Forward = std::tuple<Tensor, Tensor, Tensor>;            // result, the same in float32, statistics
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, query_scale

/// The result in float32, where it is something else.
Tensor saved_out_meta(const Tensor& q, const Tensor& v) {
  const auto options = v.options().dtype(at::kFloat);
  if (v.scalar_type() != at::kBFloat16) return at::empty({0}, options);
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, options);
}

Forward inner_meta(TAMIS_SOFTMAX_ARGUMENTS) {
  check_attention(kName, q, k, v, make_range(window, document));
  TORCH_CHECK_VALUE(std::isfinite(scale), kName, ": scale must be finite, but is ", scale);
  if (query_scale) {
    TORCH_CHECK_VALUE(query_scale->sym_sizes() == q.sym_sizes().slice(0, 3), kName,
                      ": query_scale must have the shape of q up to the last dimension, ", q.sym_sizes(), ", but has ",
                      query_scale->sym_sizes());
  }
  return {at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options()),
          saved_out_meta(q, v),
          at::empty_symint({q.sym_size(0), q.sym_size(2), q.sym_size(1), 2}, v.options().dtype(at::kFloat))};
}

Gradients inner_backward_meta(const Tensor&, const Tensor&, const Tensor&, TAMIS_SOFTMAX_ARGUMENTS) {
  inner_meta(TAMIS_SOFTMAX_PASS);  // checks
  return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v),
          query_scale ? empty_contiguous_like(*query_scale) : at::empty({0}, q.options())};
}

// ---- the definition, on any device and dtype

Forward inner_fallback(TAMIS_SOFTMAX_ARGUMENTS) {
  const Tensor out = reference::attend(q, k, v, {scale, query_scale}, make_range(window, document)).contiguous();
  const auto options = v.options().dtype(at::kFloat);
  return {out, at::empty({0}, options), at::empty({q.size(0), q.size(2), q.size(1), 2}, options)};
}

Gradients inner_backward_fallback(const Tensor& grad, const Tensor&, const Tensor&, TAMIS_SOFTMAX_ARGUMENTS) {
  const AttentionRange range = make_range(window, document);
  std::vector<Tensor> inputs = {q, k, v};
  if (query_scale) inputs.push_back(*query_scale);
  const auto function = [&](const std::vector<Tensor>& in) {
    return reference::attend(in[0], in[1], in[2], {scale, query_scale ? optional(in[3]) : std::nullopt}, range);
  };
  const std::vector<Tensor> gradients = gradients_below_autograd(function, std::move(inputs), grad);
  return {gradients[0], gradients[1], gradients[2], query_scale ? gradients[3] : at::empty({0}, q.options())};
}

// ---- CPU

Forward inner_cpu(TAMIS_SOFTMAX_ARGUMENTS) {
  if (!attention_has_fused(q.scalar_type())) return inner_fallback(TAMIS_SOFTMAX_PASS);
  return softmax_attention_cpu(q, k, v, {scale, query_scale}, make_range(window, document));
}

Gradients inner_backward_cpu(const Tensor& grad, const Tensor& out, const Tensor& statistics, TAMIS_SOFTMAX_ARGUMENTS) {
  if (!attention_has_fused(q.scalar_type())) return inner_backward_fallback(grad, out, statistics, TAMIS_SOFTMAX_PASS);
  return softmax_attention_backward_cpu(grad, q, k, v, out, statistics, {scale, query_scale},
                                        make_range(window, document));
}

// ---- the derivative

Forward call_inner(TAMIS_SOFTMAX_ARGUMENTS) {
  static const auto op = find_operator<decltype(inner_meta)>("tamis::_softmax_attention");
  return op.call(TAMIS_SOFTMAX_PASS);
}

struct InnerFunction : torch::autograd::Function<InnerFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const optional<Tensor>& query_scale, double scale, optional<int64_t> window,
                               const optional<Tensor>& document) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, out_float32, statistics] = call_inner(TAMIS_SOFTMAX_PASS);
    ctx->save_for_backward({q, k, v, out_float32.numel() > 0 ? out_float32 : out, statistics,
                            query_scale.value_or(Tensor()), document.value_or(Tensor())});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    ctx->mark_non_differentiable({out_float32, statistics});
    return {out, out_float32, statistics};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = find_operator<decltype(inner_backward_meta)>("tamis::_softmax_attention_backward");
    const variable_list in = ctx->get_saved_variables();
    auto [dq, dk, dv, d_scale] =
        op.call(grads[0], in[3], in[4], in[0], in[1], in[2], given(in[5]), ctx->saved_data["scale"].toDouble(),
                ctx->saved_data["window"].toOptional<int64_t>(), given(in[6]));
    return {dq, dk, dv, in[5].defined() ? d_scale : Tensor(), {}, {}, {}};
  }
};

Forward inner_autograd(TAMIS_SOFTMAX_ARGUMENTS) {
  const variable_list out = InnerFunction::apply(TAMIS_SOFTMAX_PASS);
  return {out[0], out[1], out[2]};
}

// ---- the operator

Tensor with_scales(const Tensor& q, const Tensor& k, const Tensor& v, const SoftmaxAttentionOptions& options) {
  check(q, k, v, options);
  optional<Tensor> factor = query_scale(options, q, k);
  if (factor) factor = factor->expand({q.size(0), q.size(1), q.size(2)});
  return std::get<0>(
      call_inner(q, k, v, factor, score_scale(options.scale, q.size(3)), options.window, options.document));
}

Tensor softmax_attention_composite(const Tensor& q, const Tensor& k, const Tensor& v, optional<double> scale,
                                   optional<int64_t> window, const optional<Tensor>& log_scale,
                                   const optional<Tensor>& log_bias, const optional<Tensor>& position_scale,
                                   int64_t key_start, const optional<Tensor>& document) {
  return with_scales(q, k, v,
                     {.scale = scale,
                      .window = window,
                      .log_scale = log_scale,
                      .log_bias = log_bias,
                      .position_scale = position_scale,
                      .key_start = key_start,
                      .document = document});
}

}  // namespace

Tensor softmax_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                         const SoftmaxAttentionOptions& options) {
  return with_scales(q_BTHK, k_BTHK, v_BTHV, options);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "softmax_attention(Tensor q, Tensor k, Tensor v, *, float? scale=None, int? window=None, "
      "Tensor? log_scale=None, Tensor? log_bias=None, Tensor? position_scale=None, int key_start=0, "
      "Tensor? document=None) -> Tensor");
  m.def(
      "_softmax_attention(Tensor q, Tensor k, Tensor v, Tensor? query_scale, float scale, int? window, "
      "Tensor? document) -> (Tensor, Tensor, Tensor)");
  m.def(
      "_softmax_attention_backward(Tensor grad, Tensor out, Tensor statistics, Tensor q, Tensor k, Tensor v, "
      "Tensor? query_scale, float scale, int? window, Tensor? document) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CompositeImplicitAutograd, m) {
  m.impl("softmax_attention", &softmax_attention_composite);
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("_softmax_attention", &inner_cpu);
  m.impl("_softmax_attention_backward", &inner_backward_cpu);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("_softmax_attention", &inner_meta);
  m.impl("_softmax_attention_backward", &inner_backward_meta);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("_softmax_attention", &inner_fallback);
  m.impl("_softmax_attention_backward", &inner_backward_fallback);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("_softmax_attention", &inner_autograd);
  m.impl("_softmax_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

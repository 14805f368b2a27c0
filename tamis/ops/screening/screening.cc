// tamis::screening as a torch operator: checks, schema, derivative, registrations. The work is in screening_cpu.cc and,
// for other devices and dtypes, in screening_reference.cc.

#include "tamis/ops/screening/screening.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "tamis/ops/registration.h"
#include "tamis/ops/screening/screening_cpu.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- checks

void check_shape(const char* name, const Tensor& x, at::SymIntArrayRef expected, const char* meaning) {
  TORCH_CHECK_VALUE(x.sym_sizes() == expected, "screening: ", name, " must have the shape ", expected, " (", meaning,
                    "), but has ", x.sym_sizes());
}

void check_like(const char* name, const Tensor& x, const Tensor& q) {
  TORCH_CHECK_VALUE(x.device() == q.device(), "screening: ", name, " must be on the device of q, ", q.device(),
                    ", but is on ", x.device());
  TORCH_CHECK_VALUE(x.scalar_type() == q.scalar_type(), "screening: ", name, " must have the dtype of q, ",
                    q.scalar_type(), ", but has ", x.scalar_type());
}

void check_scalar_per_head(const char* name, const Tensor& x, const Tensor& q) {
  TORCH_CHECK_VALUE(x.device() == q.device(), "screening: ", name, " must be on the device of q, ", q.device(),
                    ", but is on ", x.device());
  TORCH_CHECK_VALUE(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, "screening: ", name,
                    " must be float32 or float64, but is ", x.scalar_type());
  check_shape(name, x, {q.sym_size(2)}, "one number per head of q");
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
           const ScreeningOptions& options) {
  TORCH_CHECK_VALUE(q.dim() == 4, "screening: q must have 4 dimensions [B, T_q, H, K], but has ", q.sym_sizes());
  TORCH_CHECK_VALUE(at::isFloatingType(q.scalar_type()), "screening: q must be floating point, but is ",
                    q.scalar_type());
  TORCH_CHECK_VALUE(q.sym_size(3) >= 2, "screening: q needs K >= 2 dimensions for MiPE to rotate, but has the shape ",
                    q.sym_sizes());
  TORCH_CHECK_VALUE(k.dim() == 4 && k.sym_size(0) == q.sym_size(0) && k.sym_size(1) >= q.sym_size(1) &&
                        k.sym_size(2) == q.sym_size(2) && k.sym_size(3) == q.sym_size(3),
                    "screening: k must have the shape of q ", q.sym_sizes(), " or more positions, but has ",
                    k.sym_sizes());
  TORCH_CHECK_VALUE(v.dim() == 4 && v.sym_size(0) == k.sym_size(0) && v.sym_size(1) == k.sym_size(1) &&
                        v.sym_size(2) == k.sym_size(2) && v.sym_size(3) >= 1,
                    "screening: v must have the shape of k ", k.sym_sizes(), " up to the last dimension, but has ",
                    v.sym_sizes());
  check_like("k", k, q);
  check_like("v", v, q);
  check_scalar_per_head("s_w", s_w, q);
  check_scalar_per_head("s_r", s_r, q);
  if (options.gate) {
    check_like("gate", *options.gate, q);
    check_shape("gate", *options.gate, {q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
                "B, T_q and H of q, V of v");
  }
  if (options.document) {
    const Tensor& document = *options.document;
    TORCH_CHECK_VALUE(document.device() == q.device(), "screening: document must be on the device of q, ", q.device(),
                      ", but is on ", document.device());
    TORCH_CHECK_VALUE(at::isIntegralType(document.scalar_type(), /*includeBool=*/false),
                      "screening: document must hold integers, but is ", document.scalar_type());
    check_shape("document", document, {k.sym_size(0), k.sym_size(1)}, "B and T_k of k");
  }
  TORCH_CHECK_VALUE(options.mipe_threshold > 0, "screening: mipe_threshold must be positive, but is ",
                    options.mipe_threshold);
  TORCH_CHECK_VALUE(options.key_start >= 0, "screening: key_start must not be negative, but is ", options.key_start);
  TORCH_CHECK_VALUE(options.position == "mipe" || options.position == "none",
                    "screening: position must be \"mipe\" or \"none\", but is \"", options.position, "\"");
}

// ---- schema: every form of the operator takes these arguments and turns them into ScreeningOptions

#define TAMIS_SCREENING_OPTIONS                                                                          \
  const optional<Tensor>&gate, double mipe_threshold, int64_t key_start, optional<double> expand_beyond, \
      bool tanh_norm, c10::string_view position, const optional<Tensor>&document
#define TAMIS_SCREENING_PASS gate, mipe_threshold, key_start, expand_beyond, tanh_norm, position, document

ScreeningOptions make_options(TAMIS_SCREENING_OPTIONS) {
  return {.gate = gate,
          .mipe_threshold = mipe_threshold,
          .key_start = key_start,
          .expand_beyond = expand_beyond,
          .tanh_norm = tanh_norm,
          .position = std::string(position),
          .document = document};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, s_w, s_r, gate

// ---- shapes and dtypes only

Tensor screening_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                      TAMIS_SCREENING_OPTIONS) {
  check(q, k, v, s_w, s_r, make_options(TAMIS_SCREENING_PASS));
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options());
}

Gradients screening_backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w,
                                  const Tensor& s_r, TAMIS_SCREENING_OPTIONS) {
  check(q, k, v, s_w, s_r, make_options(TAMIS_SCREENING_PASS));
  return {empty_contiguous_like(q),   empty_contiguous_like(k),
          empty_contiguous_like(v),   empty_contiguous_like(s_w),
          empty_contiguous_like(s_r), gate ? empty_contiguous_like(*gate) : at::empty_symint({0}, q.options())};
}

// ---- the definition, on any device and dtype

Tensor screening_fallback(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                          TAMIS_SCREENING_OPTIONS) {
  const ScreeningOptions options = make_options(TAMIS_SCREENING_PASS);
  check(q, k, v, s_w, s_r, options);
  return reference::screening(q, k, v, s_w, s_r, options).contiguous();
}

Gradients screening_backward_fallback(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& s_w, const Tensor& s_r, TAMIS_SCREENING_OPTIONS) {
  ScreeningOptions options = make_options(TAMIS_SCREENING_PASS);
  check(q, k, v, s_w, s_r, options);
  variable_list in = {q, k, v, s_w, s_r};
  if (gate) in.push_back(*gate);
  const auto function = [&](const variable_list& x) {
    if (gate) options.gate = x[5];
    return reference::screening(x[0], x[1], x[2], x[3], x[4], options);
  };
  variable_list d = gradients_below_autograd(function, in, grad);
  if (!gate) d.push_back(at::empty({0}, q.options()));
  return {d[0], d[1], d[2], d[3], d[4], d[5]};
}

// ---- CPU: the fused kernels, for the dtypes they know

Tensor screening_on_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                        TAMIS_SCREENING_OPTIONS) {
  if (!screening_has_fused(q.scalar_type())) return screening_fallback(q, k, v, s_w, s_r, TAMIS_SCREENING_PASS);
  const ScreeningOptions options = make_options(TAMIS_SCREENING_PASS);
  check(q, k, v, s_w, s_r, options);
  return screening_cpu(q, k, v, s_w, s_r, options);
}

Gradients screening_backward_on_cpu(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& s_w, const Tensor& s_r, TAMIS_SCREENING_OPTIONS) {
  if (!screening_has_fused(q.scalar_type()))
    return screening_backward_fallback(grad, q, k, v, s_w, s_r, TAMIS_SCREENING_PASS);
  const ScreeningOptions options = make_options(TAMIS_SCREENING_PASS);
  check(q, k, v, s_w, s_r, options);
  const auto [dq, dk, dv, dgate] = empty_gradients(q, k, v, gate);
  const auto [ds_w, ds_r] = screening_backward_cpu(grad, q, k, v, s_w, s_r, options, {dq, dk, dv, dgate});
  return {dq, dk, dv, ds_w, ds_r, dgate ? *dgate : at::empty({0}, q.options())};
}

// ---- the derivative

Tensor call_screening(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                      TAMIS_SCREENING_OPTIONS) {
  static const auto op = find_operator<decltype(screening_meta)>("tamis::screening");
  return op.call(q, k, v, s_w, s_r, TAMIS_SCREENING_PASS);
}

Gradients call_screening_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& s_w, const Tensor& s_r, TAMIS_SCREENING_OPTIONS) {
  static const auto op = find_operator<decltype(screening_backward_meta)>("tamis::screening_backward");
  return op.call(grad, q, k, v, s_w, s_r, TAMIS_SCREENING_PASS);
}

struct Screening : torch::autograd::Function<Screening> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w,
                        const Tensor& s_r, const optional<Tensor>& gate, double mipe_threshold, int64_t key_start,
                        optional<double> expand_beyond, bool tanh_norm, std::string position,
                        const optional<Tensor>& document) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    // Inputs only: similarities and weights are recomputed.
    ctx->save_for_backward({q, k, v, s_w, s_r, gate.value_or(Tensor()), document.value_or(Tensor())});
    ctx->saved_data["mipe_threshold"] = mipe_threshold;
    ctx->saved_data["key_start"] = key_start;
    ctx->saved_data["expand_beyond"] = expand_beyond;
    ctx->saved_data["tanh_norm"] = tanh_norm;
    ctx->saved_data["position"] = position;
    return call_screening(q, k, v, s_w, s_r, TAMIS_SCREENING_PASS);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    auto [dq, dk, dv, ds_w, ds_r, dgate] = call_screening_backward(
        grads[0], in[0], in[1], in[2], in[3], in[4], given(in[5]), ctx->saved_data["mipe_threshold"].toDouble(),
        ctx->saved_data["key_start"].toInt(), ctx->saved_data["expand_beyond"].toOptional<double>(),
        ctx->saved_data["tanh_norm"].toBool(), ctx->saved_data["position"].toStringView(), given(in[6]));
    return {dq, dk, dv, ds_w, ds_r, in[5].defined() ? dgate : Tensor(), {}, {}, {}, {}, {}, {}};
  }
};

Tensor screening_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                          TAMIS_SCREENING_OPTIONS) {
  return Screening::apply(q, k, v, s_w, s_r, gate, mipe_threshold, key_start, expand_beyond, tanh_norm,
                          std::string(position), document);
}

ScreeningOptions gated(const ScreeningOptions& options, const optional<Tensor>& gate) {
  ScreeningOptions result = options;
  result.gate = gate;
  return result;
}

}  // namespace

Tensor screening(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Tensor& s_w_H,
                 const Tensor& s_r_H, const ScreeningOptions& options) {
  return call_screening(q_BTHK, k_BTHK, v_BTHV, s_w_H, s_r_H, options.gate, options.mipe_threshold, options.key_start,
                        options.expand_beyond, options.tanh_norm, options.position, options.document);
}

Tensor screening(const ScreeningProjections& in, const Tensor& s_w_H, const Tensor& s_r_H,
                 const ScreeningOptions& options) {
  return screening(in.q_BTHK, in.k_BTHK, in.v_BTHV, s_w_H, s_r_H, gated(options, in.gate_BTHV));
}

std::pair<Tensor, Tensor> screening_backward_into(const Tensor& grad, const ScreeningProjections& in, const Tensor& s_w,
                                                  const Tensor& s_r, const ScreeningOptions& options,
                                                  const ScreeningProjections& gradients, const Tensor& result) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& [q, k, v, gate] = in;
  TORCH_INTERNAL_ASSERT(!result.defined() || (result.sizes() == grad.sizes() && result.dtype() == v.dtype()));
  if (q.device().is_cpu() && screening_has_fused(q.scalar_type())) {
    const ScreeningOptions with_gate = gated(options, gate);
    check(q, k, v, s_w, s_r, with_gate);
    return screening_backward_cpu(grad, q, k, v, s_w, s_r, with_gate, gradients, result);
  }
  const auto [dq, dk, dv, ds_w, ds_r, dgate] =
      call_screening_backward(grad, q, k, v, s_w, s_r, gate, options.mipe_threshold, options.key_start,
                              options.expand_beyond, options.tanh_norm, options.position, options.document);
  gradients.q_BTHK.copy_(dq);
  gradients.k_BTHK.copy_(dk);
  gradients.v_BTHV.copy_(dv);
  if (gate) gradients.gate_BTHV->copy_(dgate);
  if (result.defined()) result.copy_(screening(in, s_w, s_r, options));
  return {ds_w, ds_r};
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "screening(Tensor q, Tensor k, Tensor v, Tensor s_w, Tensor s_r, *, Tensor? gate=None, "
      "float mipe_threshold=256.0, int key_start=0, float? expand_beyond=None, bool tanh_norm=True, "
      "str position=\"mipe\", Tensor? document=None) -> Tensor");
  m.def(
      "screening_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor s_w, Tensor s_r, *, Tensor? gate=None, "
      "float mipe_threshold=256.0, int key_start=0, float? expand_beyond=None, bool tanh_norm=True, "
      "str position=\"mipe\", Tensor? document=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("screening", &screening_on_cpu);
  m.impl("screening_backward", &screening_backward_on_cpu);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("screening", &screening_meta);
  m.impl("screening_backward", &screening_backward_meta);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("screening", &screening_fallback);
  m.impl("screening_backward", &screening_backward_fallback);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("screening", &screening_autograd);
  m.impl("screening_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

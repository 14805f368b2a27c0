// tamis::screening as a torch operator: checks, schema, derivative, registrations. The work is in screening_cpu.cc,
// screening_cuda.cc and, for other devices, dtypes and sizes, in screening_blocked.cc.

#include "tamis/ops/screening/screening.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdlib>
#include <string_view>
#include <tuple>
#include <vector>

#include "tamis/ops/checks.h"
#include "tamis/ops/registration.h"
#include "tamis/ops/screening/screening_blocked.h"
#include "tamis/ops/screening/screening_blocked_parts.h"
#include "tamis/ops/screening/screening_cpu.h"
#include "tamis/ops/screening/screening_cuda.h"

namespace tamis::ops {

template <>
struct SchemaOptions<ScreeningOptions> {
  static constexpr std::tuple kFields{&ScreeningOptions::gate,          &ScreeningOptions::mipe_threshold,
                                      &ScreeningOptions::expand_beyond, &ScreeningOptions::tanh_norm,
                                      &ScreeningOptions::position,      &ScreeningOptions::document,
                                      &ScreeningOptions::trim_power,    &ScreeningOptions::softmask};
};

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "screening";

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, s_w, s_r, gate

void check(const ScreeningOptions& options, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w,
           const Tensor& s_r) {
  check_queries_keys_values(kName, q, k, v, /*least_key_dim=*/2);  // MiPE rotates two dimensions
  check_per_head(kName, "s_w", s_w, q);
  check_per_head(kName, "s_r", s_r, q);
  if (options.gate) {
    check_like(kName, "gate", *options.gate, q);
    check_shape(kName, "gate", *options.gate, {q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
                "B, T_q and H of q, V of v");
  }
  if (options.document) check_document(kName, *options.document, k, k.sym_size(1), "B and T_k of k");
  TORCH_CHECK_VALUE(options.mipe_threshold > 0, kName, ": mipe_threshold must be positive, but is ",
                    options.mipe_threshold);
  TORCH_CHECK_VALUE(options.position == "mipe" || options.position == "none", kName,
                    ": position must be \"mipe\" or \"none\", but is \"", options.position, "\"");
  check_shapes(kName, options);
}

/// Whether the CPU's fused kernels can do it.
bool is_fused(const ScreeningOptions& options, const Tensor& q) {
  return screening_has_fused(q.scalar_type()) && options.has_paper_shapes();
}

/// The gradient of an absent input.
Tensor no_gradient(const Tensor& q) {
  return at::empty({0}, q.options());
}

// ---- shapes and dtypes only

Tensor screening_meta(const ScreeningOptions& options, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& s_w, const Tensor& s_r) {
  check(options, q, k, v, s_w, s_r);
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options());
}

Gradients screening_backward_meta(const ScreeningOptions& options, const Tensor&, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& s_w, const Tensor& s_r) {
  check(options, q, k, v, s_w, s_r);
  return {empty_contiguous_like(q),   empty_contiguous_like(k),
          empty_contiguous_like(v),   empty_contiguous_like(s_w),
          empty_contiguous_like(s_r), options.gate ? empty_contiguous_like(*options.gate) : no_gradient(q)};
}

// ---- any device and dtype

/// The CUDA kernels as they are now have not run on a card, so they have to be asked for.
bool uses_cuda(const Tensor& q, const Tensor& v, const ScreeningOptions& options) {
  if (!q.is_cuda()) return false;
  const char* asked = std::getenv("TAMIS_CUDA_KERNELS");
  return asked != nullptr && std::string_view(asked) == "1" && screening_has_cuda(q, v, options);
}

Tensor screening_anywhere(const ScreeningOptions& options, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& s_w, const Tensor& s_r) {
  check(options, q, k, v, s_w, s_r);
  if (uses_cuda(q, v, options)) return screening_cuda(q, k, v, s_w, s_r, options);
  return screening_blocked(q, k, v, s_w, s_r, options);
}

Gradients screening_backward_anywhere(const ScreeningOptions& options, const Tensor& grad, const Tensor& q,
                                      const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r) {
  check(options, q, k, v, s_w, s_r);
  const auto backward = uses_cuda(q, v, options) ? &screening_backward_cuda : &screening_backward_blocked;
  auto [dq, dk, dv, ds_w, ds_r, dgate] = backward(grad, q, k, v, s_w, s_r, options);
  return {dq, dk, dv, ds_w, ds_r, options.gate ? dgate : no_gradient(q)};
}

// ---- CPU: the fused kernels, for the dtypes that they support

Tensor screening_on_cpu(const ScreeningOptions& options, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& s_w, const Tensor& s_r) {
  if (!is_fused(options, q)) return screening_anywhere(options, q, k, v, s_w, s_r);
  check(options, q, k, v, s_w, s_r);
  return screening_cpu(q, k, v, s_w, s_r, options);
}

Gradients screening_backward_on_cpu(const ScreeningOptions& options, const Tensor& grad, const Tensor& q,
                                    const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r) {
  if (!is_fused(options, q)) return screening_backward_anywhere(options, grad, q, k, v, s_w, s_r);
  check(options, q, k, v, s_w, s_r);
  const auto [dq, dk, dv, dgate] = empty_gradients(q, k, v, options.gate);
  const auto [ds_w, ds_r] = screening_backward_cpu(grad, q, k, v, s_w, s_r, options, {dq, dk, dv, dgate});
  return {dq, dk, dv, ds_w, ds_r, dgate ? *dgate : no_gradient(q)};
}

// ---- the derivative

Tensor call_screening(const ScreeningOptions& options, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& s_w, const Tensor& s_r) {
  return call_operator<&screening_meta>("tamis::screening", options, q, k, v, s_w, s_r);
}

Gradients call_screening_backward(const ScreeningOptions& options, const Tensor& grad, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& s_w, const Tensor& s_r) {
  return call_operator<&screening_backward_meta>("tamis::screening_backward", options, grad, q, k, v, s_w, s_r);
}

struct Screening : torch::autograd::Function<Screening> {
  /// `gate` is that of the options: autograd only tracks arguments.
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w,
                        const Tensor& s_r, const optional<Tensor>& /*gate*/, const ScreeningOptions& options) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    save_for_backward(ctx, options, {q, k, v, s_w, s_r});  // similarities and weights are computed again
    return call_screening(options, q, k, v, s_w, s_r);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const auto options = saved_options<ScreeningOptions>(ctx, in);
    const auto [dq, dk, dv, ds_w, ds_r, dgate] =
        call_screening_backward(options, grads[0], in[0], in[1], in[2], in[3], in[4]);
    return {dq, dk, dv, ds_w, ds_r, options.gate ? dgate : Tensor(), {}};
  }
};

Tensor screening_autograd(const ScreeningOptions& options, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& s_w, const Tensor& s_r) {
  return Screening::apply(q, k, v, s_w, s_r, options.gate, options);
}

ScreeningOptions gated(const ScreeningOptions& options, const optional<Tensor>& gate) {
  ScreeningOptions result = options;
  result.gate = gate;
  return result;
}

}  // namespace

Tensor screening(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Tensor& s_w_H,
                 const Tensor& s_r_H, const ScreeningOptions& options) {
  return call_screening(options, q_BTHK, k_BTHK, v_BTHV, s_w_H, s_r_H);
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
  const ScreeningOptions with_gate = gated(options, gate);
  TORCH_INTERNAL_ASSERT(!result.defined() || (result.sizes() == grad.sizes() && result.dtype() == v.dtype()));
  if (q.device().is_cpu() && is_fused(with_gate, q)) {
    check(with_gate, q, k, v, s_w, s_r);
    return screening_backward_cpu(grad, q, k, v, s_w, s_r, with_gate, gradients, result);
  }
  const auto [dq, dk, dv, ds_w, ds_r, dgate] = call_screening_backward(with_gate, grad, q, k, v, s_w, s_r);
  gradients.q_BTHK.copy_(dq);
  gradients.k_BTHK.copy_(dk);
  gradients.v_BTHV.copy_(dv);
  if (gate) gradients.gate_BTHV->copy_(dgate);
  if (result.defined()) result.copy_(call_screening(with_gate, q, k, v, s_w, s_r));
  return {ds_w, ds_r};
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  const std::string options =
      "*, Tensor? gate=None, float mipe_threshold=256.0, float? expand_beyond=None, bool tanh_norm=True, "
      "str position=\"mipe\", Tensor? document=None, int trim_power=2, str softmask=\"cosine\"";
  m.def(("screening(Tensor q, Tensor k, Tensor v, Tensor s_w, Tensor s_r, " + options + ") -> Tensor").c_str());
  m.def(("screening_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor s_w, Tensor s_r, " + options +
         ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("screening", schema_form<&screening_on_cpu>);
  m.impl("screening_backward", schema_form<&screening_backward_on_cpu>);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("screening", schema_form<&screening_meta>);
  m.impl("screening_backward", schema_form<&screening_backward_meta>);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("screening", schema_form<&screening_anywhere>);
  m.impl("screening_backward", schema_form<&screening_backward_anywhere>);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("screening", schema_form<&screening_autograd>);
  m.impl("screening_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

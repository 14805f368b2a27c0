// tamis::mlstm as a torch operator: checks, schema, derivative, registrations. It takes its state apart and calls
// tamis::_mlstm, whose work is in mlstm_cpu.cc and, for other devices and dtypes, in mlstm_blocked.cc.

#include "tamis/ops/mlstm/mlstm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "tamis/ops/attention.h"
#include "tamis/ops/checks.h"
#include "tamis/ops/mlstm/mlstm_blocked.h"
#include "tamis/ops/mlstm/mlstm_cpu.h"
#include "tamis/ops/registration.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using std::optional;

/// MlstmOptions as the schema of the inner operator has them: its state in three optional tensors.
struct InnerOptions {
  optional<Tensor> C, n, m;
  int64_t chunk = 64;
  optional<Tensor> document;

  MlstmOptions joined() const {
    MlstmOptions options{.chunk = chunk, .document = document};
    if (C) options.state = MlstmState{*C, n.value(), m.value()};
    return options;
  }
};

InnerOptions inner_options(const MlstmOptions& options) {
  InnerOptions inner{.chunk = options.chunk, .document = options.document};
  if (options.state) {
    inner.C = options.state->C_BHKV;
    inner.n = options.state->n_BHK;
    inner.m = options.state->m_BH;
  }
  return inner;
}

}  // namespace

template <>
struct SchemaOptions<InnerOptions> {
  static constexpr std::tuple kFields{&InnerOptions::C, &InnerOptions::n, &InnerOptions::m, &InnerOptions::chunk,
                                      &InnerOptions::document};
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "mlstm";

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;                                    // h, C, n, m
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // q, k, v, i, f, C, n, m

// ---- checks

at::ScalarType state_dtype(const Tensor& q) {
  return computing_dtype(q.scalar_type());
}

void check_gate(const char* name, const Tensor& x, const Tensor& q) {
  check_device(kName, name, x, q);
  TORCH_CHECK_VALUE(x.scalar_type() == q.scalar_type() || x.scalar_type() == at::kFloat, kName, ": ", name,
                    " must have the dtype of q, ", q.scalar_type(), ", or float32, but has ", x.scalar_type());
  check_shape(kName, name, x, q.sym_sizes().slice(0, 3), "B, T and H of q");
}

void check_state(const char* name, const Tensor& x, const Tensor& q, at::SymIntArrayRef shape, const char* meaning) {
  check_device(kName, name, x, q);
  TORCH_CHECK_VALUE(x.scalar_type() == state_dtype(q), kName, ": ", name, " must be ", state_dtype(q), ", but is ",
                    x.scalar_type());
  check_shape(kName, name, x, shape, meaning);
}

void check(const MlstmOptions& options, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
           const Tensor& f) {
  TORCH_CHECK_VALUE(q.dim() == 4, kName, ": q must have 4 dimensions [B, T, H, K], but has ", q.sym_sizes());
  TORCH_CHECK_VALUE(at::isFloatingType(q.scalar_type()), kName, ": q must be floating point, but is ", q.scalar_type());
  TORCH_CHECK_VALUE(q.sym_size(3) >= 1, kName, ": q needs K >= 1 dimensions, but has the shape ", q.sym_sizes());
  check_like(kName, "k", k, q);
  check_like(kName, "v", v, q);
  check_shape(kName, "k", k, q.sym_sizes(), "that of q");
  TORCH_CHECK_VALUE(v.dim() == 4 && v.sym_sizes().slice(0, 3) == q.sym_sizes().slice(0, 3) && v.sym_size(3) >= 1, kName,
                    ": v must have the shape of q ", q.sym_sizes(), " up to the last dimension, but has ",
                    v.sym_sizes());
  check_gate("i", i, q);
  check_gate("f", f, q);
  if (options.state) {
    const c10::SymInt B = q.sym_size(0), H = q.sym_size(2), K = q.sym_size(3), V = v.sym_size(3);
    check_state("C of the state", options.state->C_BHKV, q, {B, H, K, V}, "B, H and K of q, V of v");
    check_state("n of the state", options.state->n_BHK, q, {B, H, K}, "B, H and K of q");
    check_state("m of the state", options.state->m_BH, q, {B, H}, "B and H of q");
  }
  TORCH_CHECK_VALUE(options.chunk >= 1, kName, ": chunk must be at least 1, but is ", options.chunk);
  if (options.document) check_document(kName, *options.document, q, q.sym_size(1), "B and T of q");
}

MlstmOptions checked(const InnerOptions& inner, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                     const Tensor& f) {
  const MlstmOptions options = inner.joined();
  check(options, q, k, v, i, f);
  return options;
}

void check_gradients(const MlstmOutputGradients& grad, const Tensor& q, const Tensor& v) {
  const c10::SymInt B = q.sym_size(0), H = q.sym_size(2), K = q.sym_size(3), V = v.sym_size(3);
  if (grad.h) {
    TORCH_CHECK_VALUE(grad.h->scalar_type() == v.scalar_type(), kName, ": grad_h must have the dtype of v, ",
                      v.scalar_type(), ", but has ", grad.h->scalar_type());
    check_shape(kName, "grad_h", *grad.h, v.sym_sizes(), "that of v");
  }
  if (grad.C) check_state("grad_C", *grad.C, q, {B, H, K, V}, "B, H and K of q, V of v");
  if (grad.n) check_state("grad_n", *grad.n, q, {B, H, K}, "B, H and K of q");
  if (grad.m) check_state("grad_m", *grad.m, q, {B, H}, "B and H of q");
}

// ---- shapes and dtypes only

Outputs inner_meta(const InnerOptions& inner, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                   const Tensor& f) {
  checked(inner, q, k, v, i, f);
  const auto options = q.options().dtype(state_dtype(q));
  const c10::SymInt B = q.sym_size(0), H = q.sym_size(2), K = q.sym_size(3), V = v.sym_size(3);
  return {at::empty_symint(v.sym_sizes(), v.options()), at::empty_symint({B, H, K, V}, options),
          at::empty_symint({B, H, K}, options), at::empty_symint({B, H}, options)};
}

Gradients inner_backward_meta(const InnerOptions& inner, const optional<Tensor>& grad_h, const optional<Tensor>& grad_C,
                              const optional<Tensor>& grad_n, const optional<Tensor>& grad_m, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f) {
  checked(inner, q, k, v, i, f);
  check_gradients({grad_h, grad_C, grad_n, grad_m}, q, v);
  const auto of_state = [&](const optional<Tensor>& x) {
    return x ? empty_contiguous_like(*x) : at::empty({0}, q.options());
  };
  return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v), empty_contiguous_like(i),
          empty_contiguous_like(f), of_state(inner.C),        of_state(inner.n),        of_state(inner.m)};
}

// ---- any device and dtype

Outputs inner_anywhere(const InnerOptions& inner, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                       const Tensor& f) {
  const auto [h, C, n, m] = mlstm_blocked(q, k, v, i, f, checked(inner, q, k, v, i, f));
  return {h.contiguous(), C, n, m};
}

Gradients inner_backward_anywhere(const InnerOptions& inner, const optional<Tensor>& grad_h,
                                  const optional<Tensor>& grad_C, const optional<Tensor>& grad_n,
                                  const optional<Tensor>& grad_m, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& i, const Tensor& f) {
  const MlstmOptions options = checked(inner, q, k, v, i, f);
  const MlstmOutputGradients grad = {grad_h, grad_C, grad_n, grad_m};
  check_gradients(grad, q, v);
  const auto d = mlstm_backward_blocked(grad, q, k, v, i, f, options);
  return {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
}

// ---- CPU

Outputs inner_cpu(const InnerOptions& inner, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                  const Tensor& f) {
  if (!attention_has_fused(q.scalar_type())) return inner_anywhere(inner, q, k, v, i, f);
  return mlstm_cpu(q, k, v, i, f, checked(inner, q, k, v, i, f));
}

Gradients inner_backward_cpu(const InnerOptions& inner, const optional<Tensor>& grad_h, const optional<Tensor>& grad_C,
                             const optional<Tensor>& grad_n, const optional<Tensor>& grad_m, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f) {
  if (!attention_has_fused(q.scalar_type())) {
    return inner_backward_anywhere(inner, grad_h, grad_C, grad_n, grad_m, q, k, v, i, f);
  }
  const MlstmOptions options = checked(inner, q, k, v, i, f);
  const MlstmOutputGradients grad = {grad_h, grad_C, grad_n, grad_m};
  check_gradients(grad, q, v);
  const auto d = mlstm_backward_cpu(grad, q, k, v, i, f, options);
  return {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
}

// ---- the derivative

Outputs call_inner(const InnerOptions& inner, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                   const Tensor& f) {
  return call_operator<&inner_meta>("tamis::_mlstm", inner, q, k, v, i, f);
}

struct InnerFunction : torch::autograd::Function<InnerFunction> {
  /// C, n and m are those of the options: autograd only tracks arguments.
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                               const Tensor& f, const optional<Tensor>& /*C*/, const optional<Tensor>& /*n*/,
                               const optional<Tensor>& /*m*/, const InnerOptions& inner) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->set_materialize_grads(false);  // an unused output costs nothing
    save_for_backward(ctx, inner, {q, k, v, i, f});
    const auto [h, C, n, m] = call_inner(inner, q, k, v, i, f);
    return {h, C, n, m};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const auto inner = saved_options<InnerOptions>(ctx, in);
    const auto [dq, dk, dv, di, df, dC, dn, dm] =
        call_operator<&inner_backward_meta>("tamis::_mlstm_backward", inner, given(grads[0]), given(grads[1]),
                                            given(grads[2]), given(grads[3]), in[0], in[1], in[2], in[3], in[4]);
    const Tensor none;
    return {dq, dk, dv, di, df, inner.C ? dC : none, inner.n ? dn : none, inner.m ? dm : none, none};
  }
};

Outputs inner_autograd(const InnerOptions& inner, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                       const Tensor& f) {
  const variable_list out = InnerFunction::apply(q, k, v, i, f, inner.C, inner.n, inner.m, inner);
  return {out[0], out[1], out[2], out[3]};
}

// ---- the operator

Outputs mlstm_composite(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                        const optional<c10::List<Tensor>>& state, int64_t chunk, const optional<Tensor>& document) {
  MlstmOptions options{.chunk = chunk, .document = document};
  if (state) {
    TORCH_CHECK_VALUE(state->size() == 3, kName, ": state must be (C, n, m), but has ", state->size(), " tensors");
    options.state = MlstmState{state->get(0), state->get(1), state->get(2)};
  }
  return call_inner(inner_options(options), q, k, v, i, f);
}

}  // namespace

Outputs mlstm(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Tensor& i_BTH,
              const Tensor& f_BTH, const MlstmOptions& options) {
  return call_inner(inner_options(options), q_BTHK, k_BTHK, v_BTHV, i_BTH, f_BTH);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "mlstm(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, *, Tensor[]? state=None, int chunk=64, "
      "Tensor? document=None) -> (Tensor h, Tensor C, Tensor n, Tensor m)");
  m.def(
      "_mlstm(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? C, Tensor? n, Tensor? m, int chunk, "
      "Tensor? document) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "_mlstm_backward(Tensor? grad_h, Tensor? grad_C, Tensor? grad_n, Tensor? grad_m, Tensor q, Tensor k, Tensor v, "
      "Tensor i, Tensor f, Tensor? C, Tensor? n, Tensor? m, int chunk, Tensor? document) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CompositeImplicitAutograd, m) {
  m.impl("mlstm", &mlstm_composite);
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("_mlstm", schema_form<&inner_cpu>);
  m.impl("_mlstm_backward", schema_form<&inner_backward_cpu>);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("_mlstm", schema_form<&inner_meta>);
  m.impl("_mlstm_backward", schema_form<&inner_backward_meta>);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("_mlstm", schema_form<&inner_anywhere>);
  m.impl("_mlstm_backward", schema_form<&inner_backward_anywhere>);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("_mlstm", schema_form<&inner_autograd>);
  m.impl("_mlstm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

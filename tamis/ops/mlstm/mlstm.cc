// tamis::mlstm as a torch operator: checks, schema, derivative, registrations. It takes its state apart and calls
// tamis::_mlstm, whose work is in mlstm_cpu.cc and, for other devices and dtypes, in plain torch.

#include "tamis/ops/mlstm/mlstm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "tamis/ops/attention.h"
#include "tamis/ops/mlstm/mlstm_cpu.h"
#include "tamis/ops/registration.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "mlstm";

// ---- checks

at::ScalarType state_dtype(const Tensor& q) {
  return computing_dtype(q.scalar_type());
}

void check_device(const char* name, const Tensor& x, const Tensor& q) {
  TORCH_CHECK_VALUE(x.device() == q.device(), kName, ": ", name, " must be on the device of q, ", q.device(),
                    ", but is on ", x.device());
}

void check_shape(const char* name, const Tensor& x, at::SymIntArrayRef shape, const char* meaning) {
  TORCH_CHECK_VALUE(x.sym_sizes() == shape, kName, ": ", name, " must have the shape ", shape, " (", meaning,
                    "), but has ", x.sym_sizes());
}

void check_gate(const char* name, const Tensor& x, const Tensor& q) {
  check_device(name, x, q);
  TORCH_CHECK_VALUE(x.scalar_type() == q.scalar_type() || x.scalar_type() == at::kFloat, kName, ": ", name,
                    " must have the dtype of q, ", q.scalar_type(), ", or float32, but has ", x.scalar_type());
  check_shape(name, x, q.sym_sizes().slice(0, 3), "B, T and H of q");
}

void check_state(const char* name, const Tensor& x, const Tensor& q, at::SymIntArrayRef shape, const char* meaning) {
  check_device(name, x, q);
  TORCH_CHECK_VALUE(x.scalar_type() == state_dtype(q), kName, ": ", name, " must be ", state_dtype(q), ", but is ",
                    x.scalar_type());
  check_shape(name, x, shape, meaning);
}

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
           const MlstmOptions& options) {
  TORCH_CHECK_VALUE(q.dim() == 4, kName, ": q must have 4 dimensions [B, T, H, K], but has ", q.sym_sizes());
  TORCH_CHECK_VALUE(at::isFloatingType(q.scalar_type()), kName, ": q must be floating point, but is ", q.scalar_type());
  TORCH_CHECK_VALUE(q.sym_size(3) >= 1, kName, ": q needs K >= 1 dimensions, but has the shape ", q.sym_sizes());
  for (const auto& [name, x] : {std::pair<const char*, const Tensor&>{"k", k}, {"v", v}}) {
    check_device(name, x, q);
    TORCH_CHECK_VALUE(x.scalar_type() == q.scalar_type(), kName, ": ", name, " must have the dtype of q, ",
                      q.scalar_type(), ", but has ", x.scalar_type());
  }
  check_shape("k", k, q.sym_sizes(), "that of q");
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
  if (options.document) {
    check_device("document", *options.document, q);
    TORCH_CHECK_VALUE(at::isIntegralType(options.document->scalar_type(), /*includeBool=*/false), kName,
                      ": document must hold integers, but is ", options.document->scalar_type());
    check_shape("document", *options.document, q.sym_sizes().slice(0, 2), "B and T of q");
  }
}

// ---- schema of the inner operator

#define TAMIS_MLSTM_ARGUMENTS                                                                                    \
  const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &i, const Tensor &f, const optional<Tensor>&C, \
      const optional<Tensor>&n, const optional<Tensor>&m, int64_t chunk, const optional<Tensor>&document
#define TAMIS_MLSTM_PASS q, k, v, i, f, C, n, m, chunk, document
#define TAMIS_MLSTM_GRADIENTS                                                                  \
  const optional<Tensor>&grad_h, const optional<Tensor>&grad_C, const optional<Tensor>&grad_n, \
      const optional<Tensor>&grad_m
#define TAMIS_MLSTM_PASS_GRADIENTS grad_h, grad_C, grad_n, grad_m

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;                                    // h, C, n, m
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // q, k, v, i, f, C, n, m

MlstmOptions checked(TAMIS_MLSTM_ARGUMENTS) {
  MlstmOptions options{.chunk = chunk, .document = document};
  if (C) options.state = MlstmState{*C, n.value(), m.value()};
  check(q, k, v, i, f, options);
  return options;
}

MlstmOutputGradients checked_gradients(TAMIS_MLSTM_GRADIENTS, const Tensor& q, const Tensor& v) {
  const c10::SymInt B = q.sym_size(0), H = q.sym_size(2), K = q.sym_size(3), V = v.sym_size(3);
  if (grad_h) {
    TORCH_CHECK_VALUE(grad_h->scalar_type() == v.scalar_type(), kName, ": grad_h must have the dtype of v, ",
                      v.scalar_type(), ", but has ", grad_h->scalar_type());
    check_shape("grad_h", *grad_h, v.sym_sizes(), "that of v");
  }
  if (grad_C) check_state("grad_C", *grad_C, q, {B, H, K, V}, "B, H and K of q, V of v");
  if (grad_n) check_state("grad_n", *grad_n, q, {B, H, K}, "B, H and K of q");
  if (grad_m) check_state("grad_m", *grad_m, q, {B, H}, "B and H of q");
  return {grad_h, grad_C, grad_n, grad_m};
}

Outputs inner_meta(TAMIS_MLSTM_ARGUMENTS) {
  checked(TAMIS_MLSTM_PASS);
  const auto options = q.options().dtype(state_dtype(q));
  const c10::SymInt B = q.sym_size(0), H = q.sym_size(2), K = q.sym_size(3), V = v.sym_size(3);
  return {at::empty_symint(v.sym_sizes(), v.options()), at::empty_symint({B, H, K, V}, options),
          at::empty_symint({B, H, K}, options), at::empty_symint({B, H}, options)};
}

Gradients inner_backward_meta(TAMIS_MLSTM_GRADIENTS, TAMIS_MLSTM_ARGUMENTS) {
  checked(TAMIS_MLSTM_PASS);
  checked_gradients(TAMIS_MLSTM_PASS_GRADIENTS, q, v);
  const auto of_state = [&](const optional<Tensor>& x) {
    return x ? empty_contiguous_like(*x) : at::empty({0}, q.options());
  };
  return {empty_contiguous_like(q),
          empty_contiguous_like(k),
          empty_contiguous_like(v),
          empty_contiguous_like(i),
          empty_contiguous_like(f),
          of_state(C),
          of_state(n),
          of_state(m)};
}

// ---- the definition for all tokens at once, on any device and dtype

Outputs inner_fallback(TAMIS_MLSTM_ARGUMENTS) {
  const MlstmOptions options = checked(TAMIS_MLSTM_PASS);
  const auto [h, C_end, n_end, m_end] = reference::mlstm_parallel(q, k, v, i, f, options);
  // An output of its own, even where no token has changed the state.
  return {h.contiguous(), C_end.clone(), n_end.clone(), m_end.clone()};
}

Gradients inner_backward_fallback(TAMIS_MLSTM_GRADIENTS, TAMIS_MLSTM_ARGUMENTS) {
  MlstmOptions options = checked(TAMIS_MLSTM_PASS);
  checked_gradients(TAMIS_MLSTM_PASS_GRADIENTS, q, v);
  variable_list in = {q, k, v, i, f};
  if (C) in.insert(in.end(), {*C, *n, *m});
  // Of a sum whose gradients by the outputs are the given ones.
  const auto weighted = [&](const variable_list& x) {
    if (C) options.state = MlstmState{x[5], x[6], x[7]};
    const auto [h, C_end, n_end, m_end] = reference::mlstm_parallel(x[0], x[1], x[2], x[3], x[4], options);
    Tensor sum = at::zeros({}, q.options().dtype(state_dtype(q))) + x[0].sum() * 0;
    for (const auto& [out, grad] : {std::pair<const Tensor&, const optional<Tensor>&>{h, grad_h},
                                    {C_end, grad_C},
                                    {n_end, grad_n},
                                    {m_end, grad_m}}) {
      if (grad) sum = sum + (out * *grad).sum();
    }
    return sum;
  };
  variable_list d = gradients_below_autograd(weighted, in, at::ones({}, q.options().dtype(state_dtype(q))));
  d.resize(8, at::empty({0}, q.options()));
  return {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
}

// ---- CPU

Outputs inner_cpu(TAMIS_MLSTM_ARGUMENTS) {
  if (!attention_has_fused(q.scalar_type())) return inner_fallback(TAMIS_MLSTM_PASS);
  const MlstmOptions options = checked(TAMIS_MLSTM_PASS);
  return mlstm_cpu(q, k, v, i, f, options);
}

Gradients inner_backward_cpu(TAMIS_MLSTM_GRADIENTS, TAMIS_MLSTM_ARGUMENTS) {
  if (!attention_has_fused(q.scalar_type())) {
    return inner_backward_fallback(TAMIS_MLSTM_PASS_GRADIENTS, TAMIS_MLSTM_PASS);
  }
  const MlstmOptions options = checked(TAMIS_MLSTM_PASS);
  const MlstmOutputGradients grad = checked_gradients(TAMIS_MLSTM_PASS_GRADIENTS, q, v);
  auto d = mlstm_backward_cpu(grad, q, k, v, i, f, options);
  return {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
}

// ---- the derivative

Outputs call_inner(TAMIS_MLSTM_ARGUMENTS) {
  static const auto op = find_operator<decltype(inner_meta)>("tamis::_mlstm");
  return op.call(TAMIS_MLSTM_PASS);
}

struct InnerFunction : torch::autograd::Function<InnerFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                               const Tensor& f, const optional<Tensor>& C, const optional<Tensor>& n,
                               const optional<Tensor>& m, int64_t chunk, const optional<Tensor>& document) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->set_materialize_grads(false);  // an output that nobody used costs nothing
    const auto or_none = [](const optional<Tensor>& x) { return x.value_or(Tensor()); };
    ctx->save_for_backward({q, k, v, i, f, or_none(C), or_none(n), or_none(m), or_none(document)});
    ctx->saved_data["chunk"] = chunk;
    const auto [h, C_end, n_end, m_end] = call_inner(TAMIS_MLSTM_PASS);
    return {h, C_end, n_end, m_end};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = find_operator<decltype(inner_backward_meta)>("tamis::_mlstm_backward");
    const variable_list in = ctx->get_saved_variables();
    const auto [dq, dk, dv, di, df, dC, dn, dm] =
        op.call(given(grads[0]), given(grads[1]), given(grads[2]), given(grads[3]), in[0], in[1], in[2], in[3], in[4],
                given(in[5]), given(in[6]), given(in[7]), ctx->saved_data["chunk"].toInt(), given(in[8]));
    const bool has_state = in[5].defined();
    const Tensor none;
    return {dq, dk, dv, di, df, has_state ? dC : none, has_state ? dn : none, has_state ? dm : none, none, none};
  }
};

Outputs inner_autograd(TAMIS_MLSTM_ARGUMENTS) {
  const variable_list out = InnerFunction::apply(TAMIS_MLSTM_PASS);
  return {out[0], out[1], out[2], out[3]};
}

// ---- the operator

Outputs with_options(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                     const MlstmOptions& options) {
  const auto of_state = [&](const Tensor MlstmState::*part) {
    return options.state ? optional<Tensor>((*options.state).*part) : std::nullopt;
  };
  return call_inner(q, k, v, i, f, of_state(&MlstmState::C_BHKV), of_state(&MlstmState::n_BHK),
                    of_state(&MlstmState::m_BH), options.chunk, options.document);
}

Outputs mlstm_composite(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                        const optional<c10::List<Tensor>>& state, int64_t chunk, const optional<Tensor>& document) {
  MlstmOptions options{.chunk = chunk, .document = document};
  if (state) {
    TORCH_CHECK_VALUE(state->size() == 3, kName, ": state must be (C, n, m), but has ", state->size(), " tensors");
    options.state = MlstmState{state->get(0), state->get(1), state->get(2)};
  }
  return with_options(q, k, v, i, f, options);
}

}  // namespace

Outputs mlstm(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Tensor& i_BTH,
              const Tensor& f_BTH, const MlstmOptions& options) {
  return with_options(q_BTHK, k_BTHK, v_BTHV, i_BTH, f_BTH, options);
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
  m.impl("_mlstm", &inner_cpu);
  m.impl("_mlstm_backward", &inner_backward_cpu);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("_mlstm", &inner_meta);
  m.impl("_mlstm_backward", &inner_backward_meta);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("_mlstm", &inner_fallback);
  m.impl("_mlstm_backward", &inner_backward_fallback);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("_mlstm", &inner_autograd);
  m.impl("_mlstm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

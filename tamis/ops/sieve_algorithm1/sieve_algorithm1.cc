// tamis::sieve_algorithm1 as a torch operator: checks, schema, derivative, registrations. The work is in
// sieve_algorithm1_blocked.cc.

#include "tamis/ops/sieve_algorithm1/sieve_algorithm1.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tamis/ops/attention.h"
#include "tamis/ops/checks.h"
#include "tamis/ops/registration.h"
#include "tamis/ops/sieve_algorithm1/sieve_algorithm1_blocked.h"

namespace tamis::ops {

template <>
struct SchemaOptions<SieveAlgorithm1Options> {
  static constexpr std::tuple kFields{&SieveAlgorithm1Options::epsilon, &SieveAlgorithm1Options::scale,
                                      &SieveAlgorithm1Options::strict, &SieveAlgorithm1Options::document};
};

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Options = SieveAlgorithm1Options;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

constexpr const char* kName = "sieve_algorithm1";

void check(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attention(kName, q, k, v, {.strict = options.strict, .document = options.document});
  TORCH_CHECK_VALUE(options.epsilon > 0, kName, ": epsilon must be above 0, but is ", options.epsilon);
}

Tensor meta(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options());
}

void check_gradient(const Tensor& grad, const Tensor& q, const Tensor& v) {
  check_shape(kName, "grad", grad, {q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
              "B, T_q and H of q, V of v");
}

Gradients backward_meta(const Options& options, const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  check_gradient(grad, q, v);
  return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v)};
}

Tensor anywhere(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(options, q, k, v);
  return sieve_algorithm1_blocked(q, k, v, options).contiguous();
}

Gradients backward_anywhere(const Options& options, const Tensor& grad, const Tensor& q, const Tensor& k,
                            const Tensor& v) {
  check(options, q, k, v);
  check_gradient(grad, q, v);
  const auto [dq, dk, dv] = sieve_algorithm1_backward_blocked(grad, q, k, v, options);
  return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
}

Tensor call(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return call_operator<&meta>("tamis::sieve_algorithm1", options, q, k, v);
}

struct Algorithm1 : torch::autograd::Function<Algorithm1> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Options& options) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    save_for_backward(ctx, options, {q, k, v});  // weights are computed again
    return call(options, q, k, v);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const auto [dq, dk, dv] = call_operator<&backward_meta>(
        "tamis::sieve_algorithm1_backward", saved_options<Options>(ctx, in), grads[0], in[0], in[1], in[2]);
    return {dq, dk, dv, {}};
  }
};

Tensor with_autograd(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return Algorithm1::apply(q, k, v, options);
}

}  // namespace

Tensor sieve_algorithm1(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Options& options) {
  return call(options, q_BTHK, k_BTHK, v_BTHV);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "sieve_algorithm1(Tensor q, Tensor k, Tensor v, *, float epsilon=1e-06, float? scale=None, bool strict=True, "
      "Tensor? document=None) -> Tensor");
  m.def(
      "sieve_algorithm1_backward(Tensor grad, Tensor q, Tensor k, Tensor v, *, float epsilon=1e-06, "
      "float? scale=None, bool strict=True, Tensor? document=None) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("sieve_algorithm1", schema_form<&meta>);
  m.impl("sieve_algorithm1_backward", schema_form<&backward_meta>);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("sieve_algorithm1", schema_form<&anywhere>);
  m.impl("sieve_algorithm1_backward", schema_form<&backward_anywhere>);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("sieve_algorithm1", schema_form<&with_autograd>);
  m.impl("sieve_algorithm1_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

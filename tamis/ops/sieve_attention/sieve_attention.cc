// tamis::sieve_attention as a torch operator. What it shares with entmax attention is in selection_operator.h.

#include "tamis/ops/sieve_attention/sieve_attention.h"

#include "tamis/ops/entmax_attention/selection_operator.h"
#include "tamis/ops/sieve_attention/sieve_attention_kernel.h"

namespace tamis::ops {
namespace {

using at::Tensor;

struct Mechanism {
  static constexpr const char* kName = "sieve_attention";
  static constexpr const char* kForward = "tamis::_sieve_attention";
  static constexpr const char* kBackward = "tamis::_sieve_attention_backward";
  static constexpr SelectionKernels kKernels{&kernels::sieve_forward, &kernels::sieve_backward};

  static Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Selection& selection) {
    return reference::sieve_attention(q, k, v,
                                      {.alpha = selection.alpha,
                                       .scale = selection.scale,
                                       .strict = selection.strict,
                                       .document = selection.document});
  }
};

using Operator = SelectionOperator<Mechanism>;

Tensor composite(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, std::optional<double> scale,
                 bool strict, int64_t key_start, const std::optional<Tensor>& document) {
  return sieve_attention(
      q, k, v, {.alpha = alpha, .scale = scale, .strict = strict, .key_start = key_start, .document = document});
}

}  // namespace

Tensor sieve_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                       const SieveAttentionOptions& options) {
  return Operator::apply(q_BTHK, k_BTHK, v_BTHV, options);
}

void sieve_attention_token(const AttentionToken& token, double alpha) {
  selection_token(&kernels::sieve_forward, token, alpha);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "sieve_attention(Tensor q, Tensor k, Tensor v, *, float alpha=1.5, float? scale=None, bool strict=True, "
      "int key_start=0, Tensor? document=None) -> Tensor");
  m.def(
      "_sieve_attention(Tensor q, Tensor k, Tensor v, float alpha, float scale, bool strict, Tensor? document) -> "
      "(Tensor, Tensor)");
  m.def(
      "_sieve_attention_backward(Tensor grad, Tensor statistics, Tensor q, Tensor k, Tensor v, float alpha, "
      "float scale, bool strict, Tensor? document) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CompositeImplicitAutograd, m) {
  m.impl("sieve_attention", &composite);
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  Operator::implement(m, &Operator::cpu, &Operator::backward_cpu);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  Operator::implement(m, &Operator::meta, &Operator::backward_meta);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  Operator::implement(m, &Operator::fallback, &Operator::backward_fallback);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("_sieve_attention", &Operator::autograd);
  m.impl("_sieve_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

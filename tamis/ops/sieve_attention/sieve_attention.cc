// tamis::sieve_attention as a torch operator. What it shares with entmax attention is in selection_operator.h.

#include "tamis/ops/sieve_attention/sieve_attention.h"

#include "tamis/ops/selection/selection_operator.h"
#include "tamis/ops/sieve_attention/sieve_attention_kernel.h"

namespace tamis::ops {

template <>
struct SchemaOptions<SieveAttentionOptions> : SelectionFields<SieveAttentionOptions> {};

namespace {

using at::Tensor;

struct Mechanism {
  using Options = SieveAttentionOptions;
  static constexpr const char* kName = "sieve_attention";
  static constexpr const char* kForward = "tamis::_sieve_attention";
  static constexpr const char* kBackward = "tamis::_sieve_attention_backward";
  static constexpr SelectionKernels kKernels{&kernels::sieve_forward, &kernels::sieve_backward};

  static const SelectedWeights& weights() { return sieve_weights(); }
};

using Operator = SelectionOperator<Mechanism>;

Tensor composite(const SieveAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return sieve_attention(q, k, v, options);
}

}  // namespace

Tensor sieve_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                       const SieveAttentionOptions& options) {
  return Operator::apply(options, q_BTHK, k_BTHK, v_BTHV);
}

void sieve_attention_token(const AttentionToken& token, double alpha) {
  selection_token(&kernels::sieve_forward, token, alpha);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "sieve_attention(Tensor q, Tensor k, Tensor v, *, float alpha=1.5, float? scale=None, bool strict=True, "
      "Tensor? document=None) -> Tensor");
  m.def(
      "_sieve_attention(Tensor q, Tensor k, Tensor v, float alpha, float scale, bool strict, Tensor? document) -> "
      "(Tensor, Tensor)");
  m.def(
      "_sieve_attention_backward(Tensor grad, Tensor statistics, Tensor q, Tensor k, Tensor v, float alpha, "
      "float scale, bool strict, Tensor? document) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CompositeImplicitAutograd, m) {
  m.impl("sieve_attention", schema_form<&composite>);
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  Operator::implement_cpu(m);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  Operator::implement_meta(m);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  Operator::implement_anywhere(m);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  Operator::implement_autograd(m);
}

}  // namespace tamis::ops

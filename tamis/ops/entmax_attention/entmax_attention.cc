// tamis::entmax_attention as a torch operator. What it shares with Sieve is in selection_operator.h.

#include "tamis/ops/entmax_attention/entmax_attention.h"

#include "tamis/ops/entmax_attention/entmax_attention_kernel.h"
#include "tamis/ops/selection/selection_operator.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"

namespace tamis::ops {

template <>
struct SchemaOptions<EntmaxAttentionOptions> : SelectionFields<EntmaxAttentionOptions> {};

namespace {

using at::Tensor;

struct Mechanism {
  using Options = EntmaxAttentionOptions;
  static constexpr const char* kName = "entmax_attention";
  static constexpr const char* kForward = "tamis::_entmax_attention";
  static constexpr const char* kBackward = "tamis::_entmax_attention_backward";
  static constexpr SelectionKernels kKernels{&kernels::entmax_forward, &kernels::entmax_backward};

  static const SelectedWeights& weights() { return entmax_weights(); }
};

using Operator = SelectionOperator<Mechanism>;

Tensor composite(const EntmaxAttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return entmax_attention(q, k, v, options);
}

}  // namespace

Tensor entmax_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                        const EntmaxAttentionOptions& options) {
  if (options.alpha == 1 && !options.strict) {  // all keys are selected, so no lists are needed
    Operator::check({.alpha = 1, .document = options.document}, q_BTHK, k_BTHK, v_BTHV);
    return softmax_attention(q_BTHK, k_BTHK, v_BTHV, {.scale = options.scale, .document = options.document});
  }
  return Operator::apply(options, q_BTHK, k_BTHK, v_BTHV);
}

void entmax_attention_token(const AttentionToken& token, double alpha) {
  selection_token(&kernels::entmax_forward, token, alpha);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "entmax_attention(Tensor q, Tensor k, Tensor v, *, float alpha=1.5, float? scale=None, bool strict=False, "
      "Tensor? document=None) -> Tensor");
  m.def(
      "_entmax_attention(Tensor q, Tensor k, Tensor v, float alpha, float scale, bool strict, Tensor? document) -> "
      "(Tensor, Tensor)");
  m.def(
      "_entmax_attention_backward(Tensor grad, Tensor statistics, Tensor q, Tensor k, Tensor v, float alpha, "
      "float scale, bool strict, Tensor? document) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CompositeImplicitAutograd, m) {
  m.impl("entmax_attention", schema_form<&composite>);
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

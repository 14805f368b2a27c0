// Algorithm 1 of "Sieve Attention" in plain torch, block by block. Equation numbers: README.md.

#include "tamis/ops/sieve_algorithm1/sieve_algorithm1_blocked.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/blocked_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"

namespace tamis::ops {

using at::Tensor;

namespace {

struct Algorithm1Rows : AttentionRows {
  double epsilon;

  Algorithm1Rows(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const SieveAlgorithm1Options& options)
      : AttentionRows(q_in, k_in, v_in, score_scale(options.scale, q_in.size(3)), /*span=*/k_in.size(1),
                      {.strict = options.strict, .document = options.document}),
        epsilon(options.epsilon) {}

  Tensor rejected(const Tensor& z, const Tensor& hidden) const {  // (2)
    const Tensor seen = z.masked_fill(hidden, -INFINITY);
    return seen < seen.amax(-1, /*keepdim=*/true) - epsilon;
  }
};

/// Whether a query does not see a key, bool like the scores of the step.
Tensor hidden_pairs(const BlockStep& step, const Tensor& z) {
  const Tensor hidden = at::zeros_like(z, at::TensorOptions().dtype(at::kBool));
  step.hide(hidden, 1);
  return hidden;
}

/// Sticks breaks them at the newest key first: here keys are in the reverse order, the oldest last.
Sticks::Hide hide_reversed(const Tensor& hidden) {
  return [reversed = hidden.flip(-1)](const Tensor& pairs, double value) { pairs.masked_fill_(reversed, value); };
}

Tensor algorithm1_weights(const Sticks& reversed_sticks, const Tensor& rejected) {  // (3)
  return reversed_sticks.weight.flip(-1).masked_fill_(rejected, 0);
}

}  // namespace

Tensor sieve_algorithm1_blocked(const Tensor& q, const Tensor& k, const Tensor& v,
                                const SieveAlgorithm1Options& options) {
  const WithoutAutocast without_autocast;
  const AttentionSizes sizes(q, k);
  if (sizes.empty()) return at::zeros({sizes.B, sizes.T_q, sizes.H, v.size(3)}, v.options());
  const Algorithm1Rows rows(q, k, v, options);
  const Tensor out = rows.blocks.zero_query_rows(v.size(3));
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor z = rows.scores(step), hidden = hidden_pairs(step, z);
    const Sticks sticks(z.flip(-1), hide_reversed(hidden));
    step.set_queries(out, at::bmm(algorithm1_weights(sticks, rows.rejected(z, hidden)), step.of_keys(rows.v)));
  }
  return rows.blocks.from_query_rows(out).to(v.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> sieve_algorithm1_backward_blocked(const Tensor& grad, const Tensor& q,
                                                                     const Tensor& k, const Tensor& v,
                                                                     const SieveAlgorithm1Options& options) {
  const WithoutAutocast without_autocast;
  if (AttentionSizes(q, k).empty()) return zero_gradients(q, k, v);
  const Algorithm1Rows rows(q, k, v, options);
  AttentionGradients gradients(rows, grad);
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor z = rows.scores(step), hidden = hidden_pairs(step, z), back = z.flip(-1);
    const Tensor rejected = rows.rejected(z, hidden);
    const Sticks::Hide hide = hide_reversed(hidden);
    const Sticks sticks(back, hide);
    const Tensor da = gradients.of_weights(step).masked_fill_(rejected, 0);
    const Tensor dz = sticks.gradient(back, da.flip(-1), /*remainder_part=*/{}, hide).flip(-1);  // (5)
    gradients.add(step, algorithm1_weights(sticks, rejected), dz);
  }
  return gradients.result(q, k, v);
}

}  // namespace tamis::ops

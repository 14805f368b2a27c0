// Stick-breaking attention in plain torch, block by block, in log space. Equation numbers: README.md.

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/blocked_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_cpu.h"

namespace tamis::ops {

using at::Tensor;

Sticks::Sticks(const Tensor& z, const Hide& hide) {
  const Tensor log_kept = at::log_sigmoid(z.neg());  // log(1 - sigmoid(z))
  hide(log_kept, 0);
  log_left = log_kept.flip(-1).cumsum_(-1).flip(-1);
  weight = z + log_left;  // (3)
  hide(weight, -INFINITY);
  weight.exp_();
}

Tensor Sticks::gradient(const Tensor& z, const Tensor& da, const Tensor& remainder_part, const Hide& hide) const {
  const Tensor taken = da.mul_(weight);
  const Tensor owed = taken.cumsum(-1);  // (5)
  if (remainder_part.defined()) owed.add_(remainder_part);
  const Tensor share = at::sigmoid(z);
  hide(share, 0);
  return taken.sub_(share.mul_(owed));  // (6)
}

namespace {

AttentionRows rows_of(const Tensor& q, const Tensor& k, const Tensor& v, const StickBreakingOptions& options) {
  return {q, k, v, score_scale(options.scale, q.size(3)), /*span=*/k.size(1), range_of(options)};
}

}  // namespace

std::tuple<Tensor, Tensor> stick_breaking_attention_blocked(const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const StickBreakingOptions& options) {
  const WithoutAutocast without_autocast;
  const AttentionSizes sizes(q, k);
  if (sizes.empty()) {
    return {at::zeros({sizes.B, sizes.T_q, sizes.H, v.size(3)}, v.options()),
            at::ones({sizes.B, sizes.T_q, sizes.H}, v.options().dtype(computing_dtype(v.scalar_type())))};
  }
  const AttentionRows rows = rows_of(q, k, v, options);
  const Tensor out = rows.blocks.zero_query_rows(v.size(3)), remainder = rows.blocks.zero_query_rows(1);
  for (const BlockStep& step : rows.blocks.steps()) {
    const Sticks sticks(rows.scores(step), [&](const Tensor& pairs, double value) { step.hide(pairs, value); });
    step.set_queries(out, at::bmm(sticks.weight, step.of_keys(rows.v)));  // (4)
    step.set_queries(remainder, sticks.log_remainder().exp());
  }
  return {rows.blocks.from_query_rows(out).to(v.scalar_type()), rows.blocks.from_query_rows(remainder).squeeze(3)};
}

std::tuple<Tensor, Tensor, Tensor> stick_breaking_attention_backward_blocked(const Tensor& grad,
                                                                             const Tensor& grad_remainder,
                                                                             const Tensor& q, const Tensor& k,
                                                                             const Tensor& v,
                                                                             const StickBreakingOptions& options) {
  const WithoutAutocast without_autocast;
  if (AttentionSizes(q, k).empty()) return zero_gradients(q, k, v);
  const AttentionRows rows = rows_of(q, k, v, options);
  const Tensor dr = rows.blocks.query_rows(grad_remainder.unsqueeze(3));
  AttentionGradients gradients(rows, grad);
  for (const BlockStep& step : rows.blocks.steps()) {
    const auto hide = [&](const Tensor& pairs, double value) { step.hide(pairs, value); };
    const Tensor z = rows.scores(step);
    const Sticks sticks(z, hide);
    const Tensor remainder_part = sticks.log_remainder().exp().mul_(step.of_queries(dr));
    gradients.add(step, sticks.weight, sticks.gradient(z, gradients.of_weights(step), remainder_part, hide));
  }
  return gradients.result(q, k, v);
}

}  // namespace tamis::ops

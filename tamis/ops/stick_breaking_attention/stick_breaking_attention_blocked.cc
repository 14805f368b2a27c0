// Stick-breaking attention in plain torch, block by block, in log space. Equation numbers: README.md.

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/blocked.h"
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

/// The rows of a call, queries multiplied by the scale.
struct StickRows {
  double scale;
  QueryBlocks blocks;
  Tensor q, k, v;

  StickRows(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const StickBreakingOptions& options)
      : scale(score_scale(options.scale, q_in.size(3))),
        blocks(AttentionSizes(q_in, k_in), k_in.size(1), range_of(options),
               q_in.options().dtype(computing_dtype(q_in.scalar_type()))),
        q(blocks.query_rows(q_in).mul_(scale)),
        k(blocks.key_rows(k_in)),
        v(blocks.key_rows(v_in)) {}

  Tensor scores(const BlockStep& step) const {  // (1)
    return at::bmm(step.of_queries(q), step.of_keys(k).transpose(1, 2));
  }
};

}  // namespace

std::tuple<Tensor, Tensor> stick_breaking_attention_blocked(const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const StickBreakingOptions& options) {
  const WithoutAutocast without_autocast;
  const AttentionSizes sizes(q, k);
  if (sizes.empty()) {
    return {at::zeros({sizes.B, sizes.T_q, sizes.H, v.size(3)}, v.options()),
            at::ones({sizes.B, sizes.T_q, sizes.H}, v.options().dtype(computing_dtype(v.scalar_type())))};
  }
  const StickRows rows(q, k, v, options);
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
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  if (AttentionSizes(q, k).empty()) return {zeros(q), zeros(k), zeros(v)};
  const StickRows rows(q, k, v, options);
  const QueryBlocks& blocks = rows.blocks;
  const Tensor dout = blocks.query_rows(grad), dr = blocks.query_rows(grad_remainder.unsqueeze(3));
  const Tensor dq = blocks.zero_query_rows(q.size(3)), dk = blocks.zero_key_rows(k.size(3));
  const Tensor dv = blocks.zero_key_rows(v.size(3));
  for (const BlockStep& step : blocks.steps()) {
    const auto hide = [&](const Tensor& pairs, double value) { step.hide(pairs, value); };
    const Tensor z = rows.scores(step), dout_step = step.of_queries(dout);
    const Sticks sticks(z, hide);
    step.add_products_to_keys(dv, sticks.weight, dout_step);
    const Tensor da = at::bmm(dout_step, step.of_keys(rows.v).transpose(1, 2));
    const Tensor dz = sticks.gradient(z, da, sticks.log_remainder().exp().mul_(step.of_queries(dr)), hide);
    step.set_queries(dq, at::bmm(dz, step.of_keys(rows.k)));
    step.add_products_to_keys(dk, dz, step.of_queries(rows.q));
  }
  dq.mul_(rows.scale);
  return {blocks.from_query_rows(dq).to(q.scalar_type()), blocks.from_key_rows(dk).to(k.scalar_type()),
          blocks.from_key_rows(dv).to(v.scalar_type())};
}

}  // namespace tamis::ops

// Softmax attention in plain torch, block by block. The equations are those of README.md.

#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tamis/ops/blocked.h"

namespace tamis::ops {

using at::Tensor;

namespace {

/// The positions from the oldest key of a query to its own.
int64_t span_of(const ScaledAttentionOptions& options, int64_t keys) {
  if (!options.window || *options.window >= keys) return keys;
  return *options.window + (options.strict ? 1 : 0);
}

/// The rows of a call, queries multiplied by the scale.
struct SoftmaxRows {
  at::TensorOptions options;
  bool strict;
  QueryBlocks blocks;
  Tensor q, k, v;
  std::optional<Tensor> query_scale;  // c, [N, T_q, 1]

  SoftmaxRows(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const ScaledAttentionOptions& given)
      : options(q_in.options().dtype(computing_dtype(q_in.scalar_type()))),
        strict(given.strict),
        blocks(AttentionSizes(q_in, k_in), span_of(given, k_in.size(1)), given.range(), options),
        q(blocks.query_rows(q_in).mul_(given.scale)),
        k(blocks.key_rows(k_in)),
        v(blocks.key_rows(v_in)) {
    if (given.query_scale) query_scale = blocks.query_rows(given.query_scale->unsqueeze(3));
  }

  /// z of a step.
  Tensor scores(const BlockStep& step) const { return at::bmm(step.of_queries(q), step.of_keys(k).transpose(1, 2)); }

  /// p for the scores z, which may be overwritten.
  Tensor weights(const BlockStep& step, const Tensor& z) const {
    const Tensor s = query_scale ? z * step.of_queries(*query_scale) : z;
    step.hide(s, -INFINITY);
    if (!strict) return at::softmax(s, -1);
    const Tensor blind = s.amax(-1, /*keepdim=*/true) == -INFINITY;  // sees no key
    return at::softmax(s, -1).masked_fill_(blind, 0);
  }
};

}  // namespace

Tensor softmax_attention_blocked(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ScaledAttentionOptions& options) {
  const WithoutAutocast without_autocast;
  const AttentionSizes sizes(q, k);
  if (sizes.empty()) return at::zeros({sizes.B, sizes.T_q, sizes.H, v.size(3)}, v.options());
  const SoftmaxRows rows(q, k, v, options);
  const Tensor out = rows.blocks.zero_query_rows(v.size(3));
  for (const BlockStep& step : rows.blocks.steps()) {
    step.set_queries(out, at::bmm(rows.weights(step, rows.scores(step)), step.of_keys(rows.v)));
  }
  return rows.blocks.from_query_rows(out);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> softmax_attention_backward_blocked(const Tensor& grad, const Tensor& q,
                                                                              const Tensor& k, const Tensor& v,
                                                                              const ScaledAttentionOptions& options) {
  const WithoutAutocast without_autocast;
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  if (AttentionSizes(q, k).empty()) {
    return {zeros(q), zeros(k), zeros(v),
            options.query_scale ? zeros(*options.query_scale) : at::empty({0}, q.options())};
  }
  const SoftmaxRows rows(q, k, v, options);
  const Tensor dout = rows.blocks.query_rows(grad), dq = rows.blocks.zero_query_rows(q.size(3));
  const Tensor dk = rows.blocks.zero_key_rows(k.size(3)), dv = rows.blocks.zero_key_rows(v.size(3));
  const Tensor dscale = rows.query_scale ? rows.blocks.zero_query_rows(1) : Tensor();
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor z = rows.scores(step), p = rows.weights(step, z), dout_step = step.of_queries(dout);
    step.add_products_to_keys(dv, p, dout_step);
    const Tensor dp = at::bmm(dout_step, step.of_keys(rows.v).transpose(1, 2));
    const Tensor ds = at::_softmax_backward_data(dp, p, -1, p.scalar_type());  // p (dp - sum_j p dp)
    if (rows.query_scale) {
      step.set_queries(dscale, (ds * z).sum(-1, /*keepdim=*/true));
      ds.mul_(step.of_queries(*rows.query_scale));
    }
    step.set_queries(dq, at::bmm(ds, step.of_keys(rows.k)));
    step.add_products_to_keys(dk, ds, step.of_queries(rows.q));
  }
  dq.mul_(options.scale);
  const QueryBlocks& blocks = rows.blocks;
  return {blocks.from_query_rows(dq).to(q.scalar_type()), blocks.from_key_rows(dk).to(k.scalar_type()),
          blocks.from_key_rows(dv).to(v.scalar_type()),
          dscale.defined() ? blocks.from_query_rows(dscale).squeeze(3).to(options.query_scale->scalar_type())
                           : at::empty({0}, q.options())};
}

}  // namespace tamis::ops

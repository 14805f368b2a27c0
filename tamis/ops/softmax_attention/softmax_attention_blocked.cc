// Softmax attention in plain torch, block by block. The equations are those of README.md.

#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "tamis/ops/blocked_attention.h"

namespace tamis::ops {

using at::Tensor;

namespace {

/// The positions from the oldest key of a query to its own.
int64_t span_of(const ScaledAttentionOptions& options, int64_t queries, int64_t keys) {
  if (options.keys_before) return keys + queries;
  if (!options.window || *options.window >= keys) return keys;
  return *options.window + (options.strict ? 1 : 0);
}

struct SoftmaxRows : AttentionRows {
  bool strict;
  std::optional<Tensor> query_scale;  // c, [N, T_q, 1]

  SoftmaxRows(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const ScaledAttentionOptions& given)
      : AttentionRows(q_in, k_in, v_in, given.scale, span_of(given, q_in.size(1), k_in.size(1)), given.range()),
        strict(given.strict) {
    if (given.query_scale) query_scale = blocks.query_rows(given.query_scale->unsqueeze(3));
  }

  /// c z, and -infinity where a query does not see the key. z may be overwritten.
  Tensor visible(const BlockStep& step, const Tensor& z) const {
    const Tensor s = query_scale ? z * step.of_queries(*query_scale) : z;
    step.hide(s, -INFINITY);
    return s;
  }

  /// p for the scores z, which may be overwritten.
  Tensor weights(const BlockStep& step, const Tensor& z) const {
    const Tensor s = visible(step, z);
    if (!strict) return at::softmax(s, -1);
    const Tensor blind = s.amax(-1, /*keepdim=*/true) == -INFINITY;  // sees no key
    return at::softmax(s, -1).masked_fill_(blind, 0);
  }
};

/// Gradients where there are no queries or no keys.
std::tuple<Tensor, Tensor, Tensor, Tensor> no_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                                        const ScaledAttentionOptions& options) {
  const Tensor dc = options.query_scale ? at::zeros(options.query_scale->sizes(), options.query_scale->options())
                                        : at::empty({0}, q.options());
  return std::tuple_cat(zero_gradients(q, k, v), std::tuple(dc));
}

/// Gradients of q, k, v and query_scale. pairs(step, z, dp) gives p and the gradient of the scores c z; it may
/// overwrite z unless there is a query_scale. `centre`: rows [N, T_q, 1] that may be subtracted from z in the gradient
/// of query_scale, as the gradients of a query's scores add up to 0; undefined: 0.
template <typename Pairs>
std::tuple<Tensor, Tensor, Tensor, Tensor> gradients_of(const SoftmaxRows& rows, const Tensor& grad, const Tensor& q,
                                                        const Tensor& k, const Tensor& v,
                                                        const ScaledAttentionOptions& options, const Pairs& pairs,
                                                        const Tensor& centre = {}) {
  AttentionGradients gradients(rows, grad);
  const Tensor dscale = rows.query_scale ? rows.blocks.zero_query_rows(1) : Tensor();
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor z = rows.scores(step);
    const auto [p, ds] = pairs(step, z, gradients.of_weights(step));
    if (rows.query_scale) {
      const Tensor centred = centre.defined() ? z - step.of_queries(centre) : z;
      step.set_queries(dscale, (ds * centred).sum(-1, /*keepdim=*/true));
      ds.mul_(step.of_queries(*rows.query_scale));
    }
    gradients.add(step, p, ds);
  }
  const Tensor dc = rows.query_scale
                        ? rows.blocks.from_query_rows(dscale).squeeze(3).to(options.query_scale->scalar_type())
                        : at::empty({0}, q.options());
  return std::tuple_cat(gradients.result(q, k, v), std::tuple(dc));
}

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
  if (AttentionSizes(q, k).empty()) return no_gradients(q, k, v, options);
  const SoftmaxRows rows(q, k, v, options);
  return gradients_of(rows, grad, q, k, v, options, [&](const BlockStep& step, const Tensor& z, const Tensor& dp) {
    const Tensor p = rows.weights(step, z);
    return std::pair(p, at::_softmax_backward_data(dp, p, -1, p.scalar_type()));  // p (dp - sum_j p dp)
  });
}

SoftmaxAttentionPart softmax_attention_part_blocked(const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const ScaledAttentionOptions& options) {
  const WithoutAutocast without_autocast;
  if (AttentionSizes(q, k).empty() || k.size(1) == 0) {
    const auto zeros = [&](at::IntArrayRef sizes) { return at::zeros(sizes, widened(v).options()); };
    return {zeros({q.size(0), q.size(1), q.size(2), v.size(3)}), zeros({q.size(0), q.size(2), q.size(1), 2})};
  }
  const SoftmaxRows rows(q, k, v, options);
  const Tensor out = rows.blocks.zero_query_rows(v.size(3)), statistics = rows.blocks.zero_query_rows(2);
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor s = rows.visible(step, rows.scores(step)), found = s.amax(-1, /*keepdim=*/true);
    const Tensor largest = found.masked_fill(found == -INFINITY, 0);  // sees no key
    const Tensor p = s.sub_(largest).exp_(), sum = p.sum(-1, /*keepdim=*/true);
    const Tensor inverse = sum.reciprocal().masked_fill_(sum == 0, 0);
    step.set_queries(out, at::bmm(p, step.of_keys(rows.v)).mul_(inverse));
    step.set_queries(statistics, at::cat({largest, inverse}, -1));
  }
  return {rows.blocks.from_query_rows(out), rows.blocks.from_query_rows(statistics).transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> softmax_attention_part_backward_blocked(
    const Tensor& grad, const SoftmaxAttentionPart& whole, const Tensor& q, const Tensor& k, const Tensor& v,
    const ScaledAttentionOptions& options) {
  const WithoutAutocast without_autocast;
  if (AttentionSizes(q, k).empty() || k.size(1) == 0) return no_gradients(q, k, v, options);
  const SoftmaxRows rows(q, k, v, options);
  const Tensor statistics = rows.blocks.query_rows(whole.statistics.transpose(1, 2));
  // The score z of a query's largest c z: without it the rounding of mean_dp would be multiplied by large scores.
  const Tensor centre = rows.query_scale
                            ? (statistics.narrow(2, 0, 1) / *rows.query_scale).masked_fill_(*rows.query_scale == 0, 0)
                            : Tensor();
  const Tensor mean_dp = rows.blocks.query_rows((whole.out * grad).sum(-1, /*keepdim=*/true));  // sum_j p dp
  const auto pairs = [&](const BlockStep& step, const Tensor& z, const Tensor& dp) {
    const Tensor of_queries = step.of_queries(statistics);
    const Tensor p = (rows.visible(step, z) - of_queries.narrow(2, 0, 1)).exp_().mul_(of_queries.narrow(2, 1, 1));
    return std::pair(p, (dp - step.of_queries(mean_dp)).mul_(p));
  };
  return gradients_of(rows, grad, q, k, v, options, pairs, centre);
}

}  // namespace tamis::ops

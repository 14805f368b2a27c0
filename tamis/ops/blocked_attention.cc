#include "tamis/ops/blocked_attention.h"

#include <ATen/ATen.h>

namespace tamis::ops {

using at::Tensor;

AttentionRows::AttentionRows(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, double scale,
                             int64_t span, const AttentionRange& range)
    : scale(scale),
      blocks(AttentionSizes(q_BTHK, k_BTHK), span, range,
             q_BTHK.options().dtype(computing_dtype(q_BTHK.scalar_type()))),
      q(blocks.query_rows(q_BTHK).mul_(scale)),
      k(blocks.key_rows(k_BTHK)),
      v(blocks.key_rows(v_BTHV)) {}

Tensor AttentionRows::scores(const BlockStep& step) const {
  return at::bmm(step.of_queries(q), step.of_keys(k).transpose(1, 2));
}

AttentionGradients::AttentionGradients(const AttentionRows& rows, const Tensor& grad_BTHV)
    : rows_(rows),
      dout_(rows.blocks.query_rows(grad_BTHV)),
      dq_(rows.blocks.zero_query_rows(rows.q.size(2))),
      dk_(rows.blocks.zero_key_rows(rows.k.size(2))),
      dv_(rows.blocks.zero_key_rows(rows.v.size(2))) {}

Tensor AttentionGradients::of_weights(const BlockStep& step) const {
  return at::bmm(step.of_queries(dout_), step.of_keys(rows_.v).transpose(1, 2));
}

void AttentionGradients::add(const BlockStep& step, const Tensor& weights, const Tensor& dscores) {
  step.add_products_to_keys(dv_, weights, step.of_queries(dout_));
  step.set_queries(dq_, at::bmm(dscores, step.of_keys(rows_.k)).mul_(rows_.scale));
  step.add_products_to_keys(dk_, dscores, step.of_queries(rows_.q));
}

std::tuple<Tensor, Tensor, Tensor> AttentionGradients::result(const Tensor& q, const Tensor& k, const Tensor& v) const {
  const QueryBlocks& blocks = rows_.blocks;
  return {blocks.from_query_rows(dq_).to(q.scalar_type()), blocks.from_key_rows(dk_).to(k.scalar_type()),
          blocks.from_key_rows(dv_).to(v.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor> zero_gradients(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  return {zeros(q), zeros(k), zeros(v)};
}

}  // namespace tamis::ops

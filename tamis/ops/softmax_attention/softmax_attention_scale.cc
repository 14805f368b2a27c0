#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

#include <ATen/ATen.h>

#include "tamis/ops/blocked.h"

namespace tamis::ops {

using at::Tensor;

Tensor visible_keys(const SoftmaxAttentionOptions& options, int64_t queries, const Tensor& k) {
  const int64_t keys = k.size(1);
  Tensor n;
  if (options.document) {
    n = DocumentOrder(*options.document).rank;
    if (keys > 0) n = n + (*options.document == options.document->slice(1, 0, 1)) * options.key_start;
  } else {
    n = (at::arange(keys, at::TensorOptions(k.device()).dtype(at::kLong)) + (1 + options.key_start)).unsqueeze(0);
  }
  if (options.strict) n = n - 1;
  if (options.window) n = n.clamp_max(*options.window);
  return n.slice(1, keys - queries);
}

Tensor position_scale_at(const Tensor& position_scale, const Tensor& n) {
  const int64_t entries = position_scale.size(0);
  const Tensor known = position_scale.index_select(0, (n.flatten() - 1).clamp_max(entries - 1)).view_as(n);
  // The fit costs little; whether it is needed would have to be read from the device.
  const Tensor p = position_scale.detach().to(at::kDouble);
  const Tensor logs = at::arange(1, entries + 1, p.options()).log();
  const Tensor centred = logs - logs.mean();
  const Tensor spread = centred.square().sum();
  const Tensor slope = ((centred * p).sum() / spread).masked_fill(spread == 0, 0);
  const Tensor offset = p.mean() - slope * logs.mean();
  const Tensor fitted = (n.to(at::kDouble).log() * slope + offset).to(known.scalar_type());
  return at::where(n <= entries, known, fitted);
}

std::optional<Tensor> query_scale(const SoftmaxAttentionOptions& options, const Tensor& q, const Tensor& k) {
  if (!options.log_scale) return std::nullopt;
  // A query without a key has the factor of one key: it multiplies nothing, but has to be finite.
  const Tensor n = visible_keys(options, q.size(1), k).clamp_min(1);
  const Tensor base = options.position_scale ? position_scale_at(*options.position_scale, n)
                                             : n.to(at::kDouble).log().to(options.log_scale->scalar_type());
  Tensor factor = base.unsqueeze(-1) * *options.log_scale;
  if (options.log_bias) factor = factor + *options.log_bias;
  return factor;
}

ScaledAttentionOptions scaled(const SoftmaxAttentionOptions& options, const Tensor& q, const Tensor& k) {
  return {.query_scale = query_scale(options, q, k),
          .scale = score_scale(options.scale, q.size(3)),
          .window = options.window,
          .strict = options.strict,
          .document = options.document};
}

}  // namespace tamis::ops

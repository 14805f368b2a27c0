// Softmax attention as the papers write it, in plain torch. Equation numbers are those of "Scalable-Softmax Is Superior
// for Attention".

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::ops::reference {

at::Tensor attend(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV, const ScoreScale& scale,
                  const AttentionRange& range) {
  at::Tensor z = at::einsum("bihd,bjhd->bhij", {widened(q_BTHK), widened(k_BTHK)}) * scale.scale;
  if (scale.query_scale) z = z * scale.query_scale->to(z.scalar_type()).transpose(1, 2).unsqueeze(-1);  // (2), (3)
  const at::Tensor visible = visible_pairs(q_BTHK.size(1), k_BTHK.size(1), range, q_BTHK.device());
  const at::Tensor p = z.masked_fill(visible.logical_not(), -INFINITY).softmax(-1);
  return at::einsum("bhij,bjhv->bihv", {p, widened(v_BTHV)}).to(v_BTHV.scalar_type());
}

at::Tensor softmax_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                             const SoftmaxAttentionOptions& options) {
  const ScoreScale scale{score_scale(options.scale, q_BTHK.size(3)), query_scale(options, q_BTHK, k_BTHK)};
  return attend(q_BTHK, k_BTHK, v_BTHV, scale, range_of(options));
}

}  // namespace tamis::ops::reference

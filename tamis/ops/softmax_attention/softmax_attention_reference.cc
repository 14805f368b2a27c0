// Softmax attention as the papers write it, in plain torch. Equation numbers are those of "Scalable-Softmax Is Superior
// for Attention".

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::ops::reference {

at::Tensor scaled_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const ScaledAttentionOptions& options) {
  at::Tensor z = at::einsum("bihd,bjhd->bhij", {widened(q_BTHK), widened(k_BTHK)}) * options.scale;
  if (options.query_scale) z = z * options.query_scale->to(z.scalar_type()).transpose(1, 2).unsqueeze(-1);  // (2), (3)
  const at::Tensor visible = visible_pairs(q_BTHK.size(1), k_BTHK.size(1), options.range(), q_BTHK.device());
  const at::Tensor hidden = visible.logical_not(), blind = hidden.all(-1, /*keepdim=*/true);  // sees no key
  const at::Tensor p =
      z.masked_fill(hidden.logical_and(blind.logical_not()), -INFINITY).softmax(-1).masked_fill(blind, 0);
  return at::einsum("bhij,bjhv->bihv", {p, widened(v_BTHV)}).to(v_BTHV.scalar_type());
}

at::Tensor softmax_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                             const SoftmaxAttentionOptions& options) {
  return scaled_attention(q_BTHK, k_BTHK, v_BTHV, scaled(options, q_BTHK, k_BTHK));
}

}  // namespace tamis::ops::reference

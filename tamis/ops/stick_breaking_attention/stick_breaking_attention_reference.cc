// Stick-breaking attention in plain torch, in log space as "Sieve Attention" writes it.

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_cpu.h"

namespace tamis::ops::reference {

std::tuple<at::Tensor, at::Tensor> stick_breaking_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                                                            const at::Tensor& v_BTHV,
                                                            const StickBreakingOptions& options) {
  const at::Tensor q = widened(q_BTHK), k = widened(k_BTHK), v = widened(v_BTHV);
  const at::Tensor z = at::einsum("bihd,bjhd->bhij", {q, k}) * score_scale(options.scale, q.size(3));
  const at::Tensor hidden = visible_pairs(q.size(1), k.size(1), range_of(options), q.device()).logical_not();
  const at::Tensor log_left = at::log_sigmoid(-z).masked_fill(hidden, 0);    // log(1 - sigmoid(z)) = -softplus(z)
  const at::Tensor log_rest = log_left.flip(-1).cumsum(-1).flip(-1);         // sum over j <= l
  const at::Tensor a = (z + log_rest).masked_fill(hidden, -INFINITY).exp();  // z_j - sum_{j <= l} softplus(z_l)
  const at::Tensor remainder = log_left.sum(-1).exp().transpose(1, 2);
  return {at::einsum("bhij,bjhv->bihv", {a, v}).to(v_BTHV.scalar_type()), remainder};
}

}  // namespace tamis::ops::reference

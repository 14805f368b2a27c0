// Algorithm 1 of "Sieve Attention" in plain torch, line by line.

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/attention.h"
#include "tamis/ops/sieve_algorithm1/sieve_algorithm1.h"

namespace tamis::ops::reference {

at::Tensor sieve_algorithm1(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const SieveAlgorithm1Options& options) {
  const at::Tensor q = widened(q_BTHK), k = widened(k_BTHK), v = widened(v_BTHV);
  const AttentionRange range{.strict = options.strict, .document = options.document};
  const at::Tensor z = at::einsum("bihd,bjhd->bhij", {q, k}) * score_scale(options.scale, q.size(3));
  const at::Tensor hidden = visible_pairs(q.size(1), k.size(1), range, q.device()).logical_not();
  const at::Tensor seen = z.detach().masked_fill(hidden, -INFINITY);                                          // line 6
  const at::Tensor rejected = (seen < seen.amax(-1, /*keepdim=*/true) - options.epsilon).logical_or(hidden);  // 7, 13
  const at::Tensor softplus = -at::log_sigmoid(-z).masked_fill(hidden, 0);
  const at::Tensor log_p = z - softplus.cumsum(-1);  // lines 14, 17
  const at::Tensor p = log_p.masked_fill(rejected, -INFINITY).exp();
  return at::einsum("bhij,bjhv->bihv", {p, v}).to(v_BTHV.scalar_type());  // line 16
}

}  // namespace tamis::ops::reference

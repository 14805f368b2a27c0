// Sieve attention as the paper writes it, in plain torch. Equation numbers are those of README.md.

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/attention.h"
#include "tamis/ops/selection/selection.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"

namespace tamis::ops::reference {

at::Tensor sieve_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                           const SieveAttentionOptions& options) {
  const Selection selection = selection_of(options, q_BTHK.size(3));
  const at::Tensor q = widened(q_BTHK), k = widened(k_BTHK), v = widened(v_BTHV);
  const at::Tensor z = at::einsum("bihd,bjhd->bhij", {q, k}) * selection.scale;  // (1)
  const at::Tensor visible = visible_pairs(q.size(1), k.size(1), selection.range(), q.device()).expand_as(z);
  const at::Tensor rejected = (entmax_excess(z, visible, options.alpha) > 0).logical_not();  // (2)
  const at::Tensor broken = -at::log_sigmoid(-z).masked_fill(rejected, 0);                   // softplus
  const at::Tensor newer = broken.flip({-1}).cumsum(-1).flip({-1}) - broken;
  const at::Tensor a = (at::log_sigmoid(z) - newer).masked_fill(rejected, -INFINITY).exp();  // (3)
  return at::einsum("bhij,bjhv->bihv", {a, v}).to(v_BTHV.scalar_type());                     // (4)
}

}  // namespace tamis::ops::reference

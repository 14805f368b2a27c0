// Entmax attention as the papers write it, in plain torch. Equation numbers are those of README.md.

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tamis/ops/attention.h"
#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/selection/selection.h"

namespace tamis::ops::reference {

using at::Tensor;

namespace {

Tensor softmax_where(const Tensor& z, const Tensor& visible) {
  const Tensor hidden = visible.logical_not();
  const double lowest = std::numeric_limits<float>::lowest();  // finite, so that a query that sees no key has no NaN
  return z.masked_fill(hidden, lowest).softmax(-1).masked_fill(hidden, 0);
}

/// p of Eq. (2) with the derivative of Eq. (4), which autograd cannot find: tau is the result of a search.
Tensor entmax_where(const Tensor& z, const Tensor& visible, double alpha) {
  const Tensor u = entmax_excess(z, visible, alpha).clamp_min(0);
  const Tensor selected = u > 0;
  const Tensor p = u.pow(1 / (alpha - 1));
  const Tensor g = at::where(selected, u.pow((2 - alpha) / (alpha - 1)), 0);
  const Tensor total = g.sum(-1, /*keepdim=*/true).clamp_min(std::numeric_limits<float>::min());
  const Tensor selected_z = z.masked_fill(selected.logical_not(), 0);
  const Tensor linear = g * (selected_z - (g * selected_z).sum(-1, /*keepdim=*/true) / total);
  return p + (linear - linear.detach());
}

}  // namespace

Tensor entmax_attention(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV,
                        const EntmaxAttentionOptions& options) {
  const Selection selection = selection_of(options, q_BTHK.size(3));
  const Tensor q = widened(q_BTHK), k = widened(k_BTHK), v = widened(v_BTHV);
  const Tensor z = at::einsum("bihd,bjhd->bhij", {q, k}) * selection.scale;  // (1)
  const Tensor visible = visible_pairs(q.size(1), k.size(1), selection.range(), q.device()).expand_as(z);
  const Tensor p = options.alpha == 1 ? softmax_where(z, visible) : entmax_where(z, visible, options.alpha);
  return at::einsum("bhij,bjhv->bihv", {p, v}).to(v_BTHV.scalar_type());  // (3)
}

}  // namespace tamis::ops::reference

// Selection by alpha-entmax in plain torch, block by block, with the weights of a mechanism.

#include <ATen/ATen.h>

#include <cmath>
#include <tuple>

#include "tamis/ops/blocked_attention.h"
#include "tamis/ops/selection/selection.h"

namespace tamis::ops {

using at::Tensor;

namespace {

/// tau of the last dimension of y, whose largest number is 0: sum_j max(y_j - tau, 0)^e = 1, e = 1/(alpha - 1).
/// Newton's method from the left of the root (README.md, "Threshold").
Tensor threshold_of(const Tensor& y, double alpha) {
  constexpr int kSteps = 16;
  const double e = 1 / (alpha - 1), precision = y.scalar_type() == at::kDouble ? 1e-15 : 1e-7;
  Tensor tau = at::full({y.size(0), y.size(1), 1}, -1.0, y.options());
  for (int step = 0; step < kSteps; ++step) {
    const Tensor u = (y - tau).clamp_min_(0);
    const Tensor slope = alpha == 2 ? at::sign(u) : alpha == 1.5 ? u : u.pow(e - 1).masked_fill_(u == 0, 0);
    const Tensor B = slope.sum(-1, /*keepdim=*/true);
    const Tensor A = alpha == 2 ? u.sum(-1, /*keepdim=*/true) : slope.mul(u).sum(-1, /*keepdim=*/true);
    // A row that sees no key has A = B = 0, and stays as it is.
    const Tensor change = ((A - A.pow(2 - alpha)) / B).masked_fill_(A == 0, 0);
    tau = tau + change;
    // Waits for the result only where that costs nothing; later steps change the last digits alone.
    if (y.is_cpu() && (change <= precision).all().item<bool>()) break;
  }
  return tau;
}

struct SelectionRows : AttentionRows {
  double alpha;

  SelectionRows(const Selection& given, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in)
      : AttentionRows(q_in, k_in, v_in, given.scale, /*span=*/k_in.size(1), given.range()), alpha(given.alpha) {}

  /// u = (alpha - 1) z - tau where it is positive, else 0; at alpha 1 infinity where a key is visible.
  Tensor excess(const BlockStep& step, const Tensor& z) const {
    if (alpha == 1) {
      const Tensor visible = at::full_like(z, INFINITY);
      step.hide(visible, 0);
      return visible;
    }
    const Tensor y = z * (alpha - 1);
    step.hide(y, -INFINITY);
    const Tensor largest = y.amax(-1, /*keepdim=*/true);
    y.sub_(largest.masked_fill_(largest == -INFINITY, 0));
    return y.sub_(threshold_of(y, alpha)).clamp_min_(0);
  }
};

}  // namespace

Tensor selection_blocked(const SelectedWeights& weights, const Selection& selection, const Tensor& q, const Tensor& k,
                         const Tensor& v) {
  const WithoutAutocast without_autocast;
  const AttentionSizes sizes(q, k);
  if (sizes.empty()) return at::zeros({sizes.B, sizes.T_q, sizes.H, v.size(3)}, v.options());
  const SelectionRows rows(selection, q, k, v);
  const Tensor out = rows.blocks.zero_query_rows(v.size(3));
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor z = rows.scores(step), u = rows.excess(step, z);
    step.set_queries(out, at::bmm(weights.forward(z, u, selection.alpha), step.of_keys(rows.v)));
  }
  return rows.blocks.from_query_rows(out).to(v.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> selection_backward_blocked(const SelectedWeights& weights,
                                                              const Selection& selection, const Tensor& grad,
                                                              const Tensor& q, const Tensor& k, const Tensor& v) {
  const WithoutAutocast without_autocast;
  if (AttentionSizes(q, k).empty()) return zero_gradients(q, k, v);
  const SelectionRows rows(selection, q, k, v);
  AttentionGradients gradients(rows, grad);
  for (const BlockStep& step : rows.blocks.steps()) {
    const Tensor z = rows.scores(step), u = rows.excess(step, z);
    const auto [weight, dz] = weights.backward(z, u, selection.alpha, gradients.of_weights(step));
    gradients.add(step, weight, dz);
  }
  return gradients.result(q, k, v);
}

}  // namespace tamis::ops

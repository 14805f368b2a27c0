// The weights of entmax attention in plain torch, for the blocked form. Equation numbers: README.md.

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/selection/selection.h"

namespace tamis::ops {

using at::Tensor;

namespace {

/// Softmax over the keys with u > 0; 0 where there is none.
Tensor softmax_of(const Tensor& z, const Tensor& u) {
  const Tensor hidden = u == 0;
  return z.masked_fill(hidden, std::numeric_limits<float>::lowest()).softmax(-1).masked_fill_(hidden, 0);
}

Tensor weights_of(const Tensor& z, const Tensor& u, double alpha) {  // (2)
  if (alpha == 1) return softmax_of(z, u);
  return alpha == 2 ? u : alpha == 1.5 ? u.square() : u.pow(1 / (alpha - 1));
}

std::tuple<Tensor, Tensor> gradient_of(const Tensor& z, const Tensor& u, double alpha, const Tensor& dp) {  // (4)
  const Tensor p = weights_of(z, u, alpha);
  const Tensor g = alpha == 1     ? p
                   : alpha == 2   ? at::sign(u)
                   : alpha == 1.5 ? u
                                  : u.pow(1 / (alpha - 1) - 1).masked_fill_(u == 0, 0);
  const Tensor total = g.sum(-1, /*keepdim=*/true).clamp_min_(std::numeric_limits<float>::min());
  const Tensor mean = (g * dp).sum(-1, /*keepdim=*/true) / total;
  return {p, dp.sub_(mean).mul_(g)};
}

}  // namespace

const SelectedWeights& entmax_weights() {
  static constexpr SelectedWeights kWeights{&weights_of, &gradient_of};
  return kWeights;
}

}  // namespace tamis::ops

// The selection of alpha-entmax in plain torch.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <tuple>

#include "tamis/ops/selection/selection.h"

namespace tamis::ops::reference {

using at::Tensor;

Tensor entmax_excess(const Tensor& z, const Tensor& visible, double alpha) {
  const at::NoGradGuard no_grad;
  const Tensor hidden = visible.logical_not();
  if (alpha == 1) return at::full_like(z, INFINITY).masked_fill(hidden, -INFINITY);
  const Tensor x = (z * (alpha - 1)).masked_fill(hidden, -INFINITY);
  if (x.size(-1) == 0) return x;
  const Tensor largest = std::get<0>(x.max(-1, /*keepdim=*/true));
  const Tensor y = x - largest.masked_fill(largest == -INFINITY, 0);
  Tensor low = at::full_like(largest, -1.0), high = at::zeros_like(largest);  // of tau - largest
  const int steps = z.scalar_type() == at::kDouble ? 60 : 30;
  for (int step = 0; step < steps; ++step) {
    const Tensor middle = (low + high) / 2;
    const Tensor too_low = (y - middle).clamp_min(0).pow(1 / (alpha - 1)).sum(-1, /*keepdim=*/true) >= 1;
    low = at::where(too_low, middle, low);
    high = at::where(too_low, high, middle);
  }
  return y - low;
}

}  // namespace tamis::ops::reference

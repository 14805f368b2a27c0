// The vocabulary head and its loss in plain torch, tile of tokens by tile of tokens. Equation numbers: README.md.

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_blocked.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tamis/ops/blocked.h"

namespace tamis::ops {

using at::Tensor;

HeadPassResult linear_cross_entropy_blocked(const HeadPass& pass) {
  const WithoutAutocast without_autocast;
  constexpr int64_t kLogits = int64_t{1} << 23;  // of a tile: 32 MiB of float32
  const int64_t T = pass.x_TD.size(0), N = pass.weight_ND.size(0);
  const int64_t tile = std::clamp<int64_t>(kLogits / N, 16, std::max<int64_t>(T, 16));
  const auto dtype = at::promote_types(pass.x_TD.scalar_type(), at::kFloat);
  const auto options = pass.x_TD.options().dtype(dtype);
  const Tensor weight = pass.weight_ND.to(dtype), ignored = pass.target_T == pass.options.ignore_index;
  const Tensor target = pass.target_T.masked_fill(ignored, 0);
  HeadPassResult result;
  result.loss_T = at::empty({T}, options);
  if (pass.options.x_gradient) result.x_TD = at::empty(pass.x_TD.sizes(), pass.x_TD.options());
  const Tensor dweight = pass.options.weight_gradient ? at::zeros(weight.sizes(), options) : Tensor();

  for (int64_t first = 0; first < T; first += tile) {
    const int64_t tokens = std::min(tile, T - first);
    const auto part = [&](const Tensor& x_T) { return x_T.narrow(0, first, tokens); };
    const Tensor x = part(pass.x_TD).to(dtype), z = at::mm(x, weight.t());  // (1)
    if (pass.options.soft_cap) z.div_(*pass.options.soft_cap).tanh_().mul_(*pass.options.soft_cap);
    const Tensor own = part(target).unsqueeze(1), log_sum = z.logsumexp(1, /*keepdim=*/true);
    part(result.loss_T).copy_((log_sum - z.gather(1, own)).squeeze(1).masked_fill_(part(ignored), 0));  // (2)
    if (!pass.loss_gradient_T.defined()) continue;

    const Tensor p = (z - log_sum).exp_();
    p.scatter_add_(1, own, at::full({tokens, 1}, -1.0, options));
    p.mul_(part(pass.loss_gradient_T).to(dtype).masked_fill(part(ignored), 0).unsqueeze(1));
    if (pass.options.soft_cap) p.mul_(z.div_(*pass.options.soft_cap).square_().neg_().add_(1));
    if (pass.options.x_gradient) part(result.x_TD).copy_(at::mm(p, weight));  // (4)
    if (pass.options.weight_gradient) dweight.addmm_(p.t(), x);               // (5)
  }
  if (pass.options.weight_gradient) result.weight_ND = dweight.to(pass.weight_ND.scalar_type());
  return result;
}

}  // namespace tamis::ops

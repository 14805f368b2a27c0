// The vocabulary head and its loss as the equation reads, in plain torch: T x N logits, any dtype and device.

#include <ATen/ATen.h>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

namespace tamis::ops::reference {

at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_ND, const at::Tensor& target_T,
                                const LinearCrossEntropyOptions& options) {
  const auto dtype = at::promote_types(x_TD.scalar_type(), at::kFloat);  // half-precision storage computes in float32
  at::Tensor z_TN = at::matmul(x_TD.to(dtype), weight_ND.to(dtype).t());
  if (const auto c = options.soft_cap) z_TN = *c * at::tanh(z_TN / *c);
  const at::Tensor counted_T = target_T != options.ignore_index;
  const at::Tensor index_T = at::where(counted_T, target_T, 0);
  const at::Tensor target_logit_T = z_TN.gather(-1, index_T.unsqueeze(-1)).squeeze(-1);
  const at::Tensor loss_T = at::where(counted_T, z_TN.logsumexp(-1) - target_logit_T, 0.0);
  if (options.reduction == "none") return loss_T;
  const at::Tensor sum = loss_T.sum();
  return options.reduction == "sum" ? sum : sum / counted_T.sum().clamp_min(1);
}

}  // namespace tamis::ops::reference

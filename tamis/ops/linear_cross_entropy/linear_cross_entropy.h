#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tamis::ops {

struct LinearCrossEntropyOptions {
  std::string reduction = "mean";  // "mean" over counted targets, "sum", or "none"
  int64_t ignore_index = -100;     // tokens with this target are left out
  std::optional<double> soft_cap;  // c > 0: logits z become c tanh(z / c), in (-c, c)
};

/// Vocabulary head and loss in one: loss_t = logsumexp_n(z_tn) - z_t,target, natural logarithm, of the logits
/// z_tn = x_t . weight_n or, with a soft cap c, c tanh(x_t . weight_n / c), without the T x N logits.
///
/// x_TD        [..., D] float32, float64 or bfloat16 (a learned logit scale is multiplied into x beforehand)
/// weight_ND   vocabulary head, the dtype of x
/// target_T    [...] int64: in [0, N) or ignore_index
/// returns     a float32 (float64) scalar, or [...] with reduction "none"; mean over no counted target is 0
///
/// Gradient  x, weight; once.
/// Memory    beyond the inputs and their gradients at most 64 MB, a tile of logits and, in bfloat16, N D bytes of sums
///           (where N D > 32 M those alone are more; see README.md). For "mean" and "sum" the gradients are
///           computed in the forward pass, tile by tile.
/// Bits      the same for any number of threads.
/// Throws    c10::ValueError when shapes or dtypes disagree or the cap is not positive, c10::IndexError when a target
/// is out of range.
at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_ND, const at::Tensor& target_T,
                                const LinearCrossEntropyOptions& options = {});

namespace reference {

/// The definition, in plain torch.
at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_ND, const at::Tensor& target_T,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops

#include "tamis/models/mixers/mipe_wrap.h"

#include <ATen/ATen.h>

#include <numbers>

#include "tamis/nn/rotary.h"
#include "tamis/ops/screening/screening_functions.h"
#include "tamis/ops/window.h"

namespace tamis::models {

using at::Tensor;

Tensor mipe_wrapped(const Tensor& x_BTHK, const Tensor& s_w_H, int64_t first, const MipeWrap& options) {
  const int64_t last = first + x_BTHK.size(1);
  if (last <= options.boundary) return x_BTHK;
  const auto doubles = at::TensorOptions(x_BTHK.device()).dtype(at::kDouble);
  const Tensor w_H = ops::window_tokens(s_w_H.to(doubles));
  Tensor rotates_H = w_H < options.mipe_threshold;
  if (options.expand_beyond) rotates_H = rotates_H.logical_and(w_H <= *options.expand_beyond);
  const Tensor phi_H = at::where(rotates_H, ops::mipe_phi_below_threshold(w_H, options.mipe_threshold), 0.0);
  const Tensor i_T1 = at::arange(first, last, doubles).unsqueeze(1);
  const Tensor turns_TH = at::where(i_T1 >= options.boundary, at::floor(i_T1 / w_H.detach()), 0.0);
  const Tensor angle_TH = -std::numbers::pi * phi_H * turns_TH;
  return at::cat({nn::rotated(x_BTHK.slice(3, 0, 2), angle_TH.unsqueeze(2)), x_BTHK.slice(3, 2)}, 3);
}

}  // namespace tamis::models

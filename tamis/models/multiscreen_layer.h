#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "tamis/models/model.h"
#include "tamis/models/multiscreen_config.h"
#include "tamis/ops/screening/screening_layer.h"

namespace tamis::models {

/// How a layer's projections lie side by side in the result of its one GEMM.
ops::ProjectionLayout projection_layout(const MultiscreenConfig& config);

/// The gated screening of all tiles: projections, rotated where the configuration says so -> u * tanh(SiLU(g)),
/// [B, T, H, V].
using Screen = std::function<at::Tensor(const ops::ScreeningProjections&)>;

/// x + sum_h dx^(h), Eq. (2) and (15)-(18). x_BTD stays float32 whatever the dtype of the weights. ops::screening_layer
/// does the same at once, where nobody looks at what is between.
at::Tensor apply_tiles(const MultiscreenConfig& config, const ops::ScreeningWeights& weights, const Screen& screen,
                       const at::Tensor& x_BTD);

/// Rows at the positions first, first + 1, ..., x_BTHK, rotated where the configuration's position is "rope": before
/// screening makes them unit vectors, which changes nothing.
at::Tensor positioned(const MultiscreenConfig& config, const at::Tensor& x_BTHK, int64_t first);

/// Keys that a query sees through a window of `width` tokens, 0 <= i - j < w: the mean over the queries of a sequence.
double mean_visible_keys(double width, int64_t length);

/// The configuration's options of ops::screening.
ops::ScreeningOptions screening_options(const MultiscreenConfig& config, const ForwardOptions& options);

}  // namespace tamis::models

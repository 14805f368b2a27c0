#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "tamis/models/model.h"
#include "tamis/models/multiscreen_config.h"
#include "tamis/ops/screening/screening_projected.h"

namespace tamis::models {

/// The tiles of one layer as the forward pass wants them: matrices in the compute dtype, exp(s_O) folded into W_O.
struct TileWeights {
  at::Tensor projection;  // [2 H K + 2 H V, D], or without the gate's H V rows: W_Q, W_K, W_V, W_G as one GEMM
  at::Tensor output;      // [D, H V]
  at::Tensor s_w;         // [H]
  at::Tensor s_r;         // [H]; where r is fixed, its logit
};

/// How a layer's projections lie side by side in the result of its one GEMM.
ops::ProjectionLayout projection_layout(const MultiscreenConfig& config);

/// The gated screening of all tiles: projections side by side -> u * tanh(SiLU(g)), [B, T, H, V].
using Screen = std::function<at::Tensor(const at::Tensor& projected_BTW)>;

/// x + sum_h dx^(h), Eq. (2) and (15)-(18). x_BTD stays float32 whatever the dtype of the weights.
at::Tensor apply_tiles(const MultiscreenConfig& config, const TileWeights& weights, const Screen& screen,
                       const at::Tensor& x_BTD);

/// Rows at the positions first, first + 1, ..., x_BTHK, rotated where the configuration's position is "rope": before
/// screening makes them unit vectors, which changes nothing.
at::Tensor positioned(const MultiscreenConfig& config, const at::Tensor& x_BTHK, int64_t first);

/// Keys that a query sees through a window of `width` tokens, 0 <= i - j < w: the mean over the queries of a sequence.
double mean_visible_keys(double width, int64_t length);

/// The configuration's options of ops::screening.
ops::ScreeningOptions screening_options(const MultiscreenConfig& config, const ForwardOptions& options);

}  // namespace tamis::models

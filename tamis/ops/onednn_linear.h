#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

/// Whether LibTorch has oneDNN's product of plain float32 matrices.
bool has_onednn_linear();

/// X W^T by oneDNN: x [..., D], weight_ED [E, D], float32 on the CPU, x contiguous and the weight contiguous one way or
/// the other (others are copied). Nothing is recorded for a gradient. Only where has_onednn_linear().
at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& weight_ED);

}  // namespace tamis::ops

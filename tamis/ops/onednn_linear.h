#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

/// Whether LibTorch has oneDNN's product of plain float32 matrices.
bool has_onednn_linear();

/// X W^T by oneDNN: x [..., D], weight_ED [E, D], float32 on the CPU, x contiguous and the weight contiguous one way or
/// the other (others are copied). Nothing is recorded for a gradient. Only where has_onednn_linear().
at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& weight_ED);

/// oneDNN does not check every allocation of a new primitive and crashes where one fails. Under a memory limit
/// (RLIMIT_AS) this throws std::bad_alloc before little is left; without one it does nothing. To be called before
/// products that oneDNN may compute, those of bfloat16 by at:: included.
void check_onednn_memory();

}  // namespace tamis::ops

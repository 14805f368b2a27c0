#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tamis/kernels/rows.h"

// Tensors as rows for the kernels.

namespace tamis::ops {

/// The storage of a dtype that the kernels support.
kernels::Storage storage_of(at::ScalarType dtype);

/// x itself, or a copy whose last dimension is adjacent.
at::Tensor with_adjacent_rows(const at::Tensor& x_BTHD);

/// Rows of sequence `batch`, head `head` of a [B, T, H, D] tensor with adjacent rows.
kernels::Rows rows_of(const at::Tensor& x_BTHD, int64_t batch, int64_t head);

}  // namespace tamis::ops

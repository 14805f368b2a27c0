#pragma once

#include "tamis/models/exchange/format.h"

// Rotary embedding rotates pairs of a head's dimensions. Tamis and transformers pair d with d + D/2 ("half"), the files
// of Meta 2 d with 2 d + 1 ("interleaved"). Similarities are the same when the rows of W_Q and W_K are permuted.

namespace tamis::models::exchange {

/// Whether the other side's layout is interleaved; throws ExitCode::kUsage for an unknown name.
bool is_interleaved(const FormatOptions& options);

/// Rows [H D, ...] of interleaved pairs as rows of half-split pairs, and back.
LazyTensor to_half_split(const LazyTensor& rows, int64_t head_dim);
LazyTensor to_interleaved(const LazyTensor& rows, int64_t head_dim);

}  // namespace tamis::models::exchange

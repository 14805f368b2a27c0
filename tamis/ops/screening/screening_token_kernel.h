#pragma once

#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::kernels {

/// screening_forward for one query, pass.last = pass.first + 1, float32 rows, one document, packed up to that query:
/// what decoding does token by token. A block of queries would leave all lanes but one idle.
void screening_token(const ScreeningPass<float>& pass);

/// Scratch numbers of such a pass.
constexpr int64_t token_scratch(int64_t key_dim, int64_t value_dim) {
  return 2 * padded(key_dim) + 2 * padded(value_dim);
}

}  // namespace tamis::kernels

#pragma once

#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::kernels {

/// screening_forward for one query (pass.last = pass.first + 1), float32 rows and one document, with the keys before
/// the query packed: decoding token by token. It leaves out what saves time only for a block of queries.
void screening_token(const ScreeningPass<float>& pass);

/// Numbers of pass.scratch.
constexpr int64_t token_scratch(int64_t key_dim, int64_t value_dim) {
  return 2 * padded(key_dim) + 2 * padded(value_dim);
}

}  // namespace tamis::kernels

#pragma once

#include <cstdint>

#include "tamis/kernels/attention.h"

// One query of one head, for decoding: plain memory, no tensors, no threads. Only the scratch memory of the calling
// thread is allocated, once: a few KiB, and for entmax and Sieve 8 bytes a key (in every call if above 16 MiB). Each
// operator has a function of it.

namespace tamis::ops {

/// Keys and values are float32 rows padded with zeros to kernels::padded(K) and kernels::padded(V) numbers, oldest
/// first; the query sees all of them.
struct AttentionToken {
  float* q = nullptr;  // [K]
  const float* keys = nullptr;
  const float* values = nullptr;
  int64_t count = 0;  // keys; with none the result is 0
  int64_t key_dim = 0, value_dim = 0;
  float scale = 1;       // of the scores
  float* out = nullptr;  // [V]
};

/// A token as the kernels read it: a block of one query, the newest of `count` positions.
inline kernels::PackedKeys packed_keys(const AttentionToken& token) {
  return {token.keys, token.values, token.key_dim, token.value_dim};
}
inline kernels::QueryBlock query_block(const AttentionToken& token) {
  return {token.count - 1, 1};
}
inline kernels::Rows row_of(float* numbers, int64_t dim) {
  return {numbers, dim, kernels::Storage::kFloat32};
}

}  // namespace tamis::ops

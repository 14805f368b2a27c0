#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::ops {

/// A head as the kernels want it, its tables owned. `derivative` needs what only the backward pass reads.
template <typename Real>
struct PreparedHead {
  kernels::ScreeningHead<Real> constants;
  std::vector<Real> softmask, slope;
  double mipe_step_slope = 0;  // d mipe_step / d s_w
};

/// w = exp(s_w) + 1, infinite where it exceeds options.expand_beyond.
double screening_width(double s_w, std::optional<double> expand_beyond);

/// Turns a head's two scalars into what the kernels read, for sequences of `keys` keys.
template <typename Real>
PreparedHead<Real> prepare_head(double s_w, double s_r, int64_t key_dim, int64_t value_dim, int64_t keys,
                                double mipe_threshold, std::optional<double> expand_beyond, bool mipe, bool tanh_norm,
                                bool derivative);

/// The storage name of a dtype that the kernels know.
kernels::Storage storage_of(at::ScalarType dtype);

/// x itself, or a copy whose last dimension is adjacent.
at::Tensor with_adjacent_rows(const at::Tensor& x_BTHD);

/// Rows of sequence `batch`, head `head` of a [B, T, H, D] tensor with adjacent rows.
kernels::Rows rows_of(const at::Tensor& x_BTHD, int64_t batch, int64_t head);

/// Queries that a forward walk answers together: fewer where the window is short, so that less is computed beyond it.
int64_t block_for_span(int64_t span);

/// Aligned memory that a thread hands out piece by piece and keeps for its next walk (unless it grew large).
template <typename Real>
class WalkMemory {
 public:
  /// Memory for one walk: everything taken before is invalid.
  void reset();
  /// `count` numbers, not initialised, 64-byte aligned.
  template <typename T = Real>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  void* take_bytes(size_t bytes);
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  size_t block_size_ = 0;  // of the last block
  size_t used_ = 0;        // of the last block
};

/// The memory of an index that a decoding state keeps. It may grow, its contents stay.
class StoredIndex {
 public:
  /// Makes room for `keys` keys of `key_dim` numbers.
  void reserve(int64_t keys, int64_t key_dim);
  int64_t bytes() const { return bytes_for(index_.capacity, key_dim_); }
  /// Bytes of an index with room for `keys` keys.
  static int64_t bytes_for(int64_t keys, int64_t key_dim);
  /// The index with its addresses, and scratch memory from `memory`.
  kernels::KeyIndex<float>* bind(WalkMemory<float>& memory);

 private:
  int64_t key_dim_ = 0;
  kernels::KeyIndex<float> index_;
  std::vector<float> tiles_;
  std::vector<uint16_t> position_;
  std::vector<float> centres_[kernels::kIndexLevels], limits_[kernels::kIndexLevels];
};

/// An index for a walk over `keys` keys, all of it in `memory`.
template <typename Real>
kernels::KeyIndex<Real>* take_index(int64_t keys, int64_t key_dim, kernels::Skipping skipping,
                                    WalkMemory<Real>& memory);

/// The calling thread's memory, reset.
template <typename Real>
WalkMemory<Real>& thread_memory();

}  // namespace tamis::ops

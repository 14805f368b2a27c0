#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::ops {

/// A head as the kernels want it, its tables owned. `derivative` needs what only the backward pass reads.
template <typename Real>
struct PreparedHead {
  kernels::ScreeningHead<Real> constants;
  std::vector<Real> softmask, slope;
  std::vector<double> turns;
  double mipe_step_slope = 0;  // d mipe_step / d s_w
};

/// w in tokens, infinite where it exceeds `expand_beyond`.
double expanded_window(double s_w, std::optional<double> expand_beyond);

/// Turns a head's two scalars into what the kernels read, for sequences of `keys` keys.
template <typename Real>
PreparedHead<Real> prepare_head(double s_w, double s_r, int64_t key_dim, int64_t value_dim, int64_t keys,
                                double mipe_threshold, std::optional<double> expand_beyond, bool mipe, bool tanh_norm,
                                bool derivative);

/// Queries that a forward walk answers together: fewer where the window is short, so that less is computed beyond it.
int64_t block_for_span(int64_t span);

/// The memory of an index that a decoding state keeps. It may grow, its contents stay.
class StoredIndex {
 public:
  /// Makes room for `keys` keys of `key_dim` numbers.
  void reserve(int64_t keys, int64_t key_dim);
  int64_t bytes() const { return bytes_for(index_.capacity, key_dim_); }
  /// Bytes of an index with room for `keys` keys.
  static int64_t bytes_for(int64_t keys, int64_t key_dim);
  /// The index with its addresses, and scratch memory from `memory`.
  kernels::KeyIndex<float>* bind(ScratchMemory<float>& memory);

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
                                    ScratchMemory<Real>& memory);

}  // namespace tamis::ops

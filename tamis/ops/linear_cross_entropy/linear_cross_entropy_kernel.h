#pragma once

#include <cstdint>

// The row passes of the vocabulary head on raw pointers: no torch, no allocation, no threads in here. Highway compiles
// the bodies for every instruction set and picks at run time. Real is float or double.

namespace tamis::kernels {

/// A block of logits [rows, columns] in memory: row r starts at data + r * stride.
template <typename Real>
struct LogitBlock {
  Real* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;  // at least 1
  int64_t stride = 0;
};

/// z_rn <- cap tanh(z_rn / cap), in place.
template <typename Real>
void soft_cap(const LogitBlock<Real>& logits, Real cap);

/// maximum_r = max_n z_rn and sum_r = sum_n exp(z_rn - maximum_r). A NaN among the logits of a row makes its sum NaN.
template <typename Real>
void softmax_statistics(const LogitBlock<Real>& logits, Real* maximum_R, Real* sum_R);

/// z_rn <- exp(z_rn - maximum_r) * scale_r, in place: with maximum and sum over the whole row and
/// scale = gradient / sum this is the softmax times the gradient of the row's loss.
template <typename Real>
void scaled_softmax(const LogitBlock<Real>& logits, const Real* maximum_R, const Real* scale_R);

/// The same of logits z = cap tanh(y / cap), times dz / dy = 1 - (z / cap)^2.
template <typename Real>
void scaled_softmax_of_capped(const LogitBlock<Real>& logits, const Real* maximum_R, const Real* scale_R, Real cap);

}  // namespace tamis::kernels

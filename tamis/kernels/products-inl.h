// Products of small matrices that are in the caches. Included once per instruction set.

#if defined(TAMIS_KERNELS_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_KERNELS_PRODUCTS_INL_H_
#undef TAMIS_KERNELS_PRODUCTS_INL_H_
#else
#define TAMIS_KERNELS_PRODUCTS_INL_H_
#endif

#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Element (m, k) is data[m * row + k * column]: a matrix or, with the strides exchanged, its transpose.
struct LeftMatrix {
  const float* data;
  int64_t row, column;
};

/// Row r begins at data + r * stride; columns are adjacent, and their number is a multiple of kLanes.
struct RightMatrix {
  const float* data;
  int64_t stride;
};

struct Product {
  float* data;
  int64_t stride;
};

enum class Sum { kReplace, kAdd };

/// kRows rows and kVectors vectors of columns of C over the whole depth, summed in registers.
template <Sum kSum, int kRows, int kVectors>
HWY_INLINE void MultiplyPiece(int64_t depth, const LeftMatrix& a, const RightMatrix& b, const Product& c) {
  const LaneTag<float> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  SizedVec<LaneTag<float>> sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::Zero(d);
  }
  const float* HWY_RESTRICT left = a.data;
  const float* HWY_RESTRICT right = b.data;
  for (int64_t k = 0; k < depth; ++k, left += a.column, right += b.stride) {
    SizedVec<LaneTag<float>> columns[kVectors];
    for (int n = 0; n < kVectors; ++n) columns[n] = hn::LoadU(d, right + n * kWidth);
    for (int m = 0; m < kRows; ++m) {
      const auto factor = hn::Set(d, left[m * a.row]);
      for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::MulAdd(factor, columns[n], sum[m][n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) {
      float* out = c.data + m * c.stride + n * kWidth;
      if constexpr (kSum == Sum::kAdd) sum[m][n] = hn::Add(hn::LoadU(d, out), sum[m][n]);
      hn::StoreU(sum[m][n], d, out);
    }
  }
}

template <Sum kSum, int kRows>
HWY_INLINE void MultiplyRows(int64_t columns, int64_t depth, const LeftMatrix& a, const RightMatrix& b,
                             const Product& c) {
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  constexpr int kMost = kWidth == 16 ? 4 : 2;  // kRows * kMost sums and kMost columns in 32 or 16 registers
  int64_t n = 0;
  const auto piece = [&](int64_t at) {
    return std::pair(RightMatrix{b.data + at, b.stride}, Product{c.data + at, c.stride});
  };
  for (; n + kMost * kWidth <= columns; n += kMost * kWidth) {
    const auto [right, out] = piece(n);
    MultiplyPiece<kSum, kRows, kMost>(depth, a, right, out);
  }
  for (; n < columns; n += kWidth) {
    const auto [right, out] = piece(n);
    MultiplyPiece<kSum, kRows, 1>(depth, a, right, out);
  }
}

/// C = A B or C += A B, C being `rows` x `columns` (a multiple of kLanes). An element is summed over the depth in order
/// and added to C at the end, whatever the other sizes, so the bits do not depend on how C is cut.
template <Sum kSum>
HWY_INLINE void Multiply(int64_t rows, int64_t columns, int64_t depth, const LeftMatrix& a, const RightMatrix& b,
                         const Product& c) {
  constexpr int kMost = 6;
  const auto left = [&](int64_t m) { return LeftMatrix{a.data + m * a.row, a.row, a.column}; };
  const auto out = [&](int64_t m) { return Product{c.data + m * c.stride, c.stride}; };
  int64_t m = 0;
  for (; m + kMost <= rows; m += kMost) MultiplyRows<kSum, kMost>(columns, depth, left(m), b, out(m));
  switch (rows - m) {
    case 5:
      return MultiplyRows<kSum, 5>(columns, depth, left(m), b, out(m));
    case 4:
      return MultiplyRows<kSum, 4>(columns, depth, left(m), b, out(m));
    case 3:
      return MultiplyRows<kSum, 3>(columns, depth, left(m), b, out(m));
    case 2:
      return MultiplyRows<kSum, 2>(columns, depth, left(m), b, out(m));
    case 1:
      return MultiplyRows<kSum, 1>(columns, depth, left(m), b, out(m));
    default:
      return;
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

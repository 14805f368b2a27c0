#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tamis/kernels/testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_transpose_kernel_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_rows_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// Transposes in vectors; false if K does not allow it.
template <typename Real>
bool TransposeRows(const Real* rows, int64_t K, Real* tile) {
  if (K % kTransposedAtOnce<Real> != 0) return false;
  Transpose(rows, K, tile);
  return true;
}
bool TransposeFloats(const float* rows, int64_t K, float* tile) {
  return TransposeRows(rows, K, tile);
}
bool TransposeDoubles(const double* rows, int64_t K, double* tile) {
  return TransposeRows(rows, K, tile);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {
namespace {

HWY_EXPORT(TransposeFloats);
HWY_EXPORT(TransposeDoubles);

template <typename Real, typename Transpose>
void expect_columns(const Transpose& transpose) {
  int64_t transposed = 0;
  for (const int64_t K : {2, 4, 5, 6, 7, 8, 12, 16, 20, 24, 33, 64}) {
    const int64_t width = padded(K);
    std::vector<Real> rows(kTileKeys * width), tile((K + 8) * kTileKeys, Real{-1});
    for (int64_t key = 0; key < kTileKeys; ++key) {
      for (int64_t d = 0; d < K; ++d) rows[key * width + d] = static_cast<Real>(1000 * key + d);
    }
    if (!transpose(rows.data(), K, tile.data())) continue;
    ++transposed;
    for (int64_t d = 0; d < K + 8; ++d) {  // nothing is written after the tile
      for (int64_t key = 0; key < kTileKeys; ++key) {
        ASSERT_EQ(tile[d * kTileKeys + key], d < K ? static_cast<Real>(1000 * key + d) : Real{-1})
            << "K " << K << ", dimension " << d << " of key " << key;
      }
    }
  }
  EXPECT_GE(transposed, 7);
}

TEST(ScreeningTranspose, PutsKeysIntoLanes) {
  testing::for_each_target([] {
    expect_columns<float>([](auto... in) { return HWY_DYNAMIC_DISPATCH(TransposeFloats)(in...); });
    expect_columns<double>([](auto... in) { return HWY_DYNAMIC_DISPATCH(TransposeDoubles)(in...); });
  });
}

}  // namespace
}  // namespace tamis::kernels
#endif

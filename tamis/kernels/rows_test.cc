#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tamis/kernels/testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/kernels/rows_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

void Load(const Rows& rows, int64_t size, float* out) {
  LoadRow(rows, 0, size, out);
}
void Store(const float* in, int64_t size, const Rows& rows) {
  StoreRow(in, size, rows, 0);
}
void ScaleFloats(double factor, float* x, int64_t padded_size) {
  Scale(factor, x, padded_size);
}
/// Rows of 32 numbers; denominator[i] receives what row i was divided by.
template <typename Real>
void NormalizeMany(Real* x, int64_t count, double* denominator) {
  NormalizeRows(
      count, 32, [&](int64_t i) HWY_ATTR { return x + 32 * i; },
      [&](int64_t i, double norm) HWY_ATTR { denominator[i] = norm; });
}
void NormalizeManyDoubles(double* x, int64_t count, double* denominator) {
  NormalizeMany(x, count, denominator);
}
void NormalizeManyFloats(float* x, int64_t count, double* denominator) {
  NormalizeMany(x, count, denominator);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {
namespace {

HWY_EXPORT(Load);
HWY_EXPORT(Store);
HWY_EXPORT(ScaleFloats);
HWY_EXPORT(NormalizeManyDoubles);
HWY_EXPORT(NormalizeManyFloats);

using testing::for_each_target;

float widened(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// The nearer of the two bfloat16 numbers around x, the even one if both are equally near; a NaN becomes a quiet one.
uint16_t nearest(float x) {
  const auto lower = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);  // towards zero
  if (std::isnan(x)) return lower | 0x40;
  if (std::isinf(x)) return lower;
  const auto upper = static_cast<uint16_t>(lower + 1);
  const double below = std::fabs(static_cast<double>(x) - widened(lower));
  // Above the largest number, 2^128 takes the place of infinity.
  const double next = std::isinf(widened(upper)) ? std::ldexp(std::signbit(x) ? -1.0 : 1.0, 128) : widened(upper);
  const double above = std::fabs(next - static_cast<double>(x));
  return below < above || (below == above && lower % 2 == 0) ? lower : upper;
}

TEST(Rows, WidenEveryBFloat16AndPadWithZeros) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for_each_target([&] {
    for (const int64_t size : {1, 7, 8, 15, 16, 17, 33, 40, 65536}) {
      std::vector<float> out(padded(size), -1.0f);
      HWY_DYNAMIC_DISPATCH(Load)({all.data(), size, Storage::kBFloat16}, size, out.data());
      for (int64_t i = 0; i < padded(size); ++i) {
        const uint32_t expected = i < size ? static_cast<uint32_t>(i) << 16 : 0;
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), expected) << i << " of " << size;
      }
    }
  });
}

TEST(Rows, RoundToTheNearestBFloat16) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for_each_target([&] {
    std::vector<uint16_t> out(x.size());
    const auto size = static_cast<int64_t>(x.size());
    HWY_DYNAMIC_DISPATCH(Store)(x.data(), size, {out.data(), size, Storage::kBFloat16});
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(out[i], nearest(x[i])) << std::hexfloat << x[i];
    // Whole vectors and the remainder agree, and nothing is written after them.
    for (const int64_t few : {1, 7, 9, 17, 31, 40}) {
      std::vector<uint16_t> row(few + 1, 0xabcd);
      HWY_DYNAMIC_DISPATCH(Store)(x.data() + 300000, few, {row.data(), few, Storage::kBFloat16});
      for (int64_t i = 0; i < few; ++i) ASSERT_EQ(row[i], nearest(x[300000 + i])) << i << " of " << few;
      ASSERT_EQ(row[few], 0xabcd) << few;
    }
  });
}

TEST(Rows, AreScaledToBarelyMoreThanHalfAnUlp) {
  for_each_target([&] {
    for (const double factor : {1 / 3.0, 0.7071067811865476, 1e12, 3e-20, 1e-33, 1e-38}) {
      std::vector<float> x(16);
      for (int i = 0; i < 16; ++i) x[i] = static_cast<float>((i % 2 == 0 ? 1 : -1) * (1 + i / 17.0) / factor);
      std::vector<float> scaled = x;
      HWY_DYNAMIC_DISPATCH(ScaleFloats)(factor, scaled.data(), 16);
      for (int i = 0; i < 16; ++i) {
        const double exact = factor * static_cast<double>(x[i]);
        const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
        ASSERT_LE(std::fabs(scaled[i] - exact), 0.501 * ulp) << factor << " times " << x[i];
      }
    }
  });
}

/// Rows of 32 numbers, some of them special: zero, shorter than 1e-12, so short or long that a float32 square would be
/// 0 or infinite, not a number.
template <typename Real>
std::vector<Real> special_rows(int64_t count) {
  std::vector<Real> x(32 * count);
  for (int64_t i = 0; i < count; ++i) {
    const double scale[] = {1, 0, 3, 1e-13, 1e-22, 1e22, 0.5};
    for (int64_t d = 0; d < 32; ++d) x[32 * i + d] = static_cast<Real>(scale[i % 7] * std::sin(1.0 + 32 * i + d));
    if (i % 11 == 9) x[32 * i + 5] = std::numeric_limits<Real>::quiet_NaN();
  }
  return x;
}

template <typename Real, typename Normalize>
void expect_unit_rows(const Normalize& normalize, double tolerance) {
  for (const int64_t count : {0, 1, 15, 16, 17, 33}) {
    const std::vector<Real> raw = special_rows<Real>(count);
    std::vector<Real> unit = raw;
    std::vector<double> denominator(count, -1);
    normalize(unit.data(), count, denominator.data());
    for (int64_t i = 0; i < count; ++i) {
      double squared = 0;
      for (int64_t d = 0; d < 32; ++d) squared += static_cast<double>(raw[32 * i + d]) * raw[32 * i + d];
      std::vector<Real> alone(raw.begin() + 32 * i, raw.begin() + 32 * (i + 1));
      double its_denominator = -1;
      normalize(alone.data(), 1, &its_denominator);
      if (std::isnan(squared)) {
        for (int64_t d = 0; d < 32; ++d) EXPECT_TRUE(std::isnan(unit[32 * i + d])) << "row " << i << " of " << count;
        EXPECT_TRUE(std::isnan(denominator[i])) << "row " << i << " of " << count;
        continue;
      }
      const double expected = std::max(std::sqrt(squared), 1e-12);
      if (squared == 0) {
        EXPECT_EQ(denominator[i], HUGE_VAL) << "row " << i << " of " << count;
      } else {
        EXPECT_NEAR(denominator[i] / expected, 1, 1e-14) << "row " << i << " of " << count;
      }
      EXPECT_EQ(denominator[i], its_denominator) << "row " << i << " of " << count;
      for (int64_t d = 0; d < 32; ++d) {
        EXPECT_NEAR(unit[32 * i + d], raw[32 * i + d] / expected, tolerance) << "row " << i << " of " << count;
        EXPECT_EQ(unit[32 * i + d], alone[d]) << "row " << i << " of " << count;
      }
    }
  }
}

TEST(Rows, ManyAreNormalizedAsOne) {
  const auto floats = [](auto... in) { HWY_DYNAMIC_DISPATCH(NormalizeManyFloats)(in...); };
  const auto doubles = [](auto... in) { HWY_DYNAMIC_DISPATCH(NormalizeManyDoubles)(in...); };
  for_each_target([&] {
    expect_unit_rows<float>(floats, 4e-8);
    expect_unit_rows<double>(doubles, 3e-16);
  });
}

}  // namespace
}  // namespace tamis::kernels
#endif

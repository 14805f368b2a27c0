// Rows of numbers in storage (float32, bfloat16, float64) and in registers' precision, shared by operators.
// Included once per instruction set.

#include "tamis/kernels/rows.h"

#if defined(TAMIS_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_KERNELS_ROWS_INL_H_
#undef TAMIS_KERNELS_ROWS_INL_H_
#else
#define TAMIS_KERNELS_ROWS_INL_H_
#endif

#include <bit>
#include <cmath>

#include "hwy/highway.h"
#include "tamis/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
using LaneTag = hn::CappedTag<Real, kLanes>;

/// Copies a short row without calling memcpy.
template <typename Real>
HWY_INLINE void CopyRow(const Real* HWY_RESTRICT in, int64_t size, Real* HWY_RESTRICT out) {
  const LaneTag<Real> d;
  int64_t i = 0;
  for (; i + static_cast<int64_t>(hn::MaxLanes(d)) <= size; i += hn::MaxLanes(d))
    hn::StoreU(hn::LoadU(d, in + i), d, out + i);
  for (; i < size; ++i) out[i] = in[i];
}

enum class Access { kRead, kWrite };

/// Prefetches memory into the second-level cache. The addresses need not be valid.
template <Access kAccess>
HWY_INLINE void Prefetch(const void* memory, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(memory) + at, kAccess == Access::kWrite ? 1 : 0, /*locality=*/2);
  }
}

/// Prefetches rows [first, last). Rows of one head are up to a page apart, so no hardware prefetcher follows them.
template <Access kAccess>
HWY_INLINE void PrefetchRows(const Rows& rows, int64_t first, int64_t last, int64_t size) {
  const int64_t width = rows.storage == Storage::kFloat64 ? 8 : rows.storage == Storage::kFloat32 ? 4 : 2;
  for (int64_t row = first; row < last; ++row) {
    Prefetch<kAccess>(static_cast<const char*>(rows.data) + row * rows.stride * width, size * width);
  }
}

/// Reads `size` numbers of a row and pads them with zeros to padded(size).
template <typename Real>
HWY_INLINE void LoadRow(const Rows& rows, int64_t row, int64_t size, Real* HWY_RESTRICT out) {
  const int64_t start = row * rows.stride;
  if constexpr (sizeof(Real) == 8) {
    CopyRow(static_cast<const double*>(rows.data) + start, size, out);
  } else if (rows.storage == Storage::kFloat32) {
    CopyRow(static_cast<const float*>(rows.data) + start, size, out);
  } else {
    const uint16_t* HWY_RESTRICT in = static_cast<const uint16_t*>(rows.data) + start;
    const LaneTag<float> lanes;
    const hn::RebindToUnsigned<LaneTag<float>> bits;
    const hn::Rebind<uint16_t, LaneTag<float>> stored;
    int64_t d = 0;
    for (; d + static_cast<int64_t>(hn::MaxLanes(lanes)) <= size; d += hn::MaxLanes(lanes)) {
      const auto upper_half = hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(stored, in + d)));
      hn::StoreU(hn::BitCast(lanes, upper_half), lanes, out + d);
    }
    for (; d < size; ++d) out[d] = std::bit_cast<float>(static_cast<uint32_t>(in[d]) << 16);
  }
  for (int64_t d = size; d < padded(size); ++d) out[d] = 0;
}

/// Rounds to nearest, ties to even; a NaN stays one.
HWY_INLINE uint16_t RoundToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

/// The same; the upper half of every lane is the result.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<LaneTag<float>>> RoundUpperHalf(hn::Vec<LaneTag<float>> x) {
  const hn::RebindToUnsigned<LaneTag<float>> d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::Add(hn::Add(bits, odd), hn::Set(d, 0x7fffu));
  const auto quiet_nan = hn::Or(bits, hn::Set(d, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(x)), quiet_nan, rounded);
}

HWY_INLINE hn::Vec<hn::Rebind<uint16_t, LaneTag<float>>> RoundLanesToBFloat16(hn::Vec<LaneTag<float>> x) {
  return hn::TruncateTo(hn::Rebind<uint16_t, LaneTag<float>>(), hn::ShiftRight<16>(RoundUpperHalf(x)));
}

template <typename Real>
HWY_INLINE void StoreRow(const Real* HWY_RESTRICT in, int64_t size, const Rows& rows, int64_t row) {
  const int64_t start = row * rows.stride;
  if constexpr (sizeof(Real) == 8) {
    CopyRow(in, size, static_cast<double*>(rows.data) + start);
  } else if (rows.storage == Storage::kFloat32) {
    CopyRow(in, size, static_cast<float*>(rows.data) + start);
  } else {
    uint16_t* HWY_RESTRICT out = static_cast<uint16_t*>(rows.data) + start;
    const LaneTag<float> lanes;
    const hn::Rebind<uint16_t, LaneTag<float>> stored;
    constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
    int64_t d = 0;
#if HWY_TARGET != HWY_SCALAR  // there are no two halves of one lane
    const hn::Repartition<uint16_t, LaneTag<float>> halves;
    for (; d + 2 * kWidth <= size; d += 2 * kWidth) {
      const auto lower = hn::BitCast(halves, RoundUpperHalf(hn::LoadU(lanes, in + d)));
      const auto upper = hn::BitCast(halves, RoundUpperHalf(hn::LoadU(lanes, in + d + kWidth)));
      hn::StoreU(hn::ConcatOdd(halves, upper, lower), halves, out + d);
    }
#endif
    for (; d + kWidth <= size; d += kWidth) {
      hn::StoreU(RoundLanesToBFloat16(hn::LoadU(lanes, in + d)), stored, out + d);
    }
    for (; d < size; ++d) out[d] = RoundToBFloat16(in[d]);
  }
}

/// x . y over padded rows.
template <typename Real>
HWY_INLINE Real Dot(const Real* HWY_RESTRICT x, const Real* HWY_RESTRICT y, int64_t padded_size) {
  const LaneTag<Real> d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(d)) {
    sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// y += scale * x over padded rows.
template <typename Real>
HWY_INLINE void AddScaled(Real scale, const Real* HWY_RESTRICT x, Real* HWY_RESTRICT y, int64_t padded_size) {
  const LaneTag<Real> d;
  const auto factor = hn::Set(d, scale);
  for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(d)) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  }
}

template <typename Real>
HWY_INLINE bool AllZero(const Real* HWY_RESTRICT x, int64_t padded_size) {
  const LaneTag<Real> d;
  for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(d)) {
    if (!hn::AllTrue(d, hn::Eq(hn::LoadU(d, x + i), hn::Zero(d)))) return false;
  }
  return true;
}

/// Whether all numbers of padded rows are finite.
template <typename Real>
HWY_INLINE bool AllFinite(const Real* HWY_RESTRICT x, int64_t padded_size) {
  const LaneTag<Real> d;
  auto finite = hn::IsFinite(hn::Zero(d));
  for (int64_t at = 0; at < padded_size; at += hn::MaxLanes(d)) {
    finite = hn::And(finite, hn::IsFinite(hn::LoadU(d, x + at)));
  }
  return hn::AllTrue(d, finite);
}

/// Lanes of float64. Norms are computed in float64, as screening's Trim amplifies every error of a
/// similarity.
using WideTag = hn::CappedTag<double, kLanes / 2>;

template <typename Real>
HWY_INLINE hn::Vec<WideTag> LoadWide(const Real* HWY_RESTRICT x) {
  const WideTag wide;
  if constexpr (sizeof(Real) == 8) {
    return hn::LoadU(wide, x);
  } else {
    return hn::PromoteTo(wide, hn::LoadU(hn::Rebind<Real, WideTag>(), x));
  }
}

template <typename Real>
HWY_INLINE void StoreWide(hn::Vec<WideTag> x, Real* HWY_RESTRICT out) {
  if constexpr (sizeof(Real) == 8) {
    hn::StoreU(x, WideTag(), out);
  } else {
    const hn::Rebind<Real, WideTag> narrow;
    hn::StoreU(hn::DemoteTo(narrow, x), narrow, out);
  }
}

template <typename Real>
HWY_INLINE double WideDot(const Real* HWY_RESTRICT x, const Real* HWY_RESTRICT y, int64_t padded_size) {
  const WideTag wide;
  auto sum = hn::Zero(wide);
  for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(wide)) sum = hn::MulAdd(LoadWide(x + i), LoadWide(y + i), sum);
  return hn::GetLane(hn::SumOfLanes(wide, sum));
}

/// x <- factor * x, to barely more than half an ulp. With the factor in two parts this needs a fused multiply-add: the
/// product with the upper part must not be rounded before the product with the lower part is added.
template <typename Real>
HWY_INLINE void Scale(double factor, Real* HWY_RESTRICT x, int64_t padded_size) {
  constexpr double kLeastInTwoParts = 1e-28;  // below it the lower part would lose its digits
  if (sizeof(Real) == 8 || !HWY_NATIVE_FMA || factor < kLeastInTwoParts) {
    const WideTag wide;
    const auto scale = hn::Set(wide, factor);
    for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(wide)) StoreWide(hn::Mul(LoadWide(x + i), scale), x + i);
  } else {
    const LaneTag<Real> d;
    const auto upper = static_cast<Real>(factor);
    const auto high = hn::Set(d, upper), low = hn::Set(d, static_cast<Real>(factor - upper));
    for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(d)) {
      const auto lanes = hn::LoadU(d, x + i);
      hn::StoreU(hn::MulAdd(lanes, high, hn::Mul(lanes, low)), d, x + i);
    }
  }
}

/// x <- x / max(|x|, eps) for rows row(0), ..., row(count - 1); calls keep(i, denominator), infinite for a zero row,
/// which stays zero. Processing many rows at once hides the latency of sums, roots and quotients.
template <typename RowOf, typename Keep>
HWY_INLINE void NormalizeRows(int64_t count, int64_t padded_size, const RowOf& row, const Keep& keep) {
  constexpr int64_t kRows = 16;
  const WideTag d;
  const auto least = hn::Set(d, kMinNorm);
  for (int64_t first = 0; first < count; first += kRows) {
    const int64_t rows = count - first < kRows ? count - first : kRows;
    HWY_ALIGN double squared[kRows] = {}, denominator[kRows], factor[kRows];
    for (int64_t i = 0; i < rows; ++i) squared[i] = WideDot(row(first + i), row(first + i), padded_size);
    for (int64_t i = 0; i < rows; i += hn::MaxLanes(d)) {
      const auto square = hn::Load(d, squared + i);
      const auto norm = hn::IfThenElse(hn::Le(square, hn::Mul(least, least)), least, hn::Sqrt(square));  // or NaN
      const auto zero = hn::Eq(square, hn::Zero(d));
      hn::Store(hn::IfThenElse(zero, hn::Set(d, HUGE_VAL), norm), d, denominator + i);
      hn::Store(hn::IfThenZeroElse(zero, hn::Div(hn::Set(d, 1.0), norm)), d, factor + i);
    }
    for (int64_t i = 0; i < rows; ++i) {
      Scale(factor[i], row(first + i), padded_size);
      keep(first + i, denominator[i]);
    }
  }
}

/// The same for one row; returns its denominator.
template <typename Real>
HWY_INLINE double Normalize(Real* HWY_RESTRICT x, int64_t padded_size) {
  double denominator = 0;
  NormalizeRows(
      1, padded_size, [&](int64_t) HWY_ATTR { return x; },
      [&](int64_t, double found) HWY_ATTR { denominator = found; });
  return denominator;
}

/// From the gradient dx of the unit row to that of the raw row: (dx - x (x . dx)) / |x|. The denominator is the result
/// of Normalize: infinite for a zero row, whose gradient is 0.
template <typename Real>
HWY_INLINE void NormalizeBackward(const Real* HWY_RESTRICT x, double denominator, Real* HWY_RESTRICT dx,
                                  int64_t padded_size) {
  const LaneTag<Real> d;
  const bool clipped = denominator <= kMinNorm;
  const auto along = hn::Set(d, clipped ? Real{0} : Dot(x, dx, padded_size));
  const auto inverse = hn::Set(d, static_cast<Real>(1 / denominator));
  for (int64_t i = 0; i < padded_size; i += hn::MaxLanes(d)) {
    const auto across = hn::NegMulAdd(hn::LoadU(d, x + i), along, hn::LoadU(d, dx + i));
    hn::StoreU(hn::Mul(across, inverse), d, dx + i);
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

#include "tamis/kernels/matvec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/kernels/matvec_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "tamis/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::ScalableTag<int32_t>;
using ShortTag = hn::ScalableTag<int16_t>;
using FloatVec = SizedVec<FloatTag>;

/// A format defines how many columns a step has, how the weights of a step are loaded and how they are summed: `Sum` is
/// the running sum of a row, `Loaded` the weights of a step, `Vector` a step's numbers of a vector.
struct Float32 {
  static constexpr int kVectors = 4;  // at once, with four rows: as many sums as fit into registers
  using Element = float;
  using Sum = FloatVec;
  using Loaded = FloatVec;
  using Vector = FloatVec;
  static int64_t step() { return hn::Lanes(FloatTag()); }
  static Sum zero() { return hn::Zero(FloatTag()); }
  static HWY_INLINE Loaded load(const Element* weights) { return hn::LoadU(FloatTag(), weights); }
  static HWY_INLINE Vector load_vector(const float* prepared, int64_t at) {
    return hn::LoadU(FloatTag(), prepared + at);
  }
  static HWY_INLINE Sum add(Loaded w, Vector x, Sum sum) { return hn::MulAdd(w, x, sum); }
  static HWY_INLINE FloatVec lanes(Sum sum) { return sum; }
};

#if HWY_TARGET == HWY_SCALAR

/// One lane: each weight becomes a float32, and vectors stay as they are.
template <typename Stored>
struct Widened : Float32 {
  using Element = Stored;
  static HWY_INLINE Loaded load(const Element* weight) {
    if constexpr (sizeof(Stored) == 1) return hn::Set(FloatTag(), static_cast<float>(*weight));
    return hn::Set(FloatTag(), std::bit_cast<float>(static_cast<uint32_t>(*weight) << 16));
  }
};
using BFloat16 = Widened<uint16_t>;
using Int8 = Widened<int8_t>;

HWY_INLINE void SumLanesOfFour(const FloatVec* sums, float* HWY_RESTRICT out) {
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(sums[i]);
}

void PrepareForBFloat16(int64_t, float*) {}
void PrepareForInt8(int64_t, int64_t, float*, float* HWY_RESTRICT scale) {
  *scale = 1;
}

#else

/// Two adjacent numbers are loaded as 32 bits: a shift gives the lower as float32, clearing the lower half the upper.
struct BFloat16 {
  static constexpr int kVectors = 4;
  using Element = uint16_t;
  using Sum = FloatVec;
  struct Loaded {
    FloatVec even, odd;
    HWY_INLINE Loaded() {}  // GCC does not compile implicit constructors for the instruction set
    HWY_INLINE Loaded(FloatVec e, FloatVec o) : even(e), odd(o) {}
  };
  using Vector = Loaded;
  static int64_t step() { return 2 * hn::Lanes(FloatTag()); }
  static Sum zero() { return hn::Zero(FloatTag()); }
  static HWY_INLINE Loaded load(const Element* weights) {
    const hn::Repartition<uint32_t, FloatTag> d32;
    const auto pairs = hn::BitCast(d32, hn::LoadU(hn::Repartition<uint16_t, FloatTag>(), weights));
    return {hn::BitCast(FloatTag(), hn::ShiftLeft<16>(pairs)),
            hn::BitCast(FloatTag(), hn::And(pairs, hn::Set(d32, 0xffff0000u)))};
  }
  static HWY_INLINE Vector load_vector(const float* prepared, int64_t at) {
    return {hn::LoadU(FloatTag(), prepared + at), hn::LoadU(FloatTag(), prepared + at + step() / 2)};
  }
  static HWY_INLINE Sum add(const Loaded& w, const Vector& x, Sum sum) {
    return hn::MulAdd(w.odd, x.odd, hn::MulAdd(w.even, x.even, sum));
  }
  static HWY_INLINE FloatVec lanes(Sum sum) { return sum; }
};

struct Int8 {
  static constexpr int kVectors = 2;
  using Element = int8_t;
  struct Sum {
    SizedVec<IntTag> low, high;
    HWY_INLINE Sum() {}
    HWY_INLINE Sum(SizedVec<IntTag> l, SizedVec<IntTag> h) : low(l), high(h) {}
  };
  using Loaded = SizedVec<ShortTag>;
  using Vector = SizedVec<ShortTag>;
  static int64_t step() { return hn::Lanes(ShortTag()); }
  static Sum zero() { return {hn::Zero(IntTag()), hn::Zero(IntTag())}; }
  static HWY_INLINE Loaded load(const Element* weights) {
    return hn::PromoteTo(ShortTag(), hn::LoadU(hn::Rebind<int8_t, ShortTag>(), weights));
  }
  static HWY_INLINE Vector load_vector(const float* prepared, int64_t at) {
    return hn::LoadU(ShortTag(), reinterpret_cast<const int16_t*>(prepared) + at);
  }
  static HWY_INLINE Sum add(Loaded w, Vector x, Sum sum) {
    hn::Vec<IntTag> high = sum.high;
    const hn::Vec<IntTag> low = hn::ReorderWidenMulAccumulate(IntTag(), hn::Vec<ShortTag>(w), hn::Vec<ShortTag>(x),
                                                              hn::Vec<IntTag>(sum.low), high);
    return {low, high};
  }
  static HWY_INLINE FloatVec lanes(const Sum& sum) {
    return hn::ConvertTo(FloatTag(), hn::RearrangeToOddPlusEven(sum.low, sum.high));
  }
};

/// The sums of four vectors' lanes.
HWY_INLINE void SumLanesOfFour(const FloatVec* sums, float* HWY_RESTRICT out) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  // Per block of four lanes: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
  const auto two = [&](hn::Vec<FloatTag> a, hn::Vec<FloatTag> b)
                       HWY_ATTR { return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)); };
  const auto ab = hn::BitCast(pairs, two(sums[0], sums[1])), ce = hn::BitCast(pairs, two(sums[2], sums[3]));
  const auto blocks =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));
  HWY_ALIGN float each[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(blocks, d, each);
  const hn::FixedTag<float, 4> four;
  auto sum = hn::Load(four, each);
  for (size_t block = 4; block < hn::Lanes(d); block += 4) sum = hn::Add(sum, hn::Load(four, each + block));
  hn::StoreU(sum, four, out);
}

/// Separates adjacent columns, step by step: first the even ones, then the odd ones.
void PrepareForBFloat16(int64_t size, float* HWY_RESTRICT x) {
  const FloatTag d;
  const int64_t half = hn::Lanes(d);
  for (int64_t at = 0; at < size; at += 2 * half) {
    hn::Vec<FloatTag> even, odd;
    hn::LoadInterleaved2(d, x + at, even, odd);
    hn::StoreU(even, d, x + at);
    hn::StoreU(odd, d, x + at + half);
  }
}

/// x = scale * integers, written to the first half of the memory of x. The sum over the columns of one lane must fit
/// into 32 bits on every instruction set. A NaN in x makes the scale NaN.
void PrepareForInt8(int64_t columns, int64_t size, float* x, float* HWY_RESTRICT scale) {
  const FloatTag d;
  const hn::Rebind<int16_t, FloatTag> d16;
  constexpr int64_t kLargest = 32767, kLargestSum = 2147483647, kLargestWeight = 127, kFewestLanes = 4;
  const int64_t columns_of_lane = (columns + kFewestLanes - 1) / kFewestLanes;
  const auto most = static_cast<float>(std::min(kLargest, kLargestSum / kLargestWeight / columns_of_lane));
  auto largest = hn::Zero(d), poison = hn::Zero(d);
  for (int64_t at = 0; at < size; at += hn::Lanes(d)) {
    const auto numbers = hn::LoadU(d, x + at);
    largest = hn::Max(largest, hn::Abs(numbers));
    poison = hn::MulAdd(numbers, hn::Zero(d), poison);
  }
  const float peak = hn::GetLane(hn::MaxOfLanes(d, largest));
  *scale = peak / most + hn::GetLane(hn::SumOfLanes(d, poison));
  const auto inverse = hn::Set(d, peak > 0 ? most / peak : 0.0f);
  for (int64_t at = 0; at < size; at += hn::Lanes(d)) {
    const auto integers = hn::NearestInt(hn::Mul(hn::LoadU(d, x + at), inverse));
    hn::StoreU(hn::DemoteTo(d16, integers), d16, reinterpret_cast<int16_t*>(x) + at);
  }
}

#endif  // HWY_SCALAR

/// One step of columns of kRows rows, the next one `stride` elements on, for kVectors vectors.
template <class Format, int kRows, int kVectors>
HWY_INLINE void AddStep(const typename Format::Element* HWY_RESTRICT weights, int64_t stride,
                        const float* HWY_RESTRICT prepared, int64_t x_stride, int64_t column,
                        typename Format::Sum (&sums)[kVectors][kRows]) {
  typename Format::Vector x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = Format::load_vector(prepared + v * x_stride + kLanes, column);
  for (int r = 0; r < kRows; ++r) {
    const auto loaded = Format::load(weights + r * stride);
    for (int v = 0; v < kVectors; ++v) sums[v][r] = Format::add(loaded, x[v], sums[v][r]);
  }
}

/// kRows rows times kVectors vectors; prefetches the next rows.
template <class Format, int kRows, int kVectors>
HWY_INLINE void MultiplyBlock(const WeightRows& weights, int64_t row, const float* HWY_RESTRICT prepared,
                              int64_t x_stride, bool fetch, float* HWY_RESTRICT y, int64_t y_stride) {
  using Element = typename Format::Element;
  const int64_t columns = weights.columns, step = Format::step(), whole = columns / step * step;
  const auto* HWY_RESTRICT w = static_cast<const Element*>(weights.data) + row * columns;
  typename Format::Sum sums[kVectors][kRows];
  for (auto& of_vector : sums) {
    for (auto& sum : of_vector) sum = Format::zero();
  }
  // Hardware prefetchers do not recognise several rows read side by side, so the next blocks are prefetched here,
  // into the second-level cache, as the first holds little more than this block.
  constexpr int64_t kCacheLine = 64, kAheadBytes = 8192, kSecondLevel = 2;
  const int64_t block = kRows * columns * static_cast<int64_t>(sizeof(Element));
  const int64_t ahead = (kAheadBytes + block - 1) / block * kRows * columns;
  for (int64_t column = 0; column < whole; column += step) {
    if (fetch && column * sizeof(Element) % kCacheLine == 0) {
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(w + ahead + r * columns + column, /*write=*/0, kSecondLevel);
    }
    AddStep<Format, kRows, kVectors>(w + column, columns, prepared, x_stride, column, sums);
  }
  if (whole < columns) {
    HWY_ALIGN Element rest[kRows][HWY_MAX_BYTES] = {};
    for (int r = 0; r < kRows; ++r) std::copy(w + r * columns + whole, w + (r + 1) * columns, rest[r]);
    AddStep<Format, kRows, kVectors>(rest[0], HWY_MAX_BYTES, prepared, x_stride, whole, sums);
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int r = 0; r < kRows; r += 4) {
      FloatVec lanes[4];
      for (int i = 0; i < 4; ++i) lanes[i] = Format::lanes(sums[v][std::min(r + i, kRows - 1)]);
      HWY_ALIGN float out[4];
      SumLanesOfFour(lanes, out);
      const float scale = prepared[v * x_stride];
      for (int i = 0; i < std::min(4, kRows - r); ++i) {
        float& result = y[v * y_stride + r + i];
        result = weights.scale == nullptr ? out[i] : out[i] * (scale * weights.scale[row + r + i]);
      }
    }
  }
}

template <class Format, int kRows, int kVectors>
HWY_INLINE void MultiplyVectors(const WeightRows& weights, int64_t first, int64_t last,
                                const float* HWY_RESTRICT prepared, bool fetch, float* HWY_RESTRICT y,
                                int64_t y_stride) {
  const int64_t x_stride = prepared_vector(weights.columns);
  int64_t row = first;
  for (; row + kRows <= last; row += kRows) {
    MultiplyBlock<Format, kRows, kVectors>(weights, row, prepared, x_stride, fetch, y + row - first, y_stride);
  }
  for (; row < last; ++row) {
    MultiplyBlock<Format, 1, kVectors>(weights, row, prepared, x_stride, fetch, y + row - first, y_stride);
  }
}

template <class Format>
void MultiplyRows(const WeightRows& weights, int64_t first, int64_t last, const float* HWY_RESTRICT prepared,
                  int64_t count, float* HWY_RESTRICT y, int64_t y_stride) {
  if (count == 1) {
    MultiplyVectors<Format, 8, 1>(weights, first, last, prepared, /*fetch=*/true, y, y_stride);
    return;
  }
  // Few rows at a time, so that they are still in the first-level cache for the next vectors.
  constexpr int64_t kRowsAtOnce = 4;
  const int64_t x_stride = prepared_vector(weights.columns);
  for (int64_t row = first; row < last; row += kRowsAtOnce) {
    const int64_t end = std::min(last, row + kRowsAtOnce);
    int64_t v = 0;
    const auto some = [&](auto multiply, int64_t vectors) HWY_ATTR {
      for (; v + vectors <= count; v += vectors) {
        multiply(weights, row, end, prepared + v * x_stride, /*fetch=*/v == 0, y + v * y_stride + row - first,
                 y_stride);
      }
    };
    some(&MultiplyVectors<Format, kRowsAtOnce, Format::kVectors>, Format::kVectors);
    some(&MultiplyVectors<Format, kRowsAtOnce, 1>, 1);
  }
}

/// `count` weights as float32, without their scale: as they are, or written to `out`.
template <class Stored>
HWY_INLINE const float* AsFloat(const Stored* HWY_RESTRICT weights, int64_t count, float* HWY_RESTRICT out) {
  if constexpr (std::is_same_v<Stored, float>) return weights;
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    if constexpr (sizeof(Stored) == 2) {
      const auto bits = hn::PromoteTo(hn::Repartition<uint32_t, FloatTag>(),
                                      hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), weights + at));
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, out + at);
    } else if constexpr (sizeof(Stored) == 1) {
      const auto integers = hn::PromoteTo(IntTag(), hn::LoadU(hn::Rebind<int8_t, FloatTag>(), weights + at));
      hn::StoreU(hn::ConvertTo(d, integers), d, out + at);
    }
  }
  for (; at < count; ++at) {
    if constexpr (sizeof(Stored) == 2) out[at] = std::bit_cast<float>(static_cast<uint32_t>(weights[at]) << 16);
    if constexpr (sizeof(Stored) == 1) out[at] = static_cast<float>(weights[at]);
  }
  return out;
}

constexpr int64_t kLaneRows = 8;       // at once, with a sum each
constexpr int64_t kLaneColumns = 512;  // of these rows as float32, which fit into the first-level cache

/// sums[row][lane] += the rows' columns times kLaneVectors vectors side by side.
template <int kRows>
HWY_INLINE void AddLanes(const float* const* rows, const float* HWY_RESTRICT x, int64_t columns,
                         float* HWY_RESTRICT sums) {
  const hn::CappedTag<float, kLaneVectors> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t lane = 0; lane < kLaneVectors; lane += lanes) {
    SizedVec<decltype(d)> sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = hn::LoadU(d, sums + r * kLaneVectors + lane);
    for (int64_t column = 0; column < columns; ++column) {
      const auto numbers = hn::LoadU(d, x + column * kLaneVectors + lane);
      for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(hn::Set(d, rows[r][column]), numbers, sum[r]);
    }
    for (int r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, sums + r * kLaneVectors + lane);
  }
}

/// kRows rows for all vectors, kLaneColumns columns at a time.
template <class Stored, int kRows>
void MultiplyLaneRows(const WeightRows& weights, int64_t row, const float* HWY_RESTRICT prepared, int64_t count,
                      float* HWY_RESTRICT y, int64_t y_stride) {
  HWY_ALIGN float wide[kRows * kLaneColumns];
  HWY_ALIGN float sums[kMostVectors * kRows] = {};
  const auto* stored = static_cast<const Stored*>(weights.data) + row * weights.columns;
  for (int64_t first = 0; first < weights.columns; first += kLaneColumns) {
    const int64_t columns = std::min(kLaneColumns, weights.columns - first);
    const float* rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r] = AsFloat(stored + r * weights.columns + first, columns, wide + r * kLaneColumns);
    }
    for (int64_t v = 0; v < count; v += kLaneVectors) {
      AddLanes<kRows>(rows, prepared + v * weights.columns + first * kLaneVectors, columns, sums + v * kRows);
    }
  }
  for (int64_t v = 0; v < count; ++v) {
    const float* of_block = sums + v / kLaneVectors * kLaneVectors * kRows + v % kLaneVectors;
    for (int r = 0; r < kRows; ++r) {
      const float scale = weights.scale == nullptr ? 1.0f : weights.scale[row + r];
      y[v * y_stride + r] = of_block[r * kLaneVectors] * scale;
    }
  }
}

template <class Stored>
void MultiplyLanes(const WeightRows& weights, int64_t first, int64_t last, const float* HWY_RESTRICT prepared,
                   int64_t count, float* HWY_RESTRICT y, int64_t y_stride) {
  int64_t row = first;
  for (; row + kLaneRows <= last; row += kLaneRows) {
    MultiplyLaneRows<Stored, kLaneRows>(weights, row, prepared, count, y + row - first, y_stride);
  }
  for (; row < last; ++row) MultiplyLaneRows<Stored, 1>(weights, row, prepared, count, y + row - first, y_stride);
}

void PrepareLanes(int64_t columns, const float* HWY_RESTRICT x, int64_t x_stride, int64_t count,
                  float* HWY_RESTRICT prepared) {
  for (int64_t block = 0; block < count; block += kLaneVectors) {
    float* HWY_RESTRICT lanes = prepared + block * columns;
    const int64_t vectors = std::min(kLaneVectors, count - block);
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t v = 0; v < kLaneVectors; ++v) {
        lanes[column * kLaneVectors + v] = v < vectors ? x[(block + v) * x_stride + column] : 0.0f;
      }
    }
  }
}

void MultiplyMany(const WeightRows& weights, int64_t first, int64_t last, const float* HWY_RESTRICT prepared,
                  int64_t count, float* HWY_RESTRICT y, int64_t y_stride) {
  switch (weights.format) {
    case WeightFormat::kFloat32:
      return MultiplyLanes<float>(weights, first, last, prepared, count, y, y_stride);
    case WeightFormat::kBFloat16:
      return MultiplyLanes<uint16_t>(weights, first, last, prepared, count, y, y_stride);
    case WeightFormat::kInt8:
      return MultiplyLanes<int8_t>(weights, first, last, prepared, count, y, y_stride);
  }
}

void Multiply(const WeightRows& weights, int64_t first, int64_t last, const float* HWY_RESTRICT prepared, int64_t count,
              float* HWY_RESTRICT y, int64_t y_stride) {
  if (count > kFewVectors) return MultiplyMany(weights, first, last, prepared, count, y, y_stride);
  switch (weights.format) {
    case WeightFormat::kFloat32:
      return MultiplyRows<Float32>(weights, first, last, prepared, count, y, y_stride);
    case WeightFormat::kBFloat16:
      return MultiplyRows<BFloat16>(weights, first, last, prepared, count, y, y_stride);
    case WeightFormat::kInt8:
      return MultiplyRows<Int8>(weights, first, last, prepared, count, y, y_stride);
  }
}

void Prepare(WeightFormat format, int64_t columns, const float* HWY_RESTRICT x, float* HWY_RESTRICT prepared) {
  const int64_t size = prepared_vector(columns) - kLanes;
  float* HWY_RESTRICT numbers = prepared + kLanes;
  std::copy(x, x + columns, numbers);
  std::fill(numbers + columns, numbers + size, 0.0f);
  if (format == WeightFormat::kBFloat16) PrepareForBFloat16(size, numbers);
  if (format == WeightFormat::kInt8) PrepareForInt8(columns, size, numbers, prepared);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(Multiply);
HWY_EXPORT(Prepare);
HWY_EXPORT(PrepareLanes);

void prepare_vectors(WeightFormat format, int64_t columns, const float* x, int64_t x_stride, int64_t count,
                     float* prepared) {
  if (count > kFewVectors) return HWY_DYNAMIC_DISPATCH(PrepareLanes)(columns, x, x_stride, count, prepared);
  for (int64_t v = 0; v < count; ++v) {
    HWY_DYNAMIC_DISPATCH(Prepare)(format, columns, x + v * x_stride, prepared + v * prepared_vector(columns));
  }
}

void multiply_rows(const WeightRows& weights, int64_t first, int64_t last, const float* prepared, int64_t count,
                   float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(Multiply)(weights, first, last, prepared, count, y, y_stride);
}

}  // namespace tamis::kernels
#endif

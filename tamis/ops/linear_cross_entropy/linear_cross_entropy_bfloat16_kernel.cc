#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_bfloat16_kernel.h"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/linear_cross_entropy/linear_cross_entropy_bfloat16_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway requires.
#include "hwy/highway.h"
#include "tamis/kernels/math-inl.h"
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Float = hn::CappedTag<float, kTokenMultiple / 2>;
using Bits = hn::Rebind<uint32_t, Float>;
using Half = hn::Rebind<uint16_t, Float>;
using Byte = hn::Rebind<uint8_t, Float>;
using FloatVector = hn::Vec<Float>;
using BitsVector = hn::Vec<Bits>;

HWY_INLINE int64_t FloatLanes() {
  return static_cast<int64_t>(hn::Lanes(Float()));
}

/// The bits of x, rounded to nearest even at bit kDropped; those below it are to be dropped.
template <int kDropped>
HWY_INLINE BitsVector Rounded(FloatVector x) {
  const Bits d;
  const BitsVector bits = hn::BitCast(d, x);
  const BitsVector odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(d, 1u));
  return hn::Add(hn::Add(bits, hn::Set(d, (1u << (kDropped - 1)) - 1)), odd);
}
HWY_INLINE void StoreHalf(BitsVector bits, uint16_t* out) {
  const hn::Rebind<int32_t, Float> d;  // never negative after the shift, so that nothing saturates
  hn::StoreU(hn::DemoteTo(Half(), hn::BitCast(d, bits)), Half(), out);
}
HWY_INLINE FloatVector LoadHalf(const uint16_t* in) {
  return hn::BitCast(Float(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), hn::LoadU(Half(), in))));
}

/// Two vectors of tokens down all entries of the block: two independent chains hide the latency.
HWY_INLINE void ExpOfTwoVectors(const EntryBlock& block, const float* HWY_RESTRICT z, float* HWY_RESTRICT maximum,
                                float* HWY_RESTRICT sum, uint16_t* HWY_RESTRICT e) {
  const Float d;
  const int64_t lanes = FloatLanes();
  FloatVector maximum0 = hn::LoadU(d, z), maximum1 = hn::LoadU(d, z + lanes);
  for (int64_t n = 1; n < block.entries; ++n) {
    maximum0 = hn::Max(maximum0, hn::LoadU(d, z + n * block.tokens));
    maximum1 = hn::Max(maximum1, hn::LoadU(d, z + n * block.tokens + lanes));
  }
  FloatVector sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  for (int64_t n = 0; n < block.entries; ++n) {
    const int64_t at = n * block.tokens;
    const FloatVector e0 = ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, z + at), maximum0));
    const FloatVector e1 = ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, z + at + lanes), maximum1));
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    if (e == nullptr) continue;
    StoreHalf(hn::ShiftRight<16>(Rounded<16>(e0)), e + at);
    StoreHalf(hn::ShiftRight<16>(Rounded<16>(e1)), e + at + lanes);
  }
  hn::StoreU(maximum0, d, maximum);
  hn::StoreU(maximum1, d, maximum + lanes);
  hn::StoreU(sum0, d, sum);
  hn::StoreU(sum1, d, sum + lanes);
}

void ExpOfColumns(const EntryBlock& block, const float* z_CR, float* maximum_R, float* sum_R, uint16_t* e_CR) {
  for (int64_t r = 0; r < block.tokens; r += 2 * FloatLanes()) {
    ExpOfTwoVectors(block, z_CR + r, maximum_R + r, sum_R + r, e_CR == nullptr ? nullptr : e_CR + r);
  }
}

void ScaleColumns(const EntryBlock& block, const uint16_t* HWY_RESTRICT e_CR, const float* HWY_RESTRICT factor_R,
                  int64_t padded_entries, uint16_t* HWY_RESTRICT p_CR, uint16_t* HWY_RESTRICT pairs_CR) {
  const Float d;
  const Bits bits;
  const BitsVector upper_half = hn::Set(bits, 0xffff0000u);
  for (int64_t n = 0; n < padded_entries; n += 2) {
    uint32_t* HWY_RESTRICT pairs = reinterpret_cast<uint32_t*>(pairs_CR + n * block.tokens);
    for (int64_t r = 0; r < block.tokens; r += FloatLanes()) {
      const FloatVector factor = hn::LoadU(d, factor_R + r);
      BitsVector lower = hn::Zero(bits), upper = hn::Zero(bits);
      if (n < block.entries) {
        const int64_t at = n * block.tokens + r;
        lower = hn::ShiftRight<16>(Rounded<16>(hn::Mul(LoadHalf(e_CR + at), factor)));
        StoreHalf(lower, p_CR + at);
      }
      if (n + 1 < block.entries) {
        const int64_t at = (n + 1) * block.tokens + r;
        upper = Rounded<16>(hn::Mul(LoadHalf(e_CR + at), factor));
        StoreHalf(hn::ShiftRight<16>(upper), p_CR + at);
      }
      hn::StoreU(hn::Or(hn::And(upper, upper_half), lower), bits, pairs + r);
    }
  }
}

/// Transposes 8 x 8 numbers: three rounds of interleaving the rows of the upper half with those of the lower one.
HWY_INLINE void TransposeTile(const uint16_t* HWY_RESTRICT in, int64_t in_stride, uint16_t* HWY_RESTRICT out,
                              int64_t out_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 8; ++j) out[j * out_stride + i] = in[i * in_stride + j];
  }
#else
  const hn::FixedTag<uint16_t, 8> d;
  SizedVec<decltype(d)> row[8], next[8];
  for (int64_t i = 0; i < 8; ++i) row[i] = hn::LoadU(d, in + i * in_stride);
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < 4; ++i) {
      const hn::Vec<decltype(d)> upper = row[i], lower = row[i + 4];
      next[2 * i] = hn::InterleaveLower(d, upper, lower);
      next[2 * i + 1] = hn::InterleaveUpper(d, upper, lower);
    }
    for (int64_t i = 0; i < 8; ++i) row[i] = next[i];
  }
  for (int64_t i = 0; i < 8; ++i) hn::StoreU(row[i], d, out + i * out_stride);
#endif
}

void Transpose(const uint16_t* HWY_RESTRICT in_CD, int64_t rows, int64_t columns, int64_t padded_rows,
               uint16_t* HWY_RESTRICT out_DC) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  constexpr int64_t kPatch = 32;  // whole cache lines on both sides
  for (int64_t patch_d = 0; patch_d < whole_columns; patch_d += kPatch) {
    for (int64_t patch_c = 0; patch_c < whole_rows; patch_c += kPatch) {
      for (int64_t d = patch_d; d < HWY_MIN(patch_d + kPatch, whole_columns); d += 8) {
        for (int64_t c = patch_c; c < HWY_MIN(patch_c + kPatch, whole_rows); c += 8) {
          TransposeTile(in_CD + c * columns + d, columns, out_DC + d * padded_rows + c, padded_rows);
        }
      }
    }
  }
  for (int64_t d = 0; d < columns; ++d) {
    for (int64_t c = d < whole_columns ? whole_rows : 0; c < padded_rows; ++c) {
      out_DC[d * padded_rows + c] = c < rows ? in_CD[c * columns + d] : 0;
    }
  }
}

void JoinSum(const uint16_t* HWY_RESTRICT upper, const uint8_t* HWY_RESTRICT lower, int64_t size,
             float* HWY_RESTRICT sum) {
  const Bits d;
  int64_t i = 0;
  for (; i + FloatLanes() <= size; i += FloatLanes()) {
    const BitsVector high = hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(Half(), upper + i)));
    const BitsVector low = hn::ShiftLeft<8>(hn::PromoteTo(d, hn::LoadU(Byte(), lower + i)));
    hn::StoreU(hn::BitCast(Float(), hn::Or(high, low)), Float(), sum + i);
  }
  for (; i < size; ++i) {
    sum[i] = std::bit_cast<float>(static_cast<uint32_t>(upper[i]) << 16 | static_cast<uint32_t>(lower[i]) << 8);
  }
}

void SplitSum(const float* HWY_RESTRICT sum, int64_t size, uint16_t* HWY_RESTRICT upper, uint8_t* HWY_RESTRICT lower) {
  const hn::Rebind<int32_t, Float> d;
  int64_t i = 0;
  for (; i + FloatLanes() <= size; i += FloatLanes()) {
    const BitsVector bits = Rounded<8>(hn::LoadU(Float(), sum + i));
    StoreHalf(hn::ShiftRight<16>(bits), upper + i);
    const BitsVector low = hn::And(hn::ShiftRight<8>(bits), hn::Set(Bits(), 0xffu));
    hn::StoreU(hn::DemoteTo(Byte(), hn::BitCast(d, low)), Byte(), lower + i);
  }
  for (; i < size; ++i) {
    uint32_t bits = std::bit_cast<uint32_t>(sum[i]);
    bits += 0x7fu + ((bits >> 8) & 1u);
    upper[i] = static_cast<uint16_t>(bits >> 16);
    lower[i] = static_cast<uint8_t>(bits >> 8);
  }
}

void RoundToBFloat16s(const float* HWY_RESTRICT in, int64_t size, uint16_t* HWY_RESTRICT out) {
  int64_t i = 0;
  for (; i + FloatLanes() <= size; i += FloatLanes()) {
    StoreHalf(hn::ShiftRight<16>(Rounded<16>(hn::LoadU(Float(), in + i))), out + i);
  }
  for (; i < size; ++i) out[i] = RoundToBFloat16(in[i]);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(ExpOfColumns);
HWY_EXPORT(ScaleColumns);
HWY_EXPORT(Transpose);
HWY_EXPORT(JoinSum);
HWY_EXPORT(SplitSum);
HWY_EXPORT(RoundToBFloat16s);

void exp_of_columns(const EntryBlock& block, const float* z_CR, float* maximum_R, float* sum_R, uint16_t* e_CR) {
  HWY_DYNAMIC_DISPATCH(ExpOfColumns)(block, z_CR, maximum_R, sum_R, e_CR);
}
void scale_columns(const EntryBlock& block, const uint16_t* e_CR, const float* factor_R, int64_t padded_entries,
                   uint16_t* p_CR, uint16_t* pairs_CR) {
  HWY_DYNAMIC_DISPATCH(ScaleColumns)(block, e_CR, factor_R, padded_entries, p_CR, pairs_CR);
}
void transpose(const uint16_t* in_CD, int64_t rows, int64_t columns, int64_t padded_rows, uint16_t* out_DC) {
  HWY_DYNAMIC_DISPATCH(Transpose)(in_CD, rows, columns, padded_rows, out_DC);
}
void join_sum(const uint16_t* upper, const uint8_t* lower, int64_t size, float* sum) {
  HWY_DYNAMIC_DISPATCH(JoinSum)(upper, lower, size, sum);
}
void split_sum(const float* sum, int64_t size, uint16_t* upper, uint8_t* lower) {
  HWY_DYNAMIC_DISPATCH(SplitSum)(sum, size, upper, lower);
}
void round_to_bfloat16(const float* in, int64_t size, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(RoundToBFloat16s)(in, size, out);
}

}  // namespace tamis::kernels
#endif

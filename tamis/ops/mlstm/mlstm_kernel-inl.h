// Shared by the forward and the backward pass of the mLSTM. Included once per instruction set.

#include "tamis/ops/mlstm/mlstm_kernel.h"

#if defined(TAMIS_OPS_MLSTM_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_MLSTM_KERNEL_INL_H_
#undef TAMIS_OPS_MLSTM_KERNEL_INL_H_
#else
#define TAMIS_OPS_MLSTM_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "tamis/kernels/math-inl.h"
#include "tamis/kernels/products-inl.h"
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Widths of rows in scratch memory.
struct MlstmWidths {
  int64_t key, value, tokens;

  /// value_columns: V and the columns that a pass adds to the values.
  MlstmWidths(const MlstmHead& in, int64_t value_columns)
      : key(padded(in.key_dim)), value(padded(value_columns)), tokens(padded(in.longest)) {}
};

/// Divides scratch memory into matrices; with null it only counts the numbers.
struct MlstmScratch {
  float* memory;
  int64_t used = 0;

  float* take(int64_t numbers) {
    float* piece = memory == nullptr ? nullptr : memory + used;
    used += padded(numbers);
    return piece;
  }
  double* take_doubles(int64_t numbers) { return reinterpret_cast<double*>(take(2 * numbers)); }
};

// ---- gates

HWY_INLINE void ScaleRow(float factor, float* HWY_RESTRICT row, int64_t width) {
  const LaneTag<float> d;
  const auto scale = hn::Set(d, factor);
  for (int64_t i = 0; i < width; i += hn::MaxLanes(d)) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), scale), d, row + i);
}

/// The gates of a chunk's tokens, relative to the chunk's beginning: F_t = sum of log f up to t, b_s = i_s - F_s,
/// M_t = max(m_in, b_0 .. b_t), so that m_t = F_t + M_t. In float64, as F may be large and differences count.
struct MlstmGates {
  double log_f[kMlstmMostTokens], b[kMlstmMostTokens], M[kMlstmMostTokens];
  HWY_ALIGN float b_high[kMlstmMostTokens], b_low[kMlstmMostTokens];  // b as two float32
  HWY_ALIGN float from_state[kMlstmMostTokens];                       // exp(m_in - M_t) / sqrt(K)
  HWY_ALIGN float to_state[kMlstmMostTokens];                         // exp(b_s - M_end)
  HWY_ALIGN float least[kMlstmMostTokens];                            // exp(-m_t)
  float keep;                                                         // exp(m_in - M_end)
  float scale;                                                        // 1 / sqrt(K)
  double m_in, m_out;
};

HWY_INLINE void ExpInPlace(float* x, int64_t count) {
  const LaneTag<float> d;
  for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) hn::Store(ExpOfNonPositive(d, hn::Load(d, x + i)), d, x + i);
}

/// With an absolute error of 1e-16, as it is added to exponents.
HWY_INLINE double LogSigmoid(double x) {
  return std::min(x, 0.0) - std::log(1 + std::exp(-std::fabs(x)));
}

HWY_INLINE void MakeGates(const MlstmHead& in, const MlstmChunk& chunk, double m_in, MlstmGates& gates) {
  double F = 0, M = m_in;
  for (int64_t t = 0; t < chunk.count; ++t) {
    gates.log_f[t] = LogSigmoid(in.f.at(chunk.first + t));
    F += gates.log_f[t];
    const double b = in.i.at(chunk.first + t) - F;
    M = std::max(M, b);
    gates.b[t] = b;
    gates.M[t] = M;
    gates.b_high[t] = static_cast<float>(b);
    gates.b_low[t] = static_cast<float>(b - gates.b_high[t]);
    gates.from_state[t] = static_cast<float>(m_in - M);
    gates.least[t] = static_cast<float>(std::min(-(F + M), kLargestNegativeM));
  }
  gates.m_in = m_in;
  gates.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(in.key_dim)));
  gates.m_out = F + M;
  for (int64_t t = 0; t < chunk.count; ++t) gates.to_state[t] = static_cast<float>(gates.b[t] - M);
  const int64_t lanes = padded(chunk.count);
  for (float* x : {gates.b_high, gates.b_low, gates.from_state, gates.to_state, gates.least}) {
    std::fill(x + chunk.count, x + lanes, 0.0f);
  }
  ExpInPlace(gates.from_state, lanes);
  ScaleRow(gates.scale, gates.from_state, lanes);
  ExpInPlace(gates.to_state, lanes);
  const LaneTag<float> d;
  for (int64_t t = 0; t < lanes; t += hn::MaxLanes(d)) {
    hn::Store(hn::Exp(d, hn::Load(d, gates.least + t)), d, gates.least + t);
  }
  gates.keep = static_cast<float>(std::exp(m_in - M));
}

// ---- rows and matrices

/// Row t times factor[t].
HWY_INLINE void ScaleRows(const float* factor, int64_t rows, int64_t width, float* matrix) {
  for (int64_t t = 0; t < rows; ++t) ScaleRow(factor[t], matrix + t * width, width);
}

enum class Next { kLater, kEarlier };  // which chunk a pass processes next

/// Loads the rows of a chunk and prefetches those of the next one.
template <Next kNext>
HWY_INLINE void LoadRows(const Rows& rows, const MlstmChunk& chunk, int64_t dim, int64_t width, float* out) {
  const int64_t ahead = kNext == Next::kLater ? chunk.count : -chunk.count;
  for (int64_t t = 0; t < chunk.count; ++t) {
    const int64_t position = chunk.first + t;
    PrefetchRows<Access::kRead>(rows, position + ahead, position + ahead + 1, dim);
    float* row = out + t * width;
    LoadRow(rows, position, dim, row);
    std::fill(row + padded(dim), row + width, 0.0f);
  }
}

/// out[c][r] = in[r][c] for whole groups of four columns, for which out has room. The rows of out are padded with zeros
/// to a multiple of kLanes.
HWY_INLINE void Transpose(const float* HWY_RESTRICT in, int64_t rows, int64_t columns, int64_t stride,
                          float* HWY_RESTRICT out, int64_t out_stride) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  for (; r + 4 <= rows; r += 4) {
    const float* from = in + r * stride;
    for (int64_t c = 0; c < columns; c += 4) {
      const auto row_0 = hn::LoadU(d, from + c), row_1 = hn::LoadU(d, from + stride + c);
      const auto row_2 = hn::LoadU(d, from + 2 * stride + c), row_3 = hn::LoadU(d, from + 3 * stride + c);
      const auto low_01 = hn::InterleaveLower(d, row_0, row_1), high_01 = hn::InterleaveUpper(d, row_0, row_1);
      const auto low_23 = hn::InterleaveLower(d, row_2, row_3), high_23 = hn::InterleaveUpper(d, row_2, row_3);
      float* to = out + c * out_stride + r;
      hn::StoreU(hn::ConcatLowerLower(d, low_23, low_01), d, to);
      hn::StoreU(hn::ConcatUpperUpper(d, low_23, low_01), d, to + out_stride);
      hn::StoreU(hn::ConcatLowerLower(d, high_23, high_01), d, to + 2 * out_stride);
      hn::StoreU(hn::ConcatUpperUpper(d, high_23, high_01), d, to + 3 * out_stride);
    }
  }
#endif
  for (; r < padded(rows); ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * out_stride + r] = r < rows ? in[r * stride + c] : 0.0f;
  }
}

constexpr int64_t whole_fours(int64_t count) {
  return (count + 3) / 4 * 4;
}

// Products with triangular matrices of a chunk, whose row t has columns 0 .. t, in steps of rows: zeros are left out
// where that is cheap.
inline constexpr int64_t kTriangleStep = 24;

/// C = A B or C += A B for a long depth, in steps: sums of short sums have a smaller rounding error than one long sum.
template <Sum kFirst = Sum::kReplace>
HWY_INLINE void MultiplyInSteps(int64_t rows, int64_t columns, int64_t depth, const LeftMatrix& a, const RightMatrix& b,
                                const Product& c) {
  constexpr int64_t kStep = 32;
  Multiply<kFirst>(rows, columns, std::min(kStep, depth), a, b, c);
  for (int64_t k = kStep; k < depth; k += kStep) {
    Multiply<Sum::kAdd>(rows, columns, std::min(kStep, depth - k), {a.data + k * a.column, a.row, a.column},
                        {b.data + k * b.stride, b.stride}, c);
  }
}

/// The triangle of A B, rows `stride` apart; some columns beyond it hold products too.
HWY_INLINE void MultiplyToTriangle(int64_t tokens, int64_t depth, const LeftMatrix& a, const RightMatrix& b,
                                   const Product& triangle) {
  for (int64_t t = 0; t < tokens; t += kTriangleStep) {
    const int64_t rows = std::min(kTriangleStep, tokens - t);
    MultiplyInSteps(rows, padded(t + rows), depth, {a.data + t * a.row, a.row, a.column}, b,
                    {triangle.data + t * triangle.stride, triangle.stride});
  }
}

/// C = P B for a triangle P that is followed by zeros.
HWY_INLINE void MultiplyTriangle(int64_t tokens, int64_t columns, const float* triangle, int64_t stride,
                                 const RightMatrix& b, const Product& c) {
  for (int64_t t = 0; t < tokens; t += kTriangleStep) {
    const int64_t rows = std::min(kTriangleStep, tokens - t);
    Multiply<Sum::kReplace>(rows, columns, t + rows, {triangle + t * stride, stride, 1}, b,
                            {c.data + t * c.stride, c.stride});
  }
}

/// C = P^T B.
HWY_INLINE void MultiplyTransposedTriangle(int64_t tokens, int64_t columns, const float* triangle, int64_t stride,
                                           const RightMatrix& b, const Product& c) {
  for (int64_t s = 0; s < tokens; s += kTriangleStep) {
    const int64_t rows = std::min(kTriangleStep, tokens - s);
    Multiply<Sum::kReplace>(rows, columns, tokens - s, {triangle + s * stride + s, 1, stride},
                            {b.data + s * b.stride, b.stride}, {c.data + s * c.stride, c.stride});
  }
}

/// Scores -> weights P = score * D, D_ts = exp(b_s - M_t) / sqrt(K) for s <= t, zeros beyond the triangle. D null: D is
/// not stored.
HWY_INLINE void MakeWeights(const MlstmGates& gates, int64_t tokens, int64_t stride, float* weights, float* D) {
  const LaneTag<float> d;
  const hn::RebindToSigned<LaneTag<float>> integers;
  const auto scale = hn::Set(d, gates.scale);
  const int64_t width = padded(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto high = static_cast<float>(gates.M[t]);
    const auto M_high = hn::Set(d, high), M_low = hn::Set(d, static_cast<float>(gates.M[t] - high));
    const auto end = hn::Set(integers, static_cast<int32_t>(t + 1));
    float* row = weights + t * stride;
    int64_t s = 0;
    for (; s <= t; s += hn::MaxLanes(d)) {
      const auto difference = hn::Sub(hn::Load(d, gates.b_high + s), M_high);
      const auto exponent = hn::Add(difference, hn::Sub(hn::Load(d, gates.b_low + s), M_low));
      const auto inside = hn::RebindMask(d, hn::Lt(hn::Iota(integers, static_cast<int32_t>(s)), end));
      const auto factor = hn::IfThenElseZero(inside, hn::Mul(ExpOfNonPositive(d, exponent), scale));
      hn::StoreU(hn::IfThenElseZero(inside, hn::Mul(hn::LoadU(d, row + s), factor)), d, row + s);
      if (D != nullptr) hn::StoreU(factor, d, D + t * stride + s);
    }
    std::fill(row + s, row + width, 0.0f);
  }
}

// ---- the state

HWY_INLINE void LoadMatrix(const float* C, const MlstmHead& head, int64_t width, float* state) {
  for (int64_t d = 0; d < head.key_dim; ++d) {
    float* row = state + d * width;
    CopyRow(C + d * head.value_dim, head.value_dim, row);
    std::fill(row + head.value_dim, row + width, 0.0f);
  }
}

HWY_INLINE void StoreMatrix(const float* state, const MlstmHead& head, int64_t width, float* C) {
  for (int64_t d = 0; d < head.key_dim; ++d) {
    CopyRow(state + d * width, head.value_dim, C + d * head.value_dim);
  }
}

/// (3) token by token, and n_t . q_t / sqrt(K) of each, in float64: the denominator and every gradient depend on it,
/// and it may nearly vanish. n: padded(K) numbers.
HWY_INLINE void AdvanceNormaliser(const MlstmGates& gates, int64_t tokens, int64_t width, const float* q,
                                  const float* k, double* n, double* n_dot_q) {
  const WideTag d;
  for (int64_t t = 0; t < tokens; ++t) {
    const double before = t == 0 ? gates.m_in : gates.M[t - 1], M = gates.M[t];
    const auto keep = hn::Set(d, before == M ? 1 : std::exp(before - M));
    const auto add = hn::Set(d, gates.b[t] == M ? 1 : std::exp(gates.b[t] - M));
    auto sum = hn::Zero(d);
    for (int64_t x = 0; x < width; x += hn::MaxLanes(d)) {
      const auto kept = hn::Mul(keep, hn::LoadU(d, n + x));
      const auto next = hn::MulAdd(add, LoadWide(k + t * width + x), kept);
      hn::StoreU(next, d, n + x);
      sum = hn::MulAdd(next, LoadWide(q + t * width + x), sum);
    }
    n_dot_q[t] = hn::GetLane(hn::SumOfLanes(d, sum)) * static_cast<double>(gates.scale);
  }
}

/// (2) over a chunk: after <- keep before + sum_s to_state_s k_s v_s^T. before null: there was nothing; it may be
/// `after`. Row s of k is multiplied by to_state_s.
HWY_INLINE void AdvanceState(const MlstmHead& in, const MlstmGates& gates, int64_t tokens, const MlstmWidths& width,
                             const float* before, float* k, const float* v, float* after) {
  ScaleRows(gates.to_state, tokens, width.key, k);
  const LeftMatrix k_transposed{k, 1, width.key};
  if (before == nullptr) {
    Multiply<Sum::kReplace>(in.key_dim, width.value, tokens, k_transposed, {v, width.value}, {after, width.value});
    return;
  }
  const LaneTag<float> d;
  const auto keep = hn::Set(d, gates.keep);
  for (int64_t x = 0; x < in.key_dim * width.value; x += hn::MaxLanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, before + x), keep), d, after + x);
  }
  Multiply<Sum::kAdd>(in.key_dim, width.value, tokens, k_transposed, {v, width.value}, {after, width.value});
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

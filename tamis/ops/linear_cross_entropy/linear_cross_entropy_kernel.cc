#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/linear_cross_entropy/linear_cross_entropy_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway requires.
#include "hwy/highway.h"
#include "tamis/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
HWY_INLINE Real Maximum(const Real* HWY_RESTRICT logits, int64_t columns) {
  const hn::ScalableTag<Real> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Real largest = logits[0];
  int64_t n = 0;
  if (columns >= lanes) {
    auto running = hn::LoadU(d, logits);
    for (n = lanes; n + lanes <= columns; n += lanes) running = hn::Max(running, hn::LoadU(d, logits + n));
    largest = hn::GetLane(hn::MaxOfLanes(d, running));
  }
  for (; n < columns; ++n) largest = HWY_MAX(largest, logits[n]);
  return largest;
}

/// sum_n exp(z_n - maximum)
template <typename Real>
HWY_INLINE Real SumOfExp(const Real* HWY_RESTRICT logits, int64_t columns, Real maximum) {
  const hn::ScalableTag<Real> d;
  const hn::CappedTag<Real, 1> d1;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  auto rest = hn::Zero(d1);
  int64_t n = 0;
  for (; n + lanes <= columns; n += lanes) {
    sum = hn::Add(sum, ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, logits + n), hn::Set(d, maximum))));
  }
  for (; n < columns; ++n) {
    rest = hn::Add(rest, ExpOfNonPositive(d1, hn::Sub(hn::LoadU(d1, logits + n), hn::Set(d1, maximum))));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum)) + hn::GetLane(rest);
}

template <typename Real>
void Statistics(const LogitBlock<Real>& block, Real* maximum_R, Real* sum_R) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const Real* HWY_RESTRICT logits = block.data + r * block.stride;
    maximum_R[r] = Maximum(logits, block.columns);
    sum_R[r] = SumOfExp(logits, block.columns, maximum_R[r]);
  }
}

/// body(d, row, logits) for every vector of every row, of single numbers at the end.
template <typename Real, class Body>
HWY_INLINE void ForEachVector(const LogitBlock<Real>& block, const Body& body) {
  const hn::ScalableTag<Real> d;
  const hn::CappedTag<Real, 1> d1;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < block.rows; ++r) {
    Real* HWY_RESTRICT logits = block.data + r * block.stride;
    int64_t n = 0;
    for (; n + lanes <= block.columns; n += lanes) body(d, r, logits + n);
    for (; n < block.columns; ++n) body(d1, r, logits + n);
  }
}

template <typename Real>
void Cap(const LogitBlock<Real>& block, Real cap) {
  const Real inverse = Real{1} / cap;
  ForEachVector(block, [=](auto d, int64_t, Real* logits) HWY_ATTR {
    SizedVec<decltype(d)> tanh[1] = {hn::Mul(hn::LoadU(d, logits), hn::Set(d, inverse))};
    PreciseTanh(d, tanh);
    hn::StoreU(hn::Mul(tanh[0], hn::Set(d, cap)), d, logits);
  });
}

template <class D, typename Real>
HWY_INLINE void ScaledExp(D d, Real maximum, Real scale, Real* logits) {
  const auto e = ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, logits), hn::Set(d, maximum)));
  hn::StoreU(hn::Mul(e, hn::Set(d, scale)), d, logits);
}

template <typename Real>
void Softmax(const LogitBlock<Real>& block, const Real* maximum_R, const Real* scale_R) {
  ForEachVector(block,
                [=](auto d, int64_t r, Real* logits) HWY_ATTR { ScaledExp(d, maximum_R[r], scale_R[r], logits); });
}

template <typename Real>
void SoftmaxOfCapped(const LogitBlock<Real>& block, const Real* maximum_R, const Real* scale_R, Real cap) {
  const Real inverse_square = Real{1} / (cap * cap);
  ForEachVector(block, [=](auto d, int64_t r, Real* logits) HWY_ATTR {
    const auto z = hn::LoadU(d, logits), c = hn::Set(d, cap);
    // 1 - (z / c)^2 in factors: c - z is exact near the cap.
    const auto slope = hn::Mul(hn::Mul(hn::Sub(c, z), hn::Add(c, z)), hn::Set(d, inverse_square));
    ScaledExp(d, maximum_R[r], scale_R[r], logits);
    hn::StoreU(hn::Mul(hn::LoadU(d, logits), slope), d, logits);
  });
}

// HWY_EXPORT takes plain functions only.
void StatisticsF32(const LogitBlock<float>& b, float* maximum_R, float* sum_R) {
  Statistics(b, maximum_R, sum_R);
}
void StatisticsF64(const LogitBlock<double>& b, double* maximum_R, double* sum_R) {
  Statistics(b, maximum_R, sum_R);
}
void SoftmaxF32(const LogitBlock<float>& b, const float* maximum_R, const float* scale_R) {
  Softmax(b, maximum_R, scale_R);
}
void SoftmaxF64(const LogitBlock<double>& b, const double* maximum_R, const double* scale_R) {
  Softmax(b, maximum_R, scale_R);
}
void CapF32(const LogitBlock<float>& b, float cap) {
  Cap(b, cap);
}
void CapF64(const LogitBlock<double>& b, double cap) {
  Cap(b, cap);
}
void SoftmaxOfCappedF32(const LogitBlock<float>& b, const float* maximum_R, const float* scale_R, float cap) {
  SoftmaxOfCapped(b, maximum_R, scale_R, cap);
}
void SoftmaxOfCappedF64(const LogitBlock<double>& b, const double* maximum_R, const double* scale_R, double cap) {
  SoftmaxOfCapped(b, maximum_R, scale_R, cap);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(StatisticsF32);
HWY_EXPORT(StatisticsF64);
HWY_EXPORT(SoftmaxF32);
HWY_EXPORT(SoftmaxF64);
HWY_EXPORT(CapF32);
HWY_EXPORT(CapF64);
HWY_EXPORT(SoftmaxOfCappedF32);
HWY_EXPORT(SoftmaxOfCappedF64);

template <>
void softmax_statistics(const LogitBlock<float>& logits, float* maximum_R, float* sum_R) {
  HWY_DYNAMIC_DISPATCH(StatisticsF32)(logits, maximum_R, sum_R);
}
template <>
void softmax_statistics(const LogitBlock<double>& logits, double* maximum_R, double* sum_R) {
  HWY_DYNAMIC_DISPATCH(StatisticsF64)(logits, maximum_R, sum_R);
}
template <>
void scaled_softmax(const LogitBlock<float>& logits, const float* maximum_R, const float* scale_R) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF32)(logits, maximum_R, scale_R);
}
template <>
void scaled_softmax(const LogitBlock<double>& logits, const double* maximum_R, const double* scale_R) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF64)(logits, maximum_R, scale_R);
}
template <>
void soft_cap(const LogitBlock<float>& logits, float cap) {
  HWY_DYNAMIC_DISPATCH(CapF32)(logits, cap);
}
template <>
void soft_cap(const LogitBlock<double>& logits, double cap) {
  HWY_DYNAMIC_DISPATCH(CapF64)(logits, cap);
}
template <>
void scaled_softmax_of_capped(const LogitBlock<float>& logits, const float* maximum_R, const float* scale_R,
                              float cap) {
  HWY_DYNAMIC_DISPATCH(SoftmaxOfCappedF32)(logits, maximum_R, scale_R, cap);
}
template <>
void scaled_softmax_of_capped(const LogitBlock<double>& logits, const double* maximum_R, const double* scale_R,
                              double cap) {
  HWY_DYNAMIC_DISPATCH(SoftmaxOfCappedF64)(logits, maximum_R, scale_R, cap);
}

}  // namespace tamis::kernels
#endif

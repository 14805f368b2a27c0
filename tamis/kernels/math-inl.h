// Elementary functions that are closer than Highway's own where that matters. Included once per instruction set.

#if defined(TAMIS_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_KERNELS_MATH_INL_H_
#undef TAMIS_KERNELS_MATH_INL_H_
#else
#define TAMIS_KERNELS_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// max(x, 0); a NaN stays one, whatever the instruction set's maximum does with it.
template <class D, class V>
HWY_INLINE V PositivePart(D d, V x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
}

/// tanh to about one ulp in float32 (Highway's is good to four): below 0.625 the polynomial of Cephes' tanhf, above it
/// 1 - 2 / (exp(2 |x|) + 1). A NaN stays one: Min returns its second argument then.
template <class D, class V>
HWY_INLINE V PreciseTanh(D d, V x) {
  using Real = hn::TFromD<D>;
  if constexpr (sizeof(Real) == 8) {
    return hn::Tanh(d, x);
  } else {
    const auto one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
    const auto squared = hn::Mul(x, x);
    auto series = hn::Set(d, -5.70498872745e-3f);
    for (const float coefficient : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) {
      series = hn::MulAdd(series, squared, hn::Set(d, coefficient));
    }
    const auto near_zero = hn::MulAdd(hn::Mul(series, squared), x, x);
    const auto magnitude = hn::Min(hn::Set(d, 20.0f), hn::Abs(x));
    const auto far = hn::Sub(one, hn::Div(two, hn::Add(hn::Exp(d, hn::Mul(two, magnitude)), one)));
    return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), near_zero, hn::CopySign(far, x));
  }
}

/// 1 / (1 + exp(-x)); exp stays within its range.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  using Real = hn::TFromD<D>;
  const auto one = hn::Set(d, Real{1});
  const auto exponent = hn::Min(hn::Set(d, sizeof(Real) == 8 ? Real{700} : Real{88}), hn::Neg(x));
  return hn::Div(one, hn::Add(one, hn::Exp(d, exponent)));
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

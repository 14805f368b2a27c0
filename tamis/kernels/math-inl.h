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

/// exp(x) - 1 and 2^n for the n nearest to x / ln 2, for |x| <= 87 in float32: x = n ln 2 + r, |r| <= ln(2) / 2, and
/// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), exact to about one ulp near 0 too. The polynomial is that of Cephes'
/// expf.
template <class D, class V>
HWY_INLINE V ShortExpMinusOne(D d, V x, V& power) {
  const hn::RebindToSigned<D> integers;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  const auto steps = hn::ConvertTo(d, n);
  const auto r = hn::NegMulAdd(steps, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(steps, hn::Set(d, 0.693359375f), x));
  auto series = hn::Set(d, 1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    series = hn::MulAdd(series, r, hn::Set(d, coefficient));
  }
  const auto minus_one = hn::MulAdd(hn::Mul(r, r), series, r);
  power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(integers, 127))));
  return hn::MulAdd(power, minus_one, hn::Sub(power, hn::Set(d, 1.0f)));
}

/// tanh(x) = m / (m + 2), m = exp(2 x) - 1: to about two ulp in float32, the sign and the relative precision near 0
/// included. A NaN stays one: Min and Max return their second argument then.
template <class D, class V>
HWY_INLINE V PreciseTanh(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Tanh(d, x);
  } else {
    const auto twice = hn::Add(x, x);
    const auto bounded = hn::Max(hn::Set(d, -40.0f), hn::Min(hn::Set(d, 40.0f), twice));
    auto power = bounded;
    const auto m = ShortExpMinusOne(d, bounded, power);
    return hn::Div(m, hn::Add(m, hn::Set(d, 2.0f)));
  }
}

/// 1 / (1 + exp(-x)); exp stays within its range.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  const auto minus_x = hn::Neg(x);
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const auto one = hn::Set(d, 1.0);
    return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Set(d, 700.0), minus_x))));
  } else {
    const auto bounded = hn::Max(hn::Set(d, -87.0f), hn::Min(hn::Set(d, 87.0f), minus_x));
    auto power = bounded;
    return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 2.0f), ShortExpMinusOne(d, bounded, power)));
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

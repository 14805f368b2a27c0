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

/// exp(r) - 1 for x = n ln 2 + r, |r| <= ln(2) / 2, in float32: the polynomial of Cephes' expf.
template <class D, class V>
HWY_INLINE V ExpOfRemainderMinusOne(D d, V x, V n) {
  const auto r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
  auto series = hn::Set(d, 1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    series = hn::MulAdd(series, r, hn::Set(d, coefficient));
  }
  return hn::MulAdd(hn::Mul(r, r), series, r);
}

/// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1) for |x| <= 87 in float32, exact to about one ulp near 0 too.
template <class D, class V>
HWY_INLINE V ShortExpMinusOne(D d, V x) {
  const hn::RebindToSigned<D> integers;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  const auto minus_one = ExpOfRemainderMinusOne(d, x, hn::ConvertTo(d, n));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(integers, 127))));
  return hn::MulAdd(power, minus_one, hn::Sub(power, hn::Set(d, 1.0f)));
}

/// exp(x) for x <= 0, where softmax needs it: in float32 to about one ulp and in half the instructions of Highway's
/// Exp, and 0 below -87. A NaN stays one, which Highway's would turn into 0.
template <class D, class V>
HWY_INLINE V ExpOfNonPositive(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
  } else {
    // Added to 1.5 * 2^23, n stands in the lowest bits of the sum.
    const auto shift = hn::Set(d, 12582912.0f);
    const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shift);
    const auto exp_of_r = hn::Add(ExpOfRemainderMinusOne(d, x, hn::Sub(shifted, shift)), hn::Set(d, 1.0f));
    const hn::RebindToUnsigned<D> bits;
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, shifted));
    const auto exp = hn::BitCast(d, hn::Add(hn::BitCast(bits, exp_of_r), exponent));
    return hn::IfThenElse(hn::Gt(x, hn::Set(d, -87.0f)), exp, PositivePart(d, x));
  }
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
    const auto m = ShortExpMinusOne(d, bounded);
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
    return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 2.0f), ShortExpMinusOne(d, bounded)));
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

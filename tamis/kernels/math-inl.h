// Elementary functions: more precise than Highway's where that matters, or faster where it does not. Included once per
// instruction set.

#if defined(TAMIS_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_KERNELS_MATH_INL_H_
#undef TAMIS_KERNELS_MATH_INL_H_
#else
#define TAMIS_KERNELS_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "tamis/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// max(x, 0); a NaN stays NaN on every instruction set.
template <class D>
HWY_INLINE hn::Vec<D> PositivePart(D d, hn::Vec<D> x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR  // Max returns its second argument then
  return hn::Max(hn::Zero(d), x);
#else
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
#endif
}

// Functions of kCount vectors interleave them: their chains of dependent instructions are so long that out-of-order
// execution does not reach the next vector.

/// The accuracy of a float32 result: full, or sufficient for a result that is rounded to bfloat16, which has a relative
/// error of up to 2^-8: 2^-11.
enum class Accuracy { kFloat32, kBFloat16 };

/// x limited to [-limit, limit]; a NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> Clamp(D d, hn::Vec<D> x, float limit) {
  const hn::Vec<D> clamped = hn::Max(hn::Set(d, -limit), hn::Min(hn::Set(d, limit), x));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR  // Min and Max return their second argument then
  return clamped;
#else
  return hn::IfThenElse(hn::IsNaN(x), x, clamped);
#endif
}

/// exp(r) - 1 for x = n ln 2 + r, |r| <= ln(2) / 2, in float32: r + r^2 times a polynomial, fitted to 1.4e-8, or for
/// bfloat16 to 4e-5 of r.
template <Accuracy kAccuracy = Accuracy::kFloat32, int kCount, class D, class V>
HWY_INLINE void ExpOfRemainderMinusOne(D d, const V (&x)[kCount], const V (&n)[kCount], V (&result)[kCount]) {
  V r[kCount], series[kCount];
  const auto continue_series = [&](float coefficient) HWY_ATTR {
    for (int i = 0; i < kCount; ++i) series[i] = hn::MulAdd(series[i], r[i], hn::Set(d, coefficient));
  };
  if constexpr (kAccuracy == Accuracy::kBFloat16) {
    for (int i = 0; i < kCount; ++i) r[i] = hn::NegMulAdd(n[i], hn::Set(d, 0.693147181f), x[i]);
    for (int i = 0; i < kCount; ++i) series[i] = hn::Set(d, 4.16666667e-2f);
    for (const float coefficient : {1.67417e-1f, 5.0e-1f}) continue_series(coefficient);
  } else {
    for (int i = 0; i < kCount; ++i) r[i] = hn::NegMulAdd(n[i], hn::Set(d, 0.693359375f), x[i]);
    for (int i = 0; i < kCount; ++i) r[i] = hn::NegMulAdd(n[i], hn::Set(d, -2.12194440e-4f), r[i]);
    for (int i = 0; i < kCount; ++i) series[i] = hn::Set(d, 1.39464124e-3f);
    for (const float coefficient : {8.36656522e-3f, 4.16662842e-2f, 1.66665435e-1f, 5.0e-1f}) {
      continue_series(coefficient);
    }
  }
  for (int i = 0; i < kCount; ++i) result[i] = hn::MulAdd(hn::Mul(r[i], r[i]), series[i], r[i]);
}

/// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1) for |x| <= 87 in float32, exact to about one ulp, or to 4e-5, near 0 too.
template <Accuracy kAccuracy = Accuracy::kFloat32, int kCount, class D, class V>
HWY_INLINE void ShortExpMinusOne(D d, V (&x)[kCount]) {
  const hn::RebindToSigned<D> integers;
  V n[kCount], minus_one[kCount];
  for (int i = 0; i < kCount; ++i) n[i] = hn::Round(hn::Mul(x[i], hn::Set(d, 1.44269504088896341f)));
  ExpOfRemainderMinusOne<kAccuracy>(d, x, n, minus_one);
  for (int i = 0; i < kCount; ++i) {
    const auto exponent = hn::Add(hn::ConvertTo(integers, n[i]), hn::Set(integers, 127));
    const auto power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
    x[i] = hn::MulAdd(power, minus_one[i], hn::Sub(power, hn::Set(d, 1.0f)));
  }
}

/// a / b in float32; for bfloat16 by an approximate reciprocal where the processor's is good to 2^-11, which is x86.
template <Accuracy kAccuracy, class D>
HWY_INLINE hn::Vec<D> Quotient(D, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (kAccuracy == Accuracy::kBFloat16 && HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR) {
    return hn::Mul(a, hn::ApproximateReciprocal(b));
  } else {
    return hn::Div(a, b);
  }
}

/// x <- exp(x) for x <= 0, for softmax: in float32 to about one ulp with half the instructions of Highway's Exp, and 0
/// below -87. A NaN stays NaN; Highway's Exp would return 0.
template <int kCount, class D, class V>
HWY_INLINE void ExpOfNonPositive(D d, V (&x)[kCount]) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    for (int i = 0; i < kCount; ++i) {
      const hn::Vec<D> x_i = x[i];
      x[i] = hn::IfThenElse(hn::IsNaN(x_i), x_i, hn::Exp(d, x_i));
    }
  } else {
    // The lowest bits of n + 1.5 * 2^23 are n.
    const auto shift = hn::Set(d, 12582912.0f);
    V shifted[kCount], n[kCount], minus_one[kCount];
    for (int i = 0; i < kCount; ++i) shifted[i] = hn::MulAdd(x[i], hn::Set(d, 1.44269504f), shift);
    for (int i = 0; i < kCount; ++i) n[i] = hn::Sub(shifted[i], shift);
    ExpOfRemainderMinusOne(d, x, n, minus_one);
    const hn::RebindToUnsigned<D> bits;
    for (int i = 0; i < kCount; ++i) {
      const auto exp_of_r = hn::Add(minus_one[i], hn::Set(d, 1.0f));
      const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, shifted[i]));
      const auto exp = hn::BitCast(d, hn::Add(hn::BitCast(bits, exp_of_r), exponent));
      x[i] = hn::IfThenElse(hn::Lt(hn::Set(d, -87.0f), x[i]), exp, PositivePart(d, x[i]));
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<D> ExpOfNonPositive(D d, hn::Vec<D> x) {
  SizedVec<D> one[1] = {x};
  ExpOfNonPositive(d, one);
  return one[0];
}

/// x <- tanh(x) = m / (m + 2), m = exp(2 x) - 1: to about two ulp in float32, or to a relative 2^-11, including the
/// sign (but not of -0) and the relative precision near 0. A NaN stays NaN.
template <Accuracy kAccuracy = Accuracy::kFloat32, int kCount, class D, class V>
HWY_INLINE void PreciseTanh(D d, V (&x)[kCount]) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    for (int i = 0; i < kCount; ++i) x[i] = hn::Tanh(d, hn::Vec<D>(x[i]));
  } else {
    for (int i = 0; i < kCount; ++i) x[i] = Clamp(d, hn::Add(x[i], x[i]), 40.0f);
    ShortExpMinusOne<kAccuracy>(d, x);
    for (int i = 0; i < kCount; ++i) x[i] = Quotient<kAccuracy>(d, x[i], hn::Add(x[i], hn::Set(d, 2.0f)));
  }
}

/// x <- 1 / (1 + exp(-x)), to about two ulp in float32, or to a relative 2^-11; exp does not overflow.
template <Accuracy kAccuracy = Accuracy::kFloat32, int kCount, class D, class V>
HWY_INLINE void Sigmoid(D d, V (&x)[kCount]) {
  const auto one = hn::Set(d, hn::TFromD<D>{1});
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    for (int i = 0; i < kCount; ++i) {
      x[i] = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Set(d, 700.0), hn::Neg(x[i])))));
    }
  } else {
    for (int i = 0; i < kCount; ++i) x[i] = Clamp(d, hn::Neg(x[i]), 87.0f);
    ShortExpMinusOne<kAccuracy>(d, x);
    for (int i = 0; i < kCount; ++i) x[i] = Quotient<kAccuracy>(d, one, hn::Add(hn::Set(d, 2.0f), x[i]));
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

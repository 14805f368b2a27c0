// What the passes of the vocabulary head share. Included once per instruction set.

#if defined(TAMIS_OPS_LINEAR_CROSS_ENTROPY_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_LINEAR_CROSS_ENTROPY_KERNEL_INL_H_
#undef TAMIS_OPS_LINEAR_CROSS_ENTROPY_KERNEL_INL_H_
#else
#define TAMIS_OPS_LINEAR_CROSS_ENTROPY_KERNEL_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "tamis/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// exp(x) for x <= 0, where softmax needs it: in float32 Cephes' polynomial, to about one ulp and in half the
/// instructions of Highway's Exp, and 0 below -87. A NaN stays one, which Highway's would turn into 0.
template <class D, class V>
HWY_INLINE V ExpOfNonPositive(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
  } else {
    // x = n ln 2 + r. Added to 1.5 * 2^23, n stands in the lowest bits of the sum.
    const auto shift = hn::Set(d, 12582912.0f);
    const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shift);
    const auto n = hn::Sub(shifted, shift);
    const auto r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
    auto series = hn::Set(d, 1.9875691500e-4f);
    for (const float coefficient :
         {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
      series = hn::MulAdd(series, r, hn::Set(d, coefficient));
    }
    const auto exp_of_r = hn::Add(hn::MulAdd(series, hn::Mul(r, r), r), hn::Set(d, 1.0f));
    const hn::RebindToUnsigned<D> bits;
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, shifted));
    const auto exp = hn::BitCast(d, hn::Add(hn::BitCast(bits, exp_of_r), exponent));
    return hn::IfThenElse(hn::Gt(x, hn::Set(d, -87.0f)), exp, PositivePart(d, x));
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

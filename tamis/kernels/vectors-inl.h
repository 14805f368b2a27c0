// Vectors in arrays and structures, on every instruction set. Included once per instruction set.

#if defined(TAMIS_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_KERNELS_VECTORS_INL_H_
#undef TAMIS_KERNELS_VECTORS_INL_H_
#else
#define TAMIS_KERNELS_VECTORS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SVE_256 || HWY_TARGET == HWY_SVE2_128

/// Arm's scalable vectors have no size, so they cannot be elements of arrays or members of structures. Kernels are
/// compiled with -msve-vector-bits (cmake/TamisCompiler.cmake), so that this attribute can give them one. Both kinds
/// convert to each other, but Highway's templates know only those without a size: elements are converted for these.
template <class Scalable>
struct SizedVector;
#define TAMIS_SIZED_VECTOR(scalable)                                                 \
  template <>                                                                        \
  struct SizedVector<scalable> {                                                     \
    using Type __attribute__((arm_sve_vector_bits(8 * (HWY_MAX_BYTES)))) = scalable; \
  };
TAMIS_SIZED_VECTOR(svfloat32_t)
TAMIS_SIZED_VECTOR(svfloat64_t)
TAMIS_SIZED_VECTOR(svint16_t)
TAMIS_SIZED_VECTOR(svuint16_t)
TAMIS_SIZED_VECTOR(svint32_t)
TAMIS_SIZED_VECTOR(svuint32_t)
#undef TAMIS_SIZED_VECTOR

template <class D>
using SizedVec = typename SizedVector<hn::Vec<D>>::Type;

#else

template <class D>
using SizedVec = hn::Vec<D>;

#endif

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

// The forward walk, and the tables both walks read.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_search_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

template <typename Real>
void Forward(const ScreeningWalk<Real>& walk) {
  const int64_t key_width = padded(walk.head.key_dim), value_width = padded(walk.head.value_dim);
  Real* q = walk.scratch;
  Real* h = q + kBlockQueries * key_width;
  Real* gate = h + kBlockQueries * value_width;
  HWY_ALIGN Real factor[kBlockQueries];
  Verdicts<Real> verdicts;
  Rotations<Real> rotations(walk.head);
  int64_t packed = walk.packed;

  for (int64_t first = walk.first; first < walk.last; first += walk.block) {
    const int64_t count = std::min(walk.block, walk.last - first);
    const int64_t row = first - walk.query_origin;
    PrefetchRows<Access::kRead>(walk.gate, row, walk.gate.data == nullptr ? row : row + count, walk.head.value_dim);
    PrefetchRows<Access::kWrite>(walk.out, row, row + count, walk.head.value_dim);
    PrefetchNextBlock(walk, first, count);
    PackKeys(walk, packed, first + count, rotations, q);
    packed = first + count;
    LoadQueries(walk, first, count, rotations, q);
    std::fill(h, h + count * value_width, Real{0});
    const Slots slots(FirstVisibleTile(walk, first), walk.ring.capacity);
    const auto slots_of = [&](int64_t panel) HWY_ATTR { return PanelSlots(slots, panel, walk.ring.capacity); };
    ForAcceptedKeys<false>(
        walk, q, first, count, slots, verdicts,
        [&](int64_t i, uint64_t accepted, const Real* weight, const Real*, int64_t panel)
            HWY_ATTR { AddAccepted(walk, accepted, weight, slots_of(panel), h + i * value_width); },
        [&](int64_t panel) HWY_ATTR { AddPanel(walk, verdicts, count, slots_of(panel), h); });
    TanhNormFactors(walk.head, h, count, factor);
    for (int64_t i = 0; i < count; ++i) Finish(walk, first + i, factor[i], h + i * value_width, gate);
  }
}

void ForwardFloat(const ScreeningWalk<float>& walk) {
  Forward(walk);
}
void ForwardDouble(const ScreeningWalk<double>& walk) {
  Forward(walk);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <numbers>

namespace tamis::kernels {

HWY_EXPORT(ForwardFloat);
HWY_EXPORT(ForwardDouble);

template <>
void screening_forward(const ScreeningWalk<float>& walk) {
  HWY_DYNAMIC_DISPATCH(ForwardFloat)(walk);
}

template <>
void screening_forward(const ScreeningWalk<double>& walk) {
  HWY_DYNAMIC_DISPATCH(ForwardDouble)(walk);
}

template <typename Real>
void fill_softmask(double width, int64_t span, Real* softmask, Real* slope) {
  const int64_t size = span + 2 * kMaskPadding;
  std::fill(softmask, softmask + size, Real{0});
  if (slope != nullptr) std::fill(slope, slope + size, Real{0});
  for (int64_t distance = 0; distance < span; ++distance) {
    // With x = pi d / w: m = (cos x + 1) / 2 and dm/ds_w = x sin(x) / 2 (1 - 1/w), as dw/ds_w = w - 1.    (10)
    const double x = std::numbers::pi * static_cast<double>(distance) / width;
    const int64_t at = kMaskPadding + span - 1 - distance;
    softmask[at] = static_cast<Real>((std::cos(x) + 1) / 2);
    if (slope != nullptr) slope[at] = static_cast<Real>(x * std::sin(x) / 2 * (1 - 1 / width));
  }
}

template void fill_softmask(double, int64_t, float*, float*);
template void fill_softmask(double, int64_t, double*, double*);

}  // namespace tamis::kernels
#endif

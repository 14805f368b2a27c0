// The forward pass.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_search_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

template <typename Real>
void Forward(const ScreeningPass<Real>& pass) {
  const int64_t key_width = padded(pass.head.key_dim), value_width = padded(pass.head.value_dim);
  Real* q = pass.scratch;
  Real* h = q + kBlockQueries * key_width;
  Real* gate = h + kBlockQueries * value_width;
  HWY_ALIGN Real factor[kBlockQueries];
  ScreenedPanel<Real> screened;
  Rotations<Real> rotations(pass.head);
  int64_t packed = pass.packed;

  for (int64_t first = pass.first; first < pass.last; first += pass.block) {
    const int64_t count = std::min(pass.block, pass.last - first);
    const int64_t row = first - pass.query_origin;
    PrefetchRows<Access::kRead>(pass.gate, row, pass.gate.data == nullptr ? row : row + count, pass.head.value_dim);
    PrefetchRows<Access::kWrite>(pass.out, row, row + count, pass.head.value_dim);
    PrefetchNextBlock(pass, first, count);
    PackKeys(pass, packed, first + count, rotations, q);
    packed = first + count;
    LoadQueries(pass, first, count, rotations, q);
    std::fill(h, h + count * value_width, Real{0});
    const int64_t first_tile = FirstVisibleTile(pass, first);
    const Slots slots(first_tile, pass.ring.capacity);
    const auto slots_of = [&](int64_t panel) HWY_ATTR { return PanelSlots(slots, panel, pass.ring.capacity); };
    const int64_t indexed = AcceptIndexedKeys<false>(
        pass, q, first, count, slots,
        [&](int64_t i, uint64_t accepted, const Real* weight, const Real*, int64_t panel)
            HWY_ATTR { AddAccepted(pass, accepted, weight, slots_of(panel), h + i * value_width); });
    CountPairs(pass, first, count, indexed);
    for (int64_t panel = std::max(indexed, first_tile); panel < first + count; panel += kPanelKeys) {
      ScreenPanel<false>(pass, q, first, count, panel, slots, screened);
      AddPanel(pass, screened, count, slots_of(panel), h);
    }
    TanhNormFactors(pass.head, h, count, factor);
    for (int64_t i = 0; i < count; ++i) Finish(pass, first + i, factor[i], h + i * value_width, gate);
  }
}

void ForwardFloat(const ScreeningPass<float>& pass) {
  Forward(pass);
}
void ForwardDouble(const ScreeningPass<double>& pass) {
  Forward(pass);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(ForwardFloat);
HWY_EXPORT(ForwardDouble);

template <>
void screening_forward(const ScreeningPass<float>& pass) {
  HWY_DYNAMIC_DISPATCH(ForwardFloat)(pass);
}

template <>
void screening_forward(const ScreeningPass<double>& pass) {
  HWY_DYNAMIC_DISPATCH(ForwardDouble)(pass);
}

}  // namespace tamis::kernels
#endif

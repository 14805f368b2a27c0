#include "tamis/ops/screening/screening_token_kernel.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_token_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// Writes the token's key and value into the ring.
HWY_INLINE void PackToken(const ScreeningPass<float>& pass, const float* HWY_RESTRICT key) {
  const KeyRing<float>& ring = pass.ring;
  const int64_t K = pass.head.key_dim;
  const int64_t slot = pass.first % ring.capacity, lane = slot % kTileKeys;
  StoreKey(key, K, lane, ring.tiles + (slot - lane) * K);
  StoreValues(
      pass, 1, [&](int64_t) HWY_ATTR { return pass.first; }, Slots(pass.first, ring.capacity));
}

/// h = sum over the accepted keys of weight times value.                                       (12)
HWY_INLINE void SumAccepted(const ScreeningPass<float>& pass, const float* HWY_RESTRICT q, float* HWY_RESTRICT h) {
  const int64_t query = pass.first, first_key = FirstVisibleTile(pass, query);
  const Slots slots(first_key, pass.ring.capacity);
  float* const no_shortfall = nullptr;
  std::fill(h, h + padded(pass.head.value_dim), 0.0f);
  for (int64_t panel = first_key; panel <= query; panel += kPanelKeys) {
    HWY_ALIGN float weight[kPanelKeys];
    uint64_t accepted = 0;
    for (int64_t key = panel; key < std::min(panel + kPanelKeys, query + 1); key += kTileKeys) {
      const float* const tile[1] = {pass.ring.tiles + slots(key) * pass.head.key_dim};
      ScreenTiles<false, true, 1>(pass, q, query, tile, key, &accepted, key - panel, weight + key - panel,
                                  no_shortfall);
    }
    if (accepted != 0) AddAccepted(pass, accepted, weight, PanelSlots(slots, panel, pass.ring.capacity), h);
  }
}

void Token(const ScreeningPass<float>& pass) {
  const int64_t key_width = padded(pass.head.key_dim), value_width = padded(pass.head.value_dim);
  float* q = pass.scratch;
  float* k = q + key_width;
  float* h = k + key_width;
  float* gate = h + value_width;
  LoadRow(pass.q, 0, pass.head.key_dim, q);
  LoadRow(pass.k, 0, pass.head.key_dim, k);
  NormalizeRows(
      2, key_width, [&](int64_t i) HWY_ATTR { return q + i * key_width; }, [](int64_t, double) {});
  if (pass.head.mipe_step != 0) {
    const double angle = static_cast<double>(pass.first) * pass.head.mipe_step;
    const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    Turn(k, cosine, sine);
    Turn(q, cosine, sine);
  }
  PackToken(pass, k);
  SumAccepted(pass, q, h);
  HWY_ALIGN float factor[kBlockQueries];
  TanhNormFactors(pass.head, h, 1, factor);
  Finish(pass, pass.first, factor[0], h, gate);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(Token);

void screening_token(const ScreeningPass<float>& pass) {
  HWY_DYNAMIC_DISPATCH(Token)(pass);
}

}  // namespace tamis::kernels
#endif

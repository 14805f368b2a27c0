// The weights of entmax attention over a list of selected keys, and their derivative. Equations: README.md.

#include "tamis/ops/entmax_attention/entmax_attention_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/entmax_attention/entmax_attention_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/selection/selection_passes_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

enum class Wanted { kWeights, kSlopes };

/// p_j = u_j^e, Eq. (2), or g_j = u_j^(e - 1) = p_j^(2 - alpha), Eq. (4), of every score of a list. `out` may be
/// `score`.
template <Wanted kWanted, Entmax::Weights kWeights>
HWY_NOINLINE void PowersOfList(const Entmax& entmax, const SelectionStatistics& statistics, const float* score,
                               int64_t count, float* out) {
  constexpr bool kWide = kWeights == Entmax::Weights::kPower;  // e, which can be large, amplifies every error
  const std::conditional_t<kWide, WideTag, LaneTag<float>> d;
  const auto threshold = hn::Set(d, statistics.threshold);
  for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) {
    auto weight = hn::Zero(d), slope = hn::Zero(d);
    const auto u = hn::Sub(RelativeScores(d, score + i, statistics.largest), threshold);
    Powers<kWeights>(d, entmax, u, weight, slope);
    const auto wanted = kWanted == Wanted::kWeights ? weight : slope;
    if constexpr (kWide) {
      StoreWide(wanted, out + i);
    } else {
      hn::StoreU(wanted, d, out + i);
    }
  }
}

/// Both at alpha 1: p_j = g_j = exp(y_j - log sum exp(y)).
HWY_INLINE void ExponentialsOfList(const SelectionStatistics& statistics, const float* score, int64_t count,
                                   float* out) {
  const LaneTag<float> d;
  const auto threshold = hn::Set(d, statistics.threshold);
  for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) {
    const auto y = RelativeScores(d, score + i, statistics.largest);
    hn::StoreU(ExpOfNonPositive(d, hn::Sub(y, threshold)), d, out + i);
  }
}

template <Wanted kWanted>
HWY_INLINE void OfList(const Entmax& entmax, const SelectionStatistics& statistics, const float* score, int64_t count,
                       float* out) {
  switch (entmax.weights) {
    case Entmax::Weights::kExponential:
      return ExponentialsOfList(statistics, score, count, out);
    case Entmax::Weights::kPower:
      return PowersOfList<kWanted, Entmax::Weights::kPower>(entmax, statistics, score, count, out);
    case Entmax::Weights::kSquare:
      return PowersOfList<kWanted, Entmax::Weights::kSquare>(entmax, statistics, score, count, out);
    case Entmax::Weights::kLinear:
      return PowersOfList<kWanted, Entmax::Weights::kLinear>(entmax, statistics, score, count, out);
  }
}

struct EntmaxMechanism {
  HWY_INLINE int64_t Weights(const Entmax& entmax, const SelectionStatistics& statistics, const float* score,
                             int64_t count, float* weight) const {
    OfList<Wanted::kWeights>(entmax, statistics, score, count, weight);
    return count;
  }

  /// Eq. (4), of (alpha - 1) z.
  HWY_INLINE void Gradients(const Entmax& entmax, const SelectionStatistics& statistics, float* score, const float*,
                            int64_t count, float* gradient) const {
    const WideTag d;  // both terms of the difference below can be far larger than it
    float* slope = score;
    OfList<Wanted::kSlopes>(entmax, statistics, score, count, slope);
    std::fill_n(slope + count, kLanes, 0.0f);
    std::fill_n(gradient + count, kLanes, 0.0f);
    auto slopes = hn::Zero(d), products = hn::Zero(d);
    for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) {
      const auto g = LoadWide(slope + i);
      slopes = hn::Add(slopes, g);
      products = hn::MulAdd(g, LoadWide(gradient + i), products);
    }
    const auto mean = hn::Div(hn::SumOfLanes(d, products), hn::SumOfLanes(d, slopes));
    const auto per_score = hn::Set(d, 1 / entmax.score_scale);
    for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) {
      const auto g = hn::Mul(LoadWide(slope + i), per_score);
      StoreWide(hn::Mul(g, hn::Sub(LoadWide(gradient + i), mean)), gradient + i);
    }
  }
};

void EntmaxForward(const SelectionForward& work) {
  SelectionForwardPass(EntmaxMechanism(), work);
}

void EntmaxBackward(const SelectionBackward& work) {
  SelectionBackwardPass(EntmaxMechanism(), work);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(EntmaxForward);
HWY_EXPORT(EntmaxBackward);

void entmax_forward(const SelectionForward& work) {
  HWY_DYNAMIC_DISPATCH(EntmaxForward)(work);
}

void entmax_backward(const SelectionBackward& work) {
  HWY_DYNAMIC_DISPATCH(EntmaxBackward)(work);
}

}  // namespace tamis::kernels
#endif

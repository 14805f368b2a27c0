// The threshold of alpha-entmax over a list of scores. Included once per instruction set.
//
// x_j = (alpha - 1) z_j are the scores, y_j = x_j - largest, u_j = y_j - tau. On the support p_j = u_j^e with
// e = 1 / (alpha - 1); tau is where sum_j max(u_j, 0)^e = 1. Everything relative to the largest score.

#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(TAMIS_OPS_SELECTION_SELECTION_THRESHOLD_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SELECTION_SELECTION_THRESHOLD_KERNEL_INL_H_
#undef TAMIS_OPS_SELECTION_SELECTION_THRESHOLD_KERNEL_INL_H_
#else
#define TAMIS_OPS_SELECTION_SELECTION_THRESHOLD_KERNEL_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "tamis/kernels/math-inl.h"
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// alpha, and what follows from it.
struct Entmax {
  enum class Weights { kExponential, kPower, kSquare, kLinear };  // alpha 1, others, 1.5, 2

  double alpha;
  double exponent;     // e; not used at alpha 1
  double score_scale;  // x = score_scale z: alpha - 1, and 1 at alpha 1
  Weights weights;

  explicit Entmax(double alpha_in)
      : alpha(alpha_in),
        exponent(alpha > 1 ? 1 / (alpha - 1) : 1),
        score_scale(alpha > 1 ? alpha - 1 : 1),
        weights(alpha == 1     ? Weights::kExponential
                : alpha == 1.5 ? Weights::kSquare
                : alpha == 2   ? Weights::kLinear
                               : Weights::kPower) {}

  bool selects_all() const { return weights == Weights::kExponential; }

  /// y above which a key is selected.
  float bound(float tau) const { return selects_all() ? -HUGE_VALF : tau; }
};

template <class D>
using IsWide = std::bool_constant<sizeof(hn::TFromD<D>) == 8>;

/// y of the scores at `score`, rounded to float32 as in every comparison.
template <class D>
HWY_INLINE hn::Vec<D> RelativeScores(D d, const float* score, float largest) {
  const hn::Rebind<float, D> narrow;
  const auto y = hn::Sub(hn::LoadU(narrow, score), hn::Set(narrow, largest));
  if constexpr (IsWide<D>::value) {
    return hn::PromoteTo(d, y);
  } else {
    return y;
  }
}

/// u^e and u^(e - 1), both 0 where u <= 0. A NaN stays NaN.
template <Entmax::Weights kWeights, class D, class V>
HWY_INLINE void Powers(D d, const Entmax& entmax, V u, V& weight, V& slope) {
  const auto selected = hn::Not(hn::Le(u, hn::Zero(d)));
  if constexpr (kWeights == Entmax::Weights::kLinear) {
    weight = u;
    slope = hn::IfThenElse(hn::IsNaN(u), u, hn::Set(d, hn::TFromD<D>{1}));
  } else if constexpr (kWeights == Entmax::Weights::kSquare) {
    weight = hn::Mul(u, u);
    slope = u;
  } else {
    // u <= 1 up to rounding, by at most an ulp.
    const auto exponent = hn::Set(d, static_cast<hn::TFromD<D>>(entmax.exponent));
    const auto logarithm = hn::Min(hn::Log(d, hn::IfThenElse(selected, u, hn::Set(d, hn::TFromD<D>{1}))), hn::Zero(d));
    weight = hn::IfThenElse(hn::IsNaN(u), u, ExpOfNonPositive(d, hn::Mul(exponent, logarithm)));
    slope = hn::Div(weight, u);
  }
  weight = hn::IfThenElseZero(selected, weight);
  slope = hn::IfThenElseZero(selected, slope);
}

/// Scores of one query, followed by kLanes times -infinity (PadScores), whose weights are 0.
struct ScoreList {
  const float* score;
  int64_t count;
};

HWY_INLINE void PadScores(float* score, int64_t count) {
  const LaneTag<float> d;
  for (int64_t i = 0; i < kLanes; i += hn::MaxLanes(d)) hn::StoreU(hn::Set(d, -HUGE_VALF), d, score + count + i);
}

HWY_INLINE float Largest(const ScoreList& list) {
  const LaneTag<float> d;
  auto largest = hn::Set(d, -HUGE_VALF);
  for (int64_t i = 0; i < list.count; i += hn::MaxLanes(d)) largest = hn::Max(hn::LoadU(d, list.score + i), largest);
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

struct PowerSums {
  double weights, slopes;  // sum u^e, sum u^(e - 1) over u > 0
};

template <Entmax::Weights kWeights, class D>
HWY_INLINE PowerSums SumOfPowers(D d, const Entmax& entmax, const ScoreList& list, float largest, double tau) {
  const auto threshold = hn::Set(d, static_cast<hn::TFromD<D>>(tau));
  auto weights = hn::Zero(d), slopes = hn::Zero(d);
  for (int64_t i = 0; i < list.count; i += hn::MaxLanes(d)) {
    auto weight = hn::Zero(d), slope = hn::Zero(d);
    Powers<kWeights>(d, entmax, hn::Sub(RelativeScores(d, list.score + i, largest), threshold), weight, slope);
    weights = hn::Add(weights, weight);
    slopes = hn::Add(slopes, slope);
  }
  return {hn::GetLane(hn::SumOfLanes(d, weights)), hn::GetLane(hn::SumOfLanes(d, slopes))};
}

/// One step of Newton's method for tau. It is applied to h(tau) = (sum u^e)^(1/e) - 1, which is convex (the norm of
/// convex functions) and nearly a line: steps from the left of the root stay left of it, and a few suffice.
template <Entmax::Weights kWeights>
HWY_INLINE double NewtonStep(const Entmax& entmax, const PowerSums& sums) {
  if constexpr (kWeights == Entmax::Weights::kLinear) return (sums.weights - 1) / sums.slopes;
  const double power =
      kWeights == Entmax::Weights::kSquare ? std::sqrt(sums.weights) : std::pow(sums.weights, 2 - entmax.alpha);
  return (sums.weights - power) / sums.slopes;
}

/// Moves tau from the left of the root towards it until a step is at most `tolerance`.
template <Entmax::Weights kWeights, class D>
HWY_INLINE double Newton(D d, const Entmax& entmax, const ScoreList& list, float largest, double tau,
                         double tolerance) {
  constexpr int kMostSteps = 60;  // at most 12 were seen; a NaN takes all
  for (int step = 0; step < kMostSteps; ++step) {
    const double move = NewtonStep<kWeights>(entmax, SumOfPowers<kWeights>(d, entmax, list, largest, tau));
    tau += move;
    if (std::abs(move) <= tolerance) break;
  }
  return tau;
}

/// log sum exp(y), the threshold at alpha 1.
HWY_INLINE double LogSumOfExponentials(const ScoreList& list, float largest) {
  const WideTag d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < list.count; i += hn::MaxLanes(d)) {
    sum = hn::Add(sum, ExpOfNonPositive(d, RelativeScores(d, list.score + i, largest)));
  }
  return std::log(hn::GetLane(hn::SumOfLanes(d, sum)));
}

enum class Precision { kRough, kFull };

/// tau from a start on its left. Rough: to a few hundredths, on its left up to RoughError. Full: as precise as the
/// scores, with sums in float64.
template <Entmax::Weights kWeights>
HWY_NOINLINE double SolveThreshold(const Entmax& entmax, const ScoreList& list, float largest, double start,
                                   Precision precision) {
  const LaneTag<float> narrow;
  if (precision == Precision::kRough) return Newton<kWeights>(narrow, entmax, list, largest, start, 0.03);
  const double near = Newton<kWeights>(narrow, entmax, list, largest, start, 1e-3);
  return Newton<kWeights>(WideTag(), entmax, list, largest, near, 1e-10);
}

HWY_INLINE double Threshold(const Entmax& entmax, const ScoreList& list, float largest, double start,
                            Precision precision) {
  switch (entmax.weights) {
    case Entmax::Weights::kExponential:
      return LogSumOfExponentials(list, largest);
    case Entmax::Weights::kPower:
      return SolveThreshold<Entmax::Weights::kPower>(entmax, list, largest, start, precision);
    case Entmax::Weights::kSquare:
      return SolveThreshold<Entmax::Weights::kSquare>(entmax, list, largest, start, precision);
    case Entmax::Weights::kLinear:
      return SolveThreshold<Entmax::Weights::kLinear>(entmax, list, largest, start, precision);
  }
  return 0;
}

/// An upper bound of the rounding error of a rough threshold and of a score relative to the largest one.
HWY_INLINE float RoughError(const Entmax& entmax, float largest) {
  return static_cast<float>(2e-6 * (1 + entmax.exponent)) + 5e-7f * std::abs(largest);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

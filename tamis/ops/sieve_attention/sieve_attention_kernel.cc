// Stick-breaking over a list of selected keys, the newest first, and its derivative. Equations: README.md.

#include "tamis/ops/sieve_attention/sieve_attention_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/sieve_attention/sieve_attention_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/selection/selection_passes_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// log sigmoid(z) and softplus(z) = -log sigmoid(-z), without cancellation on either side. A NaN stays one.
template <class D, class V>
HWY_INLINE void LogSigmoids(D d, V z, V& log_sigmoid, V& softplus) {
  const auto zero = hn::Zero(d);
  const auto small = hn::Log1p(d, ExpOfNonPositive(d, hn::Neg(hn::Abs(z))));
  const auto below = hn::IfThenElse(hn::IsNaN(z), z, small);
  softplus = hn::Add(hn::Max(z, zero), below);
  log_sigmoid = hn::Sub(hn::Min(z, zero), below);
}

struct SieveMechanism {
  static constexpr int64_t kPiece = 64;       // keys of a list that are processed together
  static constexpr double kNothingLeft = 88;  // of the stick: its logarithm is below -88, its exponential 0 in float32

  /// log a_j = log sigmoid(z_j) - sum of softplus(z_l) over the newer keys l of the list. Keys after the end of the
  /// stick have the weight 0 and are left out.
  HWY_NOINLINE int64_t Weights(const Entmax& entmax, const SelectionStatistics&, const float* score, int64_t count,
                               float* weight) const {
    const LaneTag<float> d;
    const auto per_score = hn::Set(d, static_cast<float>(1 / entmax.score_scale));
    HWY_ALIGN float softplus[kPiece];
    double broken = 0;  // minus the logarithm of what is left of the stick
    for (int64_t first = 0; first < count; first += kPiece) {
      const int64_t keys = std::min(kPiece, count - first);
      for (int64_t i = 0; i < keys; i += hn::MaxLanes(d)) {
        auto log_sigmoid = hn::Zero(d), breaks = hn::Zero(d);
        LogSigmoids(d, hn::Mul(hn::LoadU(d, score + first + i), per_score), log_sigmoid, breaks);
        hn::StoreU(log_sigmoid, d, weight + first + i);
        hn::Store(breaks, d, softplus + i);
      }
      for (int64_t i = 0; i < keys; ++i) {
        weight[first + i] -= static_cast<float>(broken);
        broken += softplus[i];
      }
      for (int64_t i = 0; i < keys; i += hn::MaxLanes(d)) {
        float* at = weight + first + i;
        hn::StoreU(ExpOfNonPositive(d, hn::LoadU(d, at)), d, at);
      }
      if (broken > kNothingLeft) return first + keys;
    }
    return count;
  }

  /// dz_j = a_j da_j sigmoid(-z_j) - sigmoid(z_j) * sum of a_l da_l over the older keys l of the list, Eq. (5); of
  /// (alpha - 1) z.
  HWY_NOINLINE void Gradients(const Entmax& entmax, const SelectionStatistics&, const float* score, const float* weight,
                              int64_t count, float* gradient) const {
    const LaneTag<float> d;
    const auto per_score = hn::Set(d, static_cast<float>(1 / entmax.score_scale));
    HWY_ALIGN float own[kPiece], older[kPiece];  // a_j da_j, and the sum over the older keys
    double sum = 0;
    for (int64_t first = (count - 1) / kPiece * kPiece; first >= 0; first -= kPiece) {
      const int64_t keys = std::min(kPiece, count - first);
      for (int64_t i = 0; i < keys; i += hn::MaxLanes(d)) {
        hn::Store(hn::Mul(hn::LoadU(d, weight + first + i), hn::LoadU(d, gradient + first + i)), d, own + i);
      }
      for (int64_t i = keys - 1; i >= 0; --i) {
        older[i] = static_cast<float>(sum);
        sum += own[i];
      }
      for (int64_t i = 0; i < keys; i += hn::MaxLanes(d)) {
        const auto z = hn::Mul(hn::LoadU(d, score + first + i), per_score);
        SizedVec<LaneTag<float>> sigmoids[2] = {z, hn::Neg(z)};
        Sigmoid(d, sigmoids);
        const auto taken = hn::Mul(sigmoids[0], hn::Load(d, older + i));
        const auto dz = hn::MulSub(hn::Load(d, own + i), sigmoids[1], taken);
        hn::StoreU(hn::Mul(dz, per_score), d, gradient + first + i);
      }
    }
  }
};

void SieveForward(const SelectionForward& work) {
  SelectionForwardPass(SieveMechanism(), work);
}

void SieveBackward(const SelectionBackward& work) {
  SelectionBackwardPass(SieveMechanism(), work);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(SieveForward);
HWY_EXPORT(SieveBackward);

void sieve_forward(const SelectionForward& work) {
  HWY_DYNAMIC_DISPATCH(SieveForward)(work);
}

void sieve_backward(const SelectionBackward& work) {
  HWY_DYNAMIC_DISPATCH(SieveBackward)(work);
}

}  // namespace tamis::kernels
#endif

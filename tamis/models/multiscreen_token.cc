#include "tamis/models/multiscreen_token.h"

#include <algorithm>

#include "tamis/kernels/matvec.h"
#include "tamis/models/token_pass.h"
#include "tamis/ops/team.h"

namespace tamis::models {
namespace {

using kernels::padded;
using kernels::WeightRows;

/// Memory of one thread, and where in it what stands.
struct ShareScratch {
  float* prepared;   // prepared_vectors(D or H V, B)
  float* projected;  // [B][2 K + 2 V]: q, k, v and gate of one head
  float* product;    // [B][kItemRows]
  float* screening;
};

/// Decoding one token of B sequences. D, H, K, V as in multiscreen.h.
class TokenPass {
 public:
  TokenPass(const MultiscreenConfig& config, std::span<MultiscreenState* const> states, float* x_BD)
      : states_(states),
        weights_(*states.front()->weights()),
        x_BD_(x_BD),
        shares_(ops::team_slices(config.num_attention_heads)),
        B_(static_cast<int64_t>(states.size())),
        D_(config.hidden_size),
        H_(config.num_attention_heads),
        K_(config.key_dim),
        V_(config.value_dim),
        gate_(config.gate) {
    share_floats_ = padded(prepared_floats()) + padded(B_ * head_rows()) + padded(B_ * kItemRows) +
                    padded(ops::ScreeningState::head_scratch(K_, V_));
  }

  int64_t scratch_numbers() const { return padded(B_ * H_ * V_) + shares_ * share_floats_; }

  /// `scratch`: scratch_numbers() of them, aligned for vectors.
  void run(float* scratch) {
    u_BHV_ = scratch;
    ops::parallel_team(shares_, [&](ops::TeamWorker& member) { run(member); });
  }

 private:
  void run(ops::TeamWorker& member) const {
    const ShareScratch scratch = scratch_of(member.slice());
    for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
      member.phase([&](int64_t share) { return first_head(layer, share); }, [&] { prepare_input(layer, scratch); },
                   [&](int64_t head) { screen_head(layer, head, scratch); });
      member.phase([&](int64_t share) { return row_items(D_) * share / shares_; },
                   [&] { prepare_output(layer, scratch); }, [&](int64_t item) { add_output(layer, item, scratch); });
    }
  }

  int64_t head_rows() const { return 2 * K_ + (gate_ ? 2 : 1) * V_; }
  int64_t prepared_floats() const { return kernels::prepared_vectors(std::max(D_, H_ * V_), B_); }

  ShareScratch scratch_of(int64_t share) const {
    ShareScratch scratch;
    scratch.prepared = u_BHV_ + padded(B_ * H_ * V_) + share * share_floats_;
    scratch.projected = scratch.prepared + padded(prepared_floats());
    scratch.product = scratch.projected + padded(B_ * head_rows());
    scratch.screening = scratch.product + padded(B_ * kItemRows);
    return scratch;
  }

  /// About the nanoseconds of a head: its weights from memory, its keys from the cache.
  double head_cost(size_t layer, int64_t head) const {
    constexpr double kBytesPerNanosecond = 20, kStep = 250, kKey = 0.5;
    double cost = static_cast<double>(weights_.layers[layer].projection.bytes() / H_) / kBytesPerNanosecond;
    for (MultiscreenState* state : states_) {
      cost += kStep + kKey * static_cast<double>(state->layer(layer).visible_keys(head));
    }
    return cost;
  }

  /// First head of a share: heads stay in order, and each share costs about the same.
  int64_t first_head(size_t layer, int64_t share) const {
    if (share == 0) return 0;
    if (share == shares_) return H_;
    double total = 0;
    for (int64_t h = 0; h < H_; ++h) total += head_cost(layer, h);
    const double limit = total * static_cast<double>(share) / static_cast<double>(shares_);
    double before = 0;
    int64_t head = 0;
    for (; head < H_; ++head) {
      const double cost = head_cost(layer, head);
      if (before + cost / 2 > limit) break;
      before += cost;
    }
    return head;
  }

  void prepare_input(size_t layer, const ShareScratch& scratch) const {
    kernels::prepare_vectors(weights_.layers[layer].projection.rows()->format, D_, x_BD_, D_, B_, scratch.prepared);
  }

  void prepare_output(size_t layer, const ShareScratch& scratch) const {
    const int64_t columns = H_ * V_;
    kernels::prepare_vectors(weights_.layers[layer].output.rows()->format, columns, u_BHV_, columns, B_,
                             scratch.prepared);
  }

  /// u * tanh(SiLU(g)) of one head, for every sequence.                                       (15)-(18)
  void screen_head(size_t layer, int64_t head, const ShareScratch& scratch) const {
    const WeightRows weights = *weights_.layers[layer].projection.rows();
    const int64_t row = head * head_rows();
    kernels::multiply_rows(weights, row, row + head_rows(), scratch.prepared, B_, scratch.projected, head_rows());
    for (int64_t b = 0; b < B_; ++b) {
      float* q = scratch.projected + b * head_rows();
      float *k = q + K_, *v = k + K_;
      states_[b]->layer(layer).step_head(head, {q, k, v, gate_ ? v + V_ : nullptr, u_BHV_ + (b * H_ + head) * V_},
                                         scratch.screening);
    }
  }

  /// x += W_O u for the rows of an item.                                                      (2)
  void add_output(size_t layer, int64_t item, const ShareScratch& scratch) const {
    add_item(*weights_.layers[layer].output.rows(), item, scratch.prepared, B_, D_, scratch.product, x_BD_);
  }

  std::span<MultiscreenState* const> states_;
  const MultiscreenWeights& weights_;
  float* x_BD_;
  int64_t shares_, B_, D_, H_, K_, V_;
  bool gate_;
  int64_t share_floats_;
  float* u_BHV_ = nullptr;
};

}  // namespace

bool token_by_token(const MultiscreenWeights& weights) {
  return std::ranges::all_of(weights.layers, [](const DecodingTile& tile) {
    return tile.projection.rows().has_value() && tile.output.rows().has_value();
  });
}

void decode_token(const MultiscreenConfig& config, std::span<MultiscreenState* const> states, float* x_BD) {
  for (MultiscreenState* state : states) state->reserve(1);
  const kernels::WeightFormat format = states.front()->weights()->layers.front().projection.rows()->format;
  pass_in_groups(format, states, x_BD, config.hidden_size,
                 [&](std::span<MultiscreenState* const> group, float* x) { return TokenPass(config, group, x); });
  for (MultiscreenState* state : states) state->advance();
}

}  // namespace tamis::models

#include "tamis/models/stack_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tamis/kernels/matvec.h"
#include "tamis/models/stack_state.h"
#include "tamis/models/token_pass.h"
#include "tamis/nn/norm.h"
#include "tamis/ops/team.h"

namespace tamis::models {
namespace {

using kernels::padded;
using kernels::WeightRows;

/// Memory of one thread, and where in it what stands.
struct ShareScratch {
  float* normalised;  // [B][D]
  float* prepared;    // prepared_vectors(most columns, B)
  float* products;    // [B][most rows of an item]
};

float gelu(float x) {
  return 0.5f * x * (1 + std::erf(x * static_cast<float>(M_SQRT1_2)));
}

float silu(float x) {
  return x / (1 + std::exp(-x));
}

/// Decoding one token of B sequences. D, F as in stack.h.
class TokenPass {
 public:
  TokenPass(const StackConfig& config, std::span<const DecodingLayer> layers, std::span<StackState* const> states,
            float* x_BD)
      : layers_(layers),
        states_(states),
        x_BD_(x_BD),
        B_(static_cast<int64_t>(states.size())),
        D_(config.hidden_size),
        F_(config.intermediate_size),
        eps_(config.norm_eps),
        gated_(config.mlp != "gelu") {
    int64_t heads = 0;
    for (const DecodingLayer& layer : layers) {
      heads = std::max(heads, heads_of(layer));
      mixed_ = std::max(mixed_, mixed_width(layer));
      most_rows_ = std::max(most_rows_, layer.form->head_rows());
    }
    shares_ = ops::team_slices(std::max({heads, row_items(D_), row_items(F_)}));
    most_columns_ = std::max({D_, F_, mixed_});
    share_floats_ = padded(B_ * D_) + padded(kernels::prepared_vectors(most_columns_, B_)) + padded(B_ * most_rows_);
  }

  int64_t scratch_numbers() const { return padded(between_numbers()) + shares_ * share_floats_; }

  void run(float* scratch) {
    between_ = scratch;
    ops::parallel_team(shares_, [&](ops::TeamWorker& member) { run(member); });
  }

 private:
  void run(ops::TeamWorker& member) const {
    const ShareScratch scratch = scratch_of(member.slice());
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const DecodingLayer& of = layers_[layer];
      const WeightRows first = own_rows(of, of.form->heads[0][0].matrix);
      phase(
          member, heads_of(of), [&] { prepare_normalised(of.mixer_norm, first.format, scratch); },
          [&](int64_t head) { mix_head(layer, head, scratch); });
      add_product(member, own_rows(of, of.form->output), mixed_width(of), scratch);
      phase(
          member, row_items(F_), [&] { prepare_normalised(of.mlp_norm, of.mlp[0].rows()->format, scratch); },
          [&](int64_t item) { inner_rows(of, item * kItemRows, scratch); });
      add_product(member, *of.mlp[1].rows(), F_, scratch);
    }
  }

  static WeightRows own_rows(const DecodingLayer& layer, size_t matrix) { return *layer.own[matrix]->rows(); }
  static int64_t heads_of(const DecodingLayer& layer) { return static_cast<int64_t>(layer.form->heads.size()); }
  static int64_t mixed_width(const DecodingLayer& layer) { return heads_of(layer) * layer.form->head_out; }

  int64_t between_numbers() const { return B_ * std::max(mixed_, F_); }

  ShareScratch scratch_of(int64_t share) const {
    ShareScratch scratch;
    scratch.normalised = between_ + padded(between_numbers()) + share * share_floats_;
    scratch.prepared = scratch.normalised + padded(B_ * D_);
    scratch.products = scratch.prepared + padded(kernels::prepared_vectors(most_columns_, B_));
    return scratch;
  }

  /// Items in equal shares.
  template <typename Prepare, typename Work>
  void phase(ops::TeamWorker& member, int64_t count, const Prepare& prepare, const Work& work) const {
    member.phase([&](int64_t share) { return count * share / shares_; }, prepare, work);
  }

  /// RMSNorm of the residual stream, as the input of a product.
  void prepare_normalised(const at::Tensor& weight, kernels::WeightFormat format, const ShareScratch& scratch) const {
    for (int64_t b = 0; b < B_; ++b) {
      nn::rms_norm_row(x_BD_ + b * D_, weight.const_data_ptr<float>(), D_, eps_, scratch.normalised + b * D_);
    }
    kernels::prepare_vectors(format, D_, scratch.normalised, D_, B_, scratch.prepared);
  }

  void mix_head(size_t layer, int64_t head, const ShareScratch& scratch) const {
    const DecodingLayer& of = layers_[layer];
    const int64_t rows = of.form->head_rows(), width = mixed_width(of), out = of.form->head_out;
    int64_t at = 0;
    for (const MatrixRows& part : of.form->heads[head]) {
      kernels::multiply_rows(own_rows(of, part.matrix), part.first, part.last, scratch.prepared, B_,
                             scratch.products + at, rows);
      at += part.last - part.first;
    }
    for (int64_t b = 0; b < B_; ++b) {
      of.mixer->step_head(head, of.call, states_[b]->layer(layer), scratch.products + b * rows,
                          between_ + b * width + head * out);
    }
  }

  /// Act(gate) * up of rows of the MLP, or act(up) without a gate.
  void inner_rows(const DecodingLayer& of, int64_t first, const ShareScratch& scratch) const {
    const int64_t last = std::min(F_, first + kItemRows), count = last - first;
    float* const gate = scratch.products;
    float* const up = gate + (gated_ ? count : 0);
    const int64_t stride = (gated_ ? 2 : 1) * count, up_at = gated_ ? F_ : 0;
    const WeightRows rows = *of.mlp[0].rows();
    if (gated_) kernels::multiply_rows(rows, first, last, scratch.prepared, B_, gate, stride);
    kernels::multiply_rows(rows, up_at + first, up_at + last, scratch.prepared, B_, up, stride);
    for (int64_t b = 0; b < B_; ++b) {
      float* const inner = between_ + b * F_ + first;
      for (int64_t f = 0; f < count; ++f) {
        const float x = up[b * stride + f];
        inner[f] = gated_ ? silu(gate[b * stride + f]) * x : gelu(x);
      }
    }
  }

  /// x += W y, y of `columns` numbers a sequence from the phase before.
  void add_product(ops::TeamWorker& member, const WeightRows& weights, int64_t columns,
                   const ShareScratch& scratch) const {
    phase(
        member, row_items(D_),
        [&] { kernels::prepare_vectors(weights.format, columns, between_, columns, B_, scratch.prepared); },
        [&](int64_t item) { add_item(weights, item, scratch.prepared, B_, D_, scratch.products, x_BD_); });
  }

  std::span<const DecodingLayer> layers_;
  std::span<StackState* const> states_;
  float* x_BD_;
  int64_t B_, D_, F_;
  double eps_;
  bool gated_;
  int64_t mixed_ = 0;                  // most numbers that the heads of a layer give
  int64_t most_rows_ = 2 * kItemRows;  // of a head, or of an item of a product
  int64_t most_columns_ = 0;
  int64_t shares_ = 1;
  int64_t share_floats_;
  float* between_ = nullptr;  // what one phase leaves to the next: [B][heads' numbers], then [B][F]
};

}  // namespace

void decode_token(const StackConfig& config, std::span<const DecodingLayer> layers, std::span<StackState* const> states,
                  float* x_BD) {
  for (StackState* state : states) state->begin(1);
  const kernels::WeightFormat format = layers.front().mlp[0].rows()->format;
  pass_in_groups(format, states, x_BD, config.hidden_size,
                 [&](std::span<StackState* const> group, float* x) { return TokenPass(config, layers, group, x); });
  for (StackState* state : states) state->end_token();
}

}  // namespace tamis::models

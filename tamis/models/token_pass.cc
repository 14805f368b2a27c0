#include "tamis/models/token_pass.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tamis/kernels/matvec.h"
#include "tamis/nn/activation.h"
#include "tamis/nn/norm.h"
#include "tamis/ops/team.h"

namespace tamis::models {
namespace {

using kernels::padded;
using kernels::WeightRows;

/// Rows of a product that a thread takes at a time.
constexpr int64_t kItemRows = 32;

constexpr int64_t row_items(int64_t rows) {
  return (rows + kItemRows - 1) / kItemRows;
}

/// Scratch memory of one thread.
struct ThreadScratch {
  float* normalised;  // [B][D]
  float* prepared;    // prepared_vectors(most columns, B)
  float* products;    // [B][most rows of an item]
};

/// Decoding one token of B sequences. D hidden size, F inner width of the MLP, H heads of a layer, R rows of a head.
class TokenPass {
 public:
  TokenPass(std::span<SequenceState* const> states, float* x_BD)
      : weights_(*states.front()->weights()),
        states_(states),
        x_BD_(x_BD),
        B_(static_cast<int64_t>(states.size())),
        D_(weights_.hidden_size) {
    int64_t most_items = row_items(D_);
    for (const DecodingLayer& layer : weights_.layers) {
      most_items = std::max({most_items, layer.heads, row_items(inner_width(layer))});
      between_width_ = std::max({between_width_, layer.mixed_width(), inner_width(layer)});
      most_rows_ = std::max(most_rows_, layer.rows_of_head());
    }
    threads_ = ops::team_slices(most_items);
    thread_numbers_ = padded(B_ * D_) + padded(prepared_numbers()) + padded(B_ * most_rows_);
  }

  int64_t scratch_numbers() const { return padded(B_ * between_width_) + threads_ * thread_numbers_; }

  /// `scratch`: scratch_numbers() of them, aligned for vectors.
  void run(float* scratch) {
    between_ = scratch;
    ops::parallel_team(threads_, [&](ops::TeamWorker& worker) { run(worker); });
  }

 private:
  void run(ops::TeamWorker& worker) const {
    const ThreadScratch scratch = scratch_of(worker.slice());
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      const DecodingLayer& layer = weights_.layers[l];
      worker.phase([&](int64_t slice) { return first_head(l, slice); },
                   [&] { prepare_input(layer.vectors.mixer_norm, *layer.head_rows.rows(), scratch); },
                   [&](int64_t head) { step_head(l, head, scratch); });
      add_product(worker, *layer.output.rows(), scratch);
      if (!layer.mlp) continue;
      worker.phase([&](int64_t slice) { return row_items(inner_width(layer)) * slice / threads_; },
                   [&] { prepare_input(layer.vectors.mlp_norm, *layer.mlp->gate_up.rows(), scratch); },
                   [&](int64_t item) { inner_rows(layer, item * kItemRows, scratch); });
      add_product(worker, *layer.mlp->down.rows(), scratch);
    }
  }

  static int64_t inner_width(const DecodingLayer& layer) { return layer.mlp ? layer.mlp->down.column_count() : 0; }
  int64_t prepared_numbers() const { return kernels::prepared_vectors(std::max(D_, between_width_), B_); }

  ThreadScratch scratch_of(int64_t thread) const {
    ThreadScratch scratch;
    scratch.normalised = between_ + padded(B_ * between_width_) + thread * thread_numbers_;
    scratch.prepared = scratch.normalised + padded(B_ * D_);
    scratch.products = scratch.prepared + padded(prepared_numbers());
    return scratch;
  }

  /// About the nanoseconds of a head: its weights come from memory, its keys from the cache.
  double head_cost(size_t l, int64_t head) const {
    constexpr double kBytesPerNanosecond = 20;
    const DecodingLayer& layer = weights_.layers[l];
    double cost = static_cast<double>(layer.head_rows.bytes() / layer.heads) / kBytesPerNanosecond;
    for (const SequenceState* state : states_) cost += layer.layer->mixer().step_cost(head, state->layer(l));
    return cost;
  }

  /// The first head of a thread's slice: heads stay in order, and every slice costs about the same.
  int64_t first_head(size_t l, int64_t slice) const {
    const int64_t heads = weights_.layers[l].heads;
    if (slice == 0) return 0;
    if (slice == threads_) return heads;
    double total = 0;
    for (int64_t h = 0; h < heads; ++h) total += head_cost(l, h);
    const double limit = total * static_cast<double>(slice) / static_cast<double>(threads_);
    double before = 0;
    int64_t head = 0;
    for (; head < heads; ++head) {
      const double cost = head_cost(l, head);
      if (before + cost / 2 > limit) break;
      before += cost;
    }
    return head;
  }

  /// The residual stream, after its norm if there is one, as the input of a product.
  void prepare_input(const at::Tensor& norm, const WeightRows& weights, const ThreadScratch& scratch) const {
    const float* input = x_BD_;
    if (norm.defined()) {
      for (int64_t b = 0; b < B_; ++b) {
        nn::rms_norm_row(x_BD_ + b * D_, norm.const_data_ptr<float>(), D_, weights_.norm_eps,
                         scratch.normalised + b * D_);
      }
      input = scratch.normalised;
    }
    kernels::prepare_vectors(weights.format, D_, input, D_, B_, scratch.prepared);
  }

  /// One head of the mixer, for every sequence.
  void step_head(size_t l, int64_t head, const ThreadScratch& scratch) const {
    const DecodingLayer& layer = weights_.layers[l];
    const int64_t R = layer.rows_of_head(), width = layer.mixed_width(), V = width / layer.heads;
    kernels::multiply_rows(*layer.head_rows.rows(), head * R, (head + 1) * R, scratch.prepared, B_, scratch.products,
                           R);
    for (int64_t b = 0; b < B_; ++b) {
      (*layer.step)(head, states_[b]->layer(l), scratch.products + b * R, between_ + b * width + head * V);
    }
  }

  /// SiLU(gate) * up for rows of the MLP from `first` on, or GELU(up) without a gate.
  void inner_rows(const DecodingLayer& layer, int64_t first, const ThreadScratch& scratch) const {
    const int64_t F = inner_width(layer), last = std::min(F, first + kItemRows), count = last - first;
    const bool gated = layer.mlp->gate_up.row_count() > F;
    float* const gate = scratch.products;
    float* const up = gate + (gated ? count : 0);
    const int64_t stride = (gated ? 2 : 1) * count, up_at = gated ? F : 0;
    const WeightRows rows = *layer.mlp->gate_up.rows();
    if (gated) kernels::multiply_rows(rows, first, last, scratch.prepared, B_, gate, stride);
    kernels::multiply_rows(rows, up_at + first, up_at + last, scratch.prepared, B_, up, stride);
    for (int64_t b = 0; b < B_; ++b) {
      float* const inner = between_ + b * F + first;
      for (int64_t f = 0; f < count; ++f) {
        const float x = up[b * stride + f];
        inner[f] = gated ? nn::silu(gate[b * stride + f]) * x : nn::gelu(x);
      }
    }
  }

  /// x += W y, where y are the numbers that the phase before left.
  void add_product(ops::TeamWorker& worker, const WeightRows& weights, const ThreadScratch& scratch) const {
    worker.phase([&](int64_t slice) { return row_items(D_) * slice / threads_; },
                 [&] {
                   kernels::prepare_vectors(weights.format, weights.columns, between_, weights.columns, B_,
                                            scratch.prepared);
                 },
                 [&](int64_t item) { add_rows(weights, item * kItemRows, scratch); });
  }

  void add_rows(const WeightRows& weights, int64_t first, const ThreadScratch& scratch) const {
    const int64_t last = std::min(D_, first + kItemRows);
    kernels::multiply_rows(weights, first, last, scratch.prepared, B_, scratch.products, kItemRows);
    for (int64_t b = 0; b < B_; ++b) {
      for (int64_t row = first; row < last; ++row) {
        x_BD_[b * D_ + row] += scratch.products[b * kItemRows + row - first];
      }
    }
  }

  const DecodingWeights& weights_;
  std::span<SequenceState* const> states_;
  float* x_BD_;
  int64_t B_, D_;
  int64_t most_rows_ = 2 * kItemRows;  // of a head, or of an item of a product
  int64_t between_width_ = 0;          // most numbers that a phase leaves to the next, for each sequence
  int64_t threads_ = 1;
  int64_t thread_numbers_ = 0;
  float* between_ = nullptr;  // what a phase leaves to the next: [B][H V], then [B][F]
};

}  // namespace

void decode_token(std::span<SequenceState* const> states, float* x_BD) {
  for (SequenceState* state : states) state->begin(1);
  // In groups of as many states as are fastest together; the first is the largest, and all use its scratch memory.
  const DecodingWeights& weights = *states.front()->weights();
  const auto together = static_cast<size_t>(kernels::vectors_together(weights.layers.front().head_rows.rows()->format));
  float* scratch = nullptr;
  for (size_t b = 0; b < states.size(); b += together) {
    const auto group = states.subspan(b, std::min(together, states.size() - b));
    TokenPass pass(group, x_BD + static_cast<int64_t>(b) * weights.hidden_size);
    if (scratch == nullptr) scratch = states.front()->scratch(pass.scratch_numbers());
    pass.run(scratch);
  }
  for (SequenceState* state : states) state->end_token();
}

}  // namespace tamis::models

#pragma once

// Shared by the forms of the fused vocabulary head: how the work is cut, and the statistics of the rows of a tile.
// Letters: T tokens, D width, N vocabulary, R rows (tokens) of a tile, C vocabulary rows of a block, B blocks.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_cpu.h"
#include "tamis/ops/parallel.h"

namespace tamis::ops {

/// The vocabulary cut into blocks of C rows, and runs of blocks into groups, the work items of the threads: a
/// function of the shapes only.
struct VocabularyBlocks {
  static constexpr int64_t kMinEntries = 64, kMaxGroups = 16;

  int64_t vocabulary;
  int64_t entries;  // C of every block but the last
  int64_t blocks;
  int64_t groups;

  /// Blocks of at most `max_entries`, and small enough for every group to have one.
  VocabularyBlocks(int64_t vocabulary, int64_t max_entries) : vocabulary(vocabulary) {
    const int64_t even = round_up(divide_up(vocabulary, kMaxGroups), kMinEntries);
    entries = std::min({std::max(max_entries / kMinEntries * kMinEntries, kMinEntries), even, vocabulary});
    blocks = divide_up(vocabulary, entries);
    groups = std::min(blocks, kMaxGroups);
  }

  int64_t first_block(int64_t group) const { return group * blocks / groups; }
  int64_t first_entry(int64_t block) const { return block * entries; }
  int64_t size(int64_t block) const { return std::min(entries, vocabulary - first_entry(block)); }
};

/// The tokens that are not ignored, and their targets.
struct CountedTokens {
  at::Tensor token_T;
  std::vector<int64_t> target_T;

  int64_t size() const { return static_cast<int64_t>(target_T.size()); }
};

/// The rows of the current tile: the statistics of their blocks, and what follows for the gradient.
template <typename Real>
class TileRows {
 public:
  TileRows(const HeadPass& pass, const CountedTokens& tokens, const VocabularyBlocks& blocks, int64_t capacity)
      : target_logit_R(capacity),
        maximum_R(capacity),
        scale_R(capacity),
        gradient_R(capacity),
        pass_(pass),
        tokens_(tokens),
        blocks_(blocks),
        capacity_(capacity),
        maximum_BR_(blocks.blocks * capacity),
        sum_BR_(blocks.blocks * capacity) {}

  void start(int64_t first, int64_t rows) {
    first_ = first;
    rows_ = rows;
  }
  bool first_tile() const { return first_ == 0; }
  bool last_tile() const { return first_ + rows_ == tokens_.size(); }
  int64_t rows() const { return rows_; }
  at::Tensor token_R() const { return tokens_.token_T.narrow(0, first_, rows_); }

  Real* maximum_R_of(int64_t block) { return &maximum_BR_[block * capacity_]; }
  Real* sum_R_of(int64_t block) { return &sum_BR_[block * capacity_]; }

  /// Calls work(row, entry of the block) for the rows whose target is in the block.
  template <typename Work>
  void for_targets(int64_t block, const Work& work) const {
    const int64_t first_entry = blocks_.first_entry(block), entries = blocks_.size(block);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t entry = tokens_.target_T[first_ + r] - first_entry;
      if (entry >= 0 && entry < entries) work(r, entry);
    }
  }

  /// Combines the statistics of all blocks.
  void finish(const at::Tensor& loss_T) {
    constexpr int64_t kRowsOfItem = 32;
    double* loss = loss_T.data_ptr<double>();
    parallel_items(divide_up(rows_, kRowsOfItem), [&](int64_t item) {
      const int64_t last = std::min(rows_, (item + 1) * kRowsOfItem);
      for (int64_t r = item * kRowsOfItem; r < last; ++r) finish_row(r, loss);
    });
  }

  std::vector<Real> target_logit_R;  // written by the blocks
  std::vector<Real> maximum_R, scale_R,
      gradient_R;  // known after finish(): p = exp(z - maximum) scale - gradient [target]

 private:
  /// loss = log sum_n exp(z_n) - z_target, blocks in order, in float64.
  void finish_row(int64_t r, double* loss_T) {
    double maximum = -INFINITY, sum = 0;
    for (int64_t b = 0; b < blocks_.blocks; ++b) {
      maximum = std::max<double>(maximum, maximum_BR_[b * capacity_ + r]);
    }
    for (int64_t b = 0; b < blocks_.blocks; ++b) {
      sum += sum_BR_[b * capacity_ + r] * std::exp(maximum_BR_[b * capacity_ + r] - maximum);
    }
    const int64_t token = tokens_.token_T.data_ptr<int64_t>()[first_ + r];
    loss_T[token] = std::log(sum) + (maximum - target_logit_R[r]);
    if (!pass_.loss_gradient_T.defined()) return;
    const double gradient = pass_.loss_gradient_T.data_ptr<double>()[token];
    gradient_R[r] = static_cast<Real>(gradient);
    scale_R[r] = static_cast<Real>(gradient / sum);
    maximum_R[r] = static_cast<Real>(maximum);
  }

  const HeadPass& pass_;
  const CountedTokens& tokens_;
  const VocabularyBlocks& blocks_;
  int64_t capacity_;
  std::vector<Real> maximum_BR_, sum_BR_;
  int64_t first_ = 0, rows_ = 0;
};

}  // namespace tamis::ops

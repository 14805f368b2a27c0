// The fused vocabulary head in bfloat16: products of bfloat16 numbers summed in float32, as the loss needs them, from
// oneDNN's batch-reduced GEMM, as LibTorch exposes it. Its right operand has pairs of rows interleaved (`pairs` below).
// For this, and for softmax statistics without sums across lanes, logits are transposed, entries by tokens:
//
//   for every tile   for every group    of the tile before, as soon as its losses are known:
//                                         P_CR = E times the row's factor, target replaced
//                                         dW_CD += P_CR x_RD;  dx_DR of the group += W_DC P_CR
//                                       Z_CR = W_CD x_DR;  maximum, sum of exp, E = exp(Z - maximum) of the block
//                    for every row      logsumexp, loss, scale
//                    dx_RD of the tile before = sum over groups, in order
//
// E and P are bfloat16; Z exists for one block only. Letters: T tokens, D width, N vocabulary, R rows of a tile, C
// entries of a block, G groups.

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_bfloat16.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tamis/base/instruction_set.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_bfloat16_kernel.h"
#include "tamis/ops/onednn_linear.h"

namespace tamis::ops {

#if defined(CPUBLAS_BRGEMM_BF16BF16F32) && defined(__x86_64__)

namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t kBytes = 62'000'000;        // of everything below
constexpr int64_t kMinRowBytes = 24'000'000;  // of which the rows of a tile get at least this much
constexpr int64_t kMaxRows = 512;             // dx_DR of a group and the pairs of x stay near the second-level cache
constexpr int64_t kBFloat16BlockBytes = 64 << 10;
constexpr int64_t kMaxWords = 256;

/// C_MN = A_MK B_KN, or C += A B.
struct Product {
  int64_t m, n, k;
  bool add = false;

  void operator()(const BFloat16* a, const BFloat16* b_pairs, float* c) const {
    check_onednn_memory();
    at::native::cpublas::brgemm(m, n, k, k, n, n, add, a, b_pairs, c);
  }
};

uint16_t* bits(BFloat16* numbers) {
  return reinterpret_cast<uint16_t*>(numbers);
}
uint16_t* bits(const Tensor& tensor) {
  return bits(tensor.data_ptr<BFloat16>());
}

/// [K, N] as [K / 2, N, 2].
Tensor pairs(const Tensor& matrix) {
  return matrix.reshape({matrix.size(0) / 2, 2, matrix.size(1)}).transpose(1, 2).contiguous();
}

/// R, a function of the shapes only: tiles of the same number of rows, as many as the bytes hold.
int64_t rows_of_tile(int64_t tokens, const VocabularyBlocks& blocks, int64_t width, bool weight_gradient) {
  const int64_t entries_at_work = blocks.groups * blocks.entries;
  const int64_t sums = 4 * (blocks.groups + 2) * width, logits = 8 * entries_at_work;  // dx_DR, x; Z, P twice
  const int64_t row_bytes = 2 * blocks.vocabulary + 16 * blocks.blocks + sums + logits;
  const auto rows_in = [&](int64_t bytes) {
    const int64_t rows = bytes / row_bytes / kernels::kTokenMultiple * kernels::kTokenMultiple;
    return std::clamp(rows, kernels::kTokenMultiple, kMaxRows);
  };
  const int64_t bytes = kBytes - 6 * entries_at_work * width;  // W_DC, sums of dW
  int64_t rows = rows_in(std::max(bytes, kMinRowBytes));
  if (tokens > rows && weight_gradient) {
    rows = rows_in(std::max(bytes - blocks.vocabulary * width, kMinRowBytes));  // lower bits of dW
  }
  const int64_t tiles = std::max<int64_t>(divide_up(tokens, rows), 1);
  return round_up(divide_up(tokens, tiles), kernels::kTokenMultiple);
}

/// Rows of x and their statistics.
struct Tile {
  TileRows<float> rows;
  int64_t padded = 0;                             // rows with those of zeros
  Tensor pairs_of_x_DR = {}, pairs_of_x_RD = {};  // x as the right operand of logits and of dW
};

/// Memory of one group besides the tiles.
struct Scratch {
  Tensor logits_CR, p_CR, pairs_of_p_CR, weight_DC, sum_CD;
};

class BFloat16Head {
 public:
  BFloat16Head(const HeadPass& pass, const CountedTokens& tokens)
      : pass_(pass),
        tokens_(tokens),
        width_(pass.weight_ND.size(1)),
        gradients_(pass.loss_gradient_T.defined()),
        blocks_(pass.weight_ND.size(0), std::min(kBFloat16BlockBytes / (2 * width_), kMaxWords)),
        capacity_(rows_of_tile(tokens.size(), blocks_, width_, pass.options.weight_gradient)),
        tiles_{{.rows = {pass, tokens, blocks_, capacity_}}, {.rows = {pass, tokens, blocks_, capacity_}}} {
    if (gradients_) exp_NR_ = numbers(blocks_.vocabulary * capacity_);
    if (pass.options.x_gradient) partial_GDR_ = floats(blocks_.groups * width_ * capacity_);
  }

  HeadPassResult run() {
    result_.loss_T = at::zeros({pass_.x_TD.size(0)}, pass_.x_TD.options().dtype(at::kDouble));
    if (pass_.options.x_gradient) result_.x_TD = at::zeros(pass_.x_TD.sizes(), pass_.x_TD.options());
    if (pass_.options.weight_gradient)
      result_.weight_ND = at::empty(pass_.weight_ND.sizes(), pass_.weight_ND.options());
    if (pass_.options.weight_gradient && tokens_.size() == 0) result_.weight_ND.zero_();
    if (pass_.options.weight_gradient && tokens_.size() > capacity_) {
      lower_ND_ = at::empty(pass_.weight_ND.sizes(), pass_.weight_ND.options().dtype(at::kByte));
    }
    Tile* done = nullptr;  // its logits are known
    for (int64_t first = 0; first < tokens_.size(); first += capacity_) {
      Tile& tile = tiles_[done == &tiles_[0] ? 1 : 0];
      load(tile, first);
      pass_over_vocabulary(done, &tile);
      tile.rows.finish(result_.loss_T);
      if (gradients_) done = &tile;
    }
    if (done != nullptr) pass_over_vocabulary(done, nullptr);
    return result_;
  }

 private:
  Tensor numbers(int64_t size) const { return at::empty({size}, pass_.x_TD.options()); }
  Tensor floats(int64_t size) const { return at::empty({size}, pass_.x_TD.options().dtype(at::kFloat)); }

  /// Entries of a block as the inner dimension of a product: whole pairs.
  int64_t padded_entries(int64_t block) const { return round_up(blocks_.size(block), 2); }
  /// The E of a block, in the same memory for every tile.
  uint16_t* exp_CR(int64_t block) const { return bits(exp_NR_) + blocks_.first_entry(block) * capacity_; }
  float* partial_DR(int64_t group) const { return partial_GDR_.data_ptr<float>() + group * width_ * capacity_; }

  /// Rows are padded so that batches of all sizes share the kernels that oneDNN compiles, one for every shape.
  void load(Tile& tile, int64_t first) {
    tile.rows.start(first, std::min(capacity_, tokens_.size() - first));
    tile.padded = round_up(tile.rows.rows(), kernels::kTokenMultiple);
    const Tensor x_RD = at::zeros({tile.padded, width_}, pass_.x_TD.options());
    x_RD.narrow(0, 0, tile.rows.rows()).copy_(pass_.x_TD.index_select(0, tile.rows.token_R()));
    tile.pairs_of_x_DR = pairs(x_RD.t());
    if (pass_.options.weight_gradient) tile.pairs_of_x_RD = pairs(x_RD);
  }

  /// The gradients of the tile `done`, if any, and the logits of the tile `next`, if any: a block of W is read once for
  /// both, and the E of the next tile overwrites that of the tile `done`.
  void pass_over_vocabulary(Tile* done, Tile* next) {
    parallel_gemms(blocks_.groups, [&](int64_t group) {
      const Scratch scratch = make_scratch(done, next);
      for (int64_t block = blocks_.first_block(group); block < blocks_.first_block(group + 1); ++block) {
        const Tensor weight_CD =
            pass_.weight_ND.narrow(0, blocks_.first_entry(block), blocks_.size(block)).contiguous();
        if (done != nullptr) differentiate(*done, group, block, weight_CD, scratch);
        if (next != nullptr) compute_logits(*next, block, weight_CD, scratch.logits_CR);
      }
      at::native::cpublas::brgemm_release();
    });
    if (done != nullptr && pass_.options.x_gradient) {
      result_.x_TD.index_copy_(0, done->rows.token_R(), x_gradient(*done));
    }
  }

  Scratch make_scratch(const Tile* done, const Tile* next) const {
    const int64_t entries = round_up(blocks_.entries, 2);
    Scratch scratch;
    if (next != nullptr) scratch.logits_CR = floats(entries * next->padded);
    if (done == nullptr) return scratch;
    scratch.p_CR = numbers(entries * done->padded);
    scratch.pairs_of_p_CR = numbers(entries * done->padded);
    if (pass_.options.x_gradient) scratch.weight_DC = numbers(width_ * entries);
    if (pass_.options.weight_gradient) scratch.sum_CD = floats(entries * width_);
    return scratch;
  }

  void compute_logits(Tile& tile, int64_t block, const Tensor& weight_CD, const Tensor& logits_CR) {
    const Product product{.m = blocks_.size(block), .n = tile.padded, .k = width_};
    float* z_CR = logits_CR.data_ptr<float>();
    product(weight_CD.data_ptr<BFloat16>(), tile.pairs_of_x_DR.data_ptr<BFloat16>(), z_CR);
    tile.rows.for_targets(
        block, [&](int64_t r, int64_t entry) { tile.rows.target_logit_R[r] = z_CR[entry * tile.padded + r]; });
    kernels::exp_of_columns({blocks_.size(block), tile.padded}, z_CR, tile.rows.maximum_R_of(block),
                            tile.rows.sum_R_of(block), gradients_ ? exp_CR(block) : nullptr);
  }

  void differentiate(Tile& tile, int64_t group, int64_t block, const Tensor& weight_CD, const Scratch& scratch) {
    softmax_gradient(tile, block, scratch.p_CR.data_ptr<BFloat16>(), scratch.pairs_of_p_CR.data_ptr<BFloat16>());
    if (pass_.options.weight_gradient) add_to_weight_gradient(tile, block, scratch);
    if (!pass_.options.x_gradient) return;
    kernels::transpose(bits(weight_CD), blocks_.size(block), width_, padded_entries(block), bits(scratch.weight_DC));
    const bool add = block != blocks_.first_block(group);
    const Product product{.m = width_, .n = tile.padded, .k = padded_entries(block), .add = add};
    product(scratch.weight_DC.data_ptr<BFloat16>(), scratch.pairs_of_p_CR.data_ptr<BFloat16>(), partial_DR(group));
  }

  /// P of a block, as rows and as pairs of rows. At the target the difference is taken before it is rounded.
  void softmax_gradient(Tile& tile, int64_t block, BFloat16* p_CR, BFloat16* pairs_CR) const {
    const TileRows<float>& rows = tile.rows;
    std::vector<float> factor_R(tile.padded);  // turns the block's E into P; 0 for rows of padding
    for (int64_t r = 0; r < rows.rows(); ++r) {
      factor_R[r] = rows.scale_R[r] * std::exp(tile.rows.maximum_R_of(block)[r] - rows.maximum_R[r]);
    }
    kernels::scale_columns({blocks_.size(block), tile.padded}, exp_CR(block), factor_R.data(), padded_entries(block),
                           bits(p_CR), bits(pairs_CR));
    rows.for_targets(block, [&](int64_t r, int64_t entry) {
      const float softmax = std::exp(rows.target_logit_R[r] - rows.maximum_R[r]) * rows.scale_R[r];
      const BFloat16 p(softmax - rows.gradient_R[r]);
      p_CR[entry * tile.padded + r] = p;
      pairs_CR[(entry / 2 * tile.padded + r) * 2 + entry % 2] = p;
    });
  }

  /// dW of a block is summed over the tiles in 24 bits, the upper 16 of them in the memory of the result.
  void add_to_weight_gradient(const Tile& tile, int64_t block, const Scratch& scratch) const {
    const bool first = tile.rows.first_tile();
    const int64_t size = blocks_.size(block) * width_, offset = blocks_.first_entry(block) * width_;
    uint16_t* upper = bits(result_.weight_ND) + offset;
    uint8_t* lower = lower_ND_.defined() ? lower_ND_.data_ptr<uint8_t>() + offset : nullptr;
    float* sum_CD = scratch.sum_CD.data_ptr<float>();
    if (!first) kernels::join_sum(upper, lower, size, sum_CD);
    const Product product{.m = blocks_.size(block), .n = width_, .k = tile.padded, .add = !first};
    product(scratch.p_CR.data_ptr<BFloat16>(), tile.pairs_of_x_RD.data_ptr<BFloat16>(), sum_CD);
    if (tile.rows.last_tile()) {
      kernels::round_to_bfloat16(sum_CD, size, upper);
    } else {
      kernels::split_sum(sum_CD, size, upper, lower);
    }
  }

  Tensor x_gradient(const Tile& tile) const {
    const auto partial = [&](int64_t group) {
      return partial_GDR_.narrow(0, group * width_ * capacity_, width_ * tile.padded).view({width_, tile.padded});
    };
    Tensor sum_DR = partial(0);
    for (int64_t group = 1; group < blocks_.groups; ++group) sum_DR.add_(partial(group));
    return sum_DR.narrow(1, 0, tile.rows.rows()).t().to(at::kBFloat16);
  }

  const HeadPass& pass_;
  const CountedTokens& tokens_;
  int64_t width_;
  bool gradients_;
  VocabularyBlocks blocks_;
  int64_t capacity_;  // R of every tile but the last
  Tile tiles_[2];
  Tensor exp_NR_, partial_GDR_, lower_ND_;
  HeadPassResult result_;
};

/// A small product shows whether LibTorch has these products and the machine supports them.
bool multiplies_bfloat16() {
  if (instruction_set() < InstructionSet::kAvx512Bf16) return false;  // elsewhere they are emulated or slow
  try {
    const Tensor ones = at::ones({16 * 16}, at::kBFloat16), sum = at::zeros({16 * 16}, at::kFloat);
    const Product product{.m = 16, .n = 16, .k = 16};
    product(ones.data_ptr<BFloat16>(), ones.data_ptr<BFloat16>(), sum.data_ptr<float>());
    at::native::cpublas::brgemm_release();
    return (sum == 16).all().item().toBool();
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

bool has_bfloat16_products(int64_t width) {
  if (width == 0 || width % 2 != 0 || !at::globalContext().userEnabledMkldnn()) return false;
  static const bool available = multiplies_bfloat16();
  return available;
}

HeadPassResult run_bfloat16_head(const HeadPass& pass, const CountedTokens& tokens) {
  return BFloat16Head(pass, tokens).run();
}

#else

bool has_bfloat16_products(int64_t) {
  return false;
}
HeadPassResult run_bfloat16_head(const HeadPass&, const CountedTokens&) {
  TORCH_INTERNAL_ASSERT(false, "there are no bfloat16 products here");
}

#endif

}  // namespace tamis::ops

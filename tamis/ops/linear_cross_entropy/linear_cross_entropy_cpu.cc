// The fused vocabulary head on CPU. Rows of x are taken in tiles of R tokens whose logits, R x N, fit the budget. The
// vocabulary is cut into blocks of C rows, and runs of blocks into groups, the units of work of the threads:
//
//   for every tile   for every group    Z_RC = x_RD W_CD^T, capped; maximum and sum of exp per row and block
//                    for every row      logsumexp, loss, scale
//                    for every group    P_RC = softmax times the row's gradient, minus it at the target; times the
//                                       slope of the cap
//                                       dW_CD += P_RC^T x_RD;  dx_RD of the group += P_RC W_CD
//                    dx_RD = sum over groups, in order
//
// Every GEMM runs on one thread and all shapes follow from T, N and D alone, so the bits do not depend on the number
// of threads. Letters: T tokens, D width, N vocabulary, R rows of a tile, C columns of a block.

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tamis/ops/linear.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_bfloat16.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_kernel.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_tiles.h"
#include "tamis/ops/matmul_backend.h"

namespace tamis::ops {
namespace {

using at::Tensor;

constexpr int64_t kTileBytes = 58'000'000;      // of everything below
constexpr int64_t kWeightBlockBytes = 1 << 20;  // a block of W stays in the second-level cache
constexpr int64_t kRowMultiple = 16;

/// How the work is cut: a function of the shapes and the matmul backend.
struct Tiling {
  VocabularyBlocks blocks;
  int64_t rows;  // R of every tile but the last

  /// `apart`: products are computed apart, one in every group at a time, and then copied: smaller blocks.
  Tiling(int64_t tokens, int64_t vocabulary, int64_t width, int64_t element_bytes, bool apart)
      : blocks(vocabulary, std::min<int64_t>(kWeightBlockBytes / (element_bytes * std::max<int64_t>(width, 1)),
                                             apart ? 512 : 1024)) {
    // Logits, statistics, partial sums and x; then a block's logits or dX of each group, and its dW.
    const int64_t elements = kTileBytes / element_bytes;
    int64_t row_elements = vocabulary + 2 * blocks.blocks + (blocks.groups + 2) * width;
    int64_t apart_elements = 0;
    if (apart) {
      row_elements += blocks.groups * std::max(blocks.entries, width);
      apart_elements = std::min(blocks.groups * blocks.entries * width, elements / 2);
      rows = kMaxRowsApart;
    } else {
      rows = tokens;
    }
    rows = std::min(rows, std::max<int64_t>((elements - apart_elements) / row_elements, 1));
    if (rows > kRowMultiple) rows = rows / kRowMultiple * kRowMultiple;
    rows = std::min(rows, tokens);
  }

 private:
  static constexpr int64_t kMaxRowsApart = 512;  // a longer sum would be computed in chunks, with memory for another
};

/// All in Real, the precision of x or, for bfloat16, float32.
template <typename Real>
class Head {
 public:
  Head(const HeadPass& pass, const CountedTokens& tokens)
      : pass_(pass),
        tokens_(tokens),
        vocabulary_(pass.weight_ND.size(0)),
        width_(pass.weight_ND.size(1)),
        gradients_(pass.loss_gradient_T.defined()),
        real_(c10::CppTypeToScalarType<Real>::value),
        tiling_(tokens.size(), vocabulary_, width_, sizeof(Real), matmul_backend(real_) == MatmulBackend::kOneDnn),
        blocks_(tiling_.blocks),
        rows_(pass, tokens, blocks_, tiling_.rows) {
    const auto real = pass.x_TD.options().dtype(real_);
    if (gradients_) logits_ = at::empty({tiling_.rows * vocabulary_}, real);
    if (pass.options.x_gradient) partial_GRD_ = at::empty({blocks_.groups, tiling_.rows, width_}, real);
  }

  HeadPassResult run() {
    HeadPassResult result;
    result.loss_T = at::zeros({pass_.x_TD.size(0)}, pass_.x_TD.options().dtype(at::kDouble));
    if (pass_.options.x_gradient) result.x_TD = at::zeros(pass_.x_TD.sizes(), pass_.x_TD.options());
    if (pass_.options.weight_gradient) {
      // Summed over tiles in the precision of the GEMMs, rounded to storage once.
      weight_gradient_ND_ = tokens_.size() == 0
                                ? at::zeros({vocabulary_, width_}, pass_.weight_ND.options())
                                : at::empty({vocabulary_, width_}, pass_.weight_ND.options().dtype(real_));
    }
    for (int64_t first = 0; first < tokens_.size(); first += rows_.rows()) {
      rows_.start(first, std::min(tiling_.rows, tokens_.size() - first));
      x_RD_ = pass_.x_TD.index_select(0, rows_.token_R()).to(real_);
      parallel_gemms(blocks_.groups, [this](int64_t group) { logits_group(group); });
      rows_.finish(result.loss_T);
      if (!gradients_) continue;
      parallel_gemms(blocks_.groups, [this](int64_t group) { differentiate_group(group); });
      if (pass_.options.x_gradient) {
        result.x_TD.index_copy_(0, rows_.token_R(), sum_of_groups().to(pass_.x_TD.scalar_type()));
      }
    }
    if (pass_.options.weight_gradient) result.weight_ND = weight_gradient_ND_.to(pass_.weight_ND.scalar_type());
    return result;
  }

 private:
  Tensor entries_of(const Tensor& matrix_ND, int64_t block) const {
    return matrix_ND.narrow(0, blocks_.first_entry(block), blocks_.size(block));
  }
  Tensor weight(int64_t block) const { return entries_of(pass_.weight_ND, block).to(real_); }
  /// Blocks of logits are stored one after the other, each a dense matrix.
  Tensor logits(int64_t block) const { return dense(logits_, blocks_.first_entry(block) * rows_.rows(), block); }
  Tensor dense(const Tensor& memory, int64_t offset, int64_t block) const {
    return memory.narrow(0, offset, rows_.rows() * blocks_.size(block)).view({rows_.rows(), blocks_.size(block)});
  }
  static kernels::LogitBlock<Real> raw(const Tensor& z) {
    return {z.data_ptr<Real>(), z.size(0), z.size(1), z.size(1)};
  }

  void logits_group(int64_t group) {
    Tensor scratch;
    if (!gradients_) scratch = at::empty({rows_.rows() * blocks_.entries}, x_RD_.options());
    for (int64_t block = blocks_.first_block(group); block < blocks_.first_block(group + 1); ++block) {
      Tensor z = gradients_ ? logits(block) : dense(scratch, 0, block);
      linear_into(z, Into::kReplace, x_RD_, weight(block));
      if (pass_.options.soft_cap) kernels::soft_cap(raw(z), cap());
      kernels::softmax_statistics(raw(z), rows_.maximum_R_of(block), rows_.sum_R_of(block));
      const Real* data = z.data_ptr<Real>();
      rows_.for_targets(
          block, [&](int64_t r, int64_t entry) { rows_.target_logit_R[r] = data[r * blocks_.size(block) + entry]; });
    }
  }

  Real cap() const { return static_cast<Real>(*pass_.options.soft_cap); }
  /// d z / d y of a logit z = c tanh(y / c).
  Real slope(Real z) const { return pass_.options.soft_cap ? (cap() - z) * (cap() + z) / (cap() * cap()) : Real{1}; }

  void differentiate_group(int64_t group) {
    const int64_t first = blocks_.first_block(group);
    for (int64_t block = first; block < blocks_.first_block(group + 1); ++block) {
      const Tensor p = logits(block);
      if (pass_.options.soft_cap) {
        kernels::scaled_softmax_of_capped(raw(p), rows_.maximum_R.data(), rows_.scale_R.data(), cap());
      } else {
        kernels::scaled_softmax(raw(p), rows_.maximum_R.data(), rows_.scale_R.data());
      }
      Real* data = p.data_ptr<Real>();
      rows_.for_targets(block, [&](int64_t r, int64_t entry) {
        data[r * blocks_.size(block) + entry] -= rows_.gradient_R[r] * slope(rows_.target_logit_R[r]);
      });
      if (pass_.options.weight_gradient) {
        linear_weight_gradient_into(entries_of(weight_gradient_ND_, block),
                                    rows_.first_tile() ? Into::kReplace : Into::kAdd, p, x_RD_);
      }
      if (pass_.options.x_gradient)
        linear_input_gradient_into(partial_RD(group), block == first ? Into::kReplace : Into::kAdd, p, weight(block));
    }
  }

  Tensor partial_RD(int64_t group) const { return partial_GRD_.select(0, group).narrow(0, 0, rows_.rows()); }
  Tensor sum_of_groups() const {
    Tensor sum = partial_RD(0);
    for (int64_t group = 1; group < blocks_.groups; ++group) sum.add_(partial_RD(group));
    return sum;
  }

  const HeadPass& pass_;
  const CountedTokens& tokens_;
  int64_t vocabulary_, width_;
  bool gradients_;
  at::ScalarType real_;
  Tiling tiling_;
  const VocabularyBlocks& blocks_;
  TileRows<Real> rows_;

  Tensor logits_, partial_GRD_, weight_gradient_ND_;
  Tensor x_RD_;  // of the current tile
};

CountedTokens counted_tokens(const HeadPass& pass) {
  const int64_t vocabulary = pass.weight_ND.size(0);
  const Tensor target_T = pass.target_T.contiguous();
  std::vector<int64_t> token, target;
  for (int64_t t = 0; t < target_T.numel(); ++t) {
    const int64_t target_of_token = target_T.data_ptr<int64_t>()[t];
    if (target_of_token == pass.options.ignore_index) continue;
    TORCH_CHECK_INDEX(target_of_token >= 0 && target_of_token < vocabulary, "linear_cross_entropy: target ", t,
                      " must be in [0, ", vocabulary, "), the rows of weight, or ignore_index ",
                      pass.options.ignore_index, ", but is ", target_of_token);
    token.push_back(t);
    target.push_back(target_of_token);
  }
  return {at::tensor(token, at::kLong), std::move(target)};
}

}  // namespace

HeadPassResult run_head_pass(const HeadPass& pass) {
  const CountedTokens tokens = counted_tokens(pass);
  if (pass.x_TD.scalar_type() == at::kDouble) return Head<double>(pass, tokens).run();
  if (pass.x_TD.scalar_type() == at::kBFloat16 && !pass.options.soft_cap &&
      has_bfloat16_products(pass.weight_ND.size(1))) {
    return run_bfloat16_head(pass, tokens);
  }
  return Head<float>(pass, tokens).run();
}

}  // namespace tamis::ops

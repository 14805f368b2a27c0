// The fused vocabulary head on CPU. Rows of x are taken in tiles of R tokens whose logits, R x N, fit the budget. The
// vocabulary is cut into blocks of C words, and runs of blocks into groups, the units of work of the threads:
//
//   for every tile   for every group    Z_RC = x_RD W_CD^T; maximum and sum of exp per row and block
//                    for every row      logsumexp, loss, scale
//                    for every group    P_RC = softmax times the row's gradient, minus it at the target
//                                       dW_CD += P_RC^T x_RD;  dx_RD of the group += P_RC W_CD
//                    dx_RD = sum over groups, in order
//
// Every GEMM runs on one thread and all shapes follow from T, N and D alone, so the bits do not depend on the number
// of threads. Letters: T tokens, D width, N vocabulary, R rows of a tile, C columns of a block.

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_kernel.h"
#include "tamis/ops/parallel.h"

namespace tamis::ops {
namespace {

using at::Tensor;

constexpr int64_t kTileBytes = 48 << 20;        // logits, statistics and partial sums of a tile
constexpr int64_t kWeightBlockBytes = 1 << 20;  // a block of W stays in the second-level cache
constexpr int64_t kMaxColumns = 1024, kMinColumns = 64;
constexpr int64_t kGroups = 16;
constexpr int64_t kRowMultiple = 16;

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// How the work is cut: a function of the shapes only.
struct Tiling {
  int64_t columns;  // C of every block but the last
  int64_t blocks;
  int64_t groups;
  int64_t rows;  // R of every tile but the last

  Tiling(int64_t tokens, int64_t vocabulary, int64_t width, int64_t element_bytes) {
    const int64_t cached = kWeightBlockBytes / (element_bytes * std::max<int64_t>(width, 1));
    const int64_t even = divide_up(divide_up(vocabulary, kGroups), kMinColumns) * kMinColumns;
    columns = std::min({std::clamp(cached / kMinColumns * kMinColumns, kMinColumns, kMaxColumns), even, vocabulary});
    blocks = divide_up(vocabulary, columns);
    groups = std::min(blocks, kGroups);
    const int64_t row_elements = vocabulary + 2 * blocks + (groups + 2) * width;
    rows = std::max<int64_t>(kTileBytes / (element_bytes * row_elements), 1);
    if (rows > kRowMultiple) rows = rows / kRowMultiple * kRowMultiple;
    rows = std::min(rows, tokens);
  }

  int64_t first_block(int64_t group) const { return group * blocks / groups; }
};

/// Runs `work(item)` on ATen's threads, and every GEMM in it on the thread that calls it. ATen would run a single item
/// outside of a parallel region, where the BLAS takes all threads and its bits depend on their number: hence two.
template <typename Work>
void parallel_gemms(int64_t items, const Work& work) {
  parallel_items(std::max<int64_t>(items, 2), [&](int64_t item) {
    if (item >= items) return;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // not inherited by other threads
    work(item);
  });
}

/// The dtype of the gradients' GEMMs. The logits decide the loss, so bfloat16 storage gets them in float32; its
/// gradients are rounded to bfloat16 anyway and may use the machine's bfloat16 arithmetic.
at::ScalarType gradient_gemm_dtype(at::ScalarType storage) {
  if (storage != at::kBFloat16) return storage;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return at::kBFloat16;
#endif
  return at::kFloat;  // where bfloat16 arithmetic is emulated, float32 is faster
}

/// sum += a b, or sum = a b; the product may be of a narrower dtype and have more rows, zeros.
void add_product(Tensor sum, const Tensor& a, const Tensor& b, bool first) {
  if (a.scalar_type() == sum.scalar_type()) {
    sum.addmm_(a, b, /*beta=*/first ? 0 : 1);
  } else if (first) {
    sum.copy_(at::mm(a, b).narrow(0, 0, sum.size(0)));
  } else {
    sum.add_(at::mm(a, b).narrow(0, 0, sum.size(0)));
  }
}

template <typename Real>
class Head {
 public:
  Head(const HeadPass& pass, const Tensor& token_T, std::vector<int64_t> target_T)
      : pass_(pass),
        token_T_(token_T),
        target_T_(std::move(target_T)),
        vocabulary_(pass.weight_ND.size(0)),
        width_(pass.weight_ND.size(1)),
        gradients_(pass.loss_gradient_T.defined()),
        real_(c10::CppTypeToScalarType<Real>::value),
        narrow_(gradient_gemm_dtype(pass.x_TD.scalar_type())),
        tiling_(static_cast<int64_t>(target_T_.size()), vocabulary_, width_, sizeof(Real)) {
    const auto real = pass.x_TD.options().dtype(real_);
    if (gradients_) logits_ = at::empty({tiling_.rows * vocabulary_}, real);
    if (pass.x_gradient) partial_GRD_ = at::empty({tiling_.groups, tiling_.rows, width_}, real);
    maximum_BR_.resize(tiling_.blocks * tiling_.rows);
    sum_BR_.resize(tiling_.blocks * tiling_.rows);
    target_logit_R_.resize(tiling_.rows);
    maximum_R_.resize(tiling_.rows);
    scale_R_.resize(tiling_.rows);
    gradient_R_.resize(tiling_.rows);
  }

  HeadPassResult run() {
    HeadPassResult result;
    result.loss_T = at::zeros({pass_.x_TD.size(0)}, pass_.x_TD.options().dtype(at::kDouble));
    if (pass_.x_gradient) result.x_TD = at::zeros(pass_.x_TD.sizes(), pass_.x_TD.options());
    const int64_t tokens = static_cast<int64_t>(target_T_.size());
    if (pass_.weight_gradient) {
      // Summed over tiles in the precision of the GEMMs, rounded to storage once.
      weight_gradient_ND_ = tokens == 0 ? at::zeros({vocabulary_, width_}, pass_.weight_ND.options())
                                        : at::empty({vocabulary_, width_}, pass_.weight_ND.options().dtype(real_));
    }
    for (first_ = 0; first_ < tokens; first_ += rows_) {
      rows_ = std::min(tiling_.rows, tokens - first_);
      const Tensor token_R = token_T_.narrow(0, first_, rows_);
      x_RD_ = pass_.x_TD.index_select(0, token_R).to(real_);
      narrow_x_RD_ = narrowed(x_RD_);
      parallel_gemms(tiling_.groups, [this](int64_t group) { logits_group(group); });
      finish_rows(token_R, result.loss_T);
      if (!gradients_) continue;
      parallel_gemms(tiling_.groups, [this](int64_t group) { differentiate_group(group); });
      if (pass_.x_gradient) result.x_TD.index_copy_(0, token_R, sum_of_groups().to(pass_.x_TD.scalar_type()));
    }
    if (pass_.weight_gradient) result.weight_ND = weight_gradient_ND_.to(pass_.weight_ND.scalar_type());
    return result;
  }

 private:
  int64_t columns(int64_t block) const { return std::min(tiling_.columns, vocabulary_ - block * tiling_.columns); }
  Tensor weight(int64_t block, at::ScalarType dtype) const {
    return pass_.weight_ND.narrow(0, block * tiling_.columns, columns(block)).to(dtype);
  }
  /// Blocks of logits stand one after the other, each a dense matrix.
  Tensor logits(int64_t block) const {
    return logits_.narrow(0, block * tiling_.columns * rows_, columns(block) * rows_).view({rows_, columns(block)});
  }
  /// x for the gradients' GEMMs. oneDNN compiles and keeps a kernel per shape, and the number of counted tokens changes
  /// from batch to batch: narrower products get rows of zeros up to a multiple of 256.
  Tensor narrowed(const Tensor& x) const {
    if (narrow_ == real_) return x;
    constexpr int64_t kRows = 256;
    Tensor padded = at::zeros({(x.size(0) + kRows - 1) / kRows * kRows, x.size(1)}, x.options().dtype(narrow_));
    padded.narrow(0, 0, x.size(0)).copy_(x);
    return padded;
  }
  static kernels::LogitBlock<Real> raw(const Tensor& z) {
    return {z.data_ptr<Real>(), z.size(0), z.size(1), z.size(1)};
  }
  /// Calls work(row, column) for the rows whose target is in the block.
  template <typename Work>
  void for_targets(int64_t block, const Work& work) const {
    const int64_t first = block * tiling_.columns, count = columns(block);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t column = target_T_[first_ + r] - first;
      if (column >= 0 && column < count) work(r, column);
    }
  }

  void logits_group(int64_t group) {
    Tensor scratch;
    if (!gradients_) scratch = at::empty({rows_ * tiling_.columns}, x_RD_.options());
    for (int64_t block = tiling_.first_block(group); block < tiling_.first_block(group + 1); ++block) {
      Tensor z =
          gradients_ ? logits(block) : scratch.narrow(0, 0, rows_ * columns(block)).view({rows_, columns(block)});
      at::mm_out(z, x_RD_, weight(block, real_).t());
      kernels::softmax_statistics(raw(z), &maximum_BR_[block * tiling_.rows], &sum_BR_[block * tiling_.rows]);
      const Real* data = z.data_ptr<Real>();
      for_targets(block, [&](int64_t r, int64_t column) { target_logit_R_[r] = data[r * columns(block) + column]; });
    }
  }

  /// loss = log sum_n exp(z_n) - z_target, blocks in order, in float64.
  void finish_rows(const Tensor& token_R, const Tensor& loss_T) {
    const int64_t* token = token_R.data_ptr<int64_t>();
    double* loss = loss_T.data_ptr<double>();
    for (int64_t r = 0; r < rows_; ++r) {
      double maximum = -INFINITY, sum = 0;
      for (int64_t b = 0; b < tiling_.blocks; ++b) {
        maximum = std::max<double>(maximum, maximum_BR_[b * tiling_.rows + r]);
      }
      for (int64_t b = 0; b < tiling_.blocks; ++b) {
        sum += sum_BR_[b * tiling_.rows + r] * std::exp(maximum_BR_[b * tiling_.rows + r] - maximum);
      }
      loss[token[r]] = std::log(sum) + (maximum - target_logit_R_[r]);
      if (!gradients_) continue;
      const double gradient = pass_.loss_gradient_T.data_ptr<double>()[token[r]];
      gradient_R_[r] = static_cast<Real>(gradient);
      scale_R_[r] = static_cast<Real>(gradient / sum);
      maximum_R_[r] = static_cast<Real>(maximum);
    }
  }

  void differentiate_group(int64_t group) {
    for (int64_t block = tiling_.first_block(group); block < tiling_.first_block(group + 1); ++block) {
      const Tensor p = logits(block);
      kernels::scaled_softmax(raw(p), maximum_R_.data(), scale_R_.data());
      Real* data = p.data_ptr<Real>();
      for_targets(block, [&](int64_t r, int64_t column) { data[r * columns(block) + column] -= gradient_R_[r]; });
      const Tensor narrow_p = narrowed(p);
      if (pass_.weight_gradient) {
        add_product(weight_gradient_ND_.narrow(0, block * tiling_.columns, columns(block)), narrow_p.t(), narrow_x_RD_,
                    first_ == 0);
      }
      if (pass_.x_gradient) {
        add_product(partial_GRD_.select(0, group).narrow(0, 0, rows_), narrow_p, weight(block, narrow_),
                    block == tiling_.first_block(group));
      }
    }
  }

  Tensor sum_of_groups() {
    Tensor sum = partial_GRD_.select(0, 0).narrow(0, 0, rows_);
    for (int64_t group = 1; group < tiling_.groups; ++group) {
      sum.add_(partial_GRD_.select(0, group).narrow(0, 0, rows_));
    }
    return sum;
  }

  const HeadPass& pass_;
  Tensor token_T_;                 // the counted tokens
  std::vector<int64_t> target_T_;  // theirs
  int64_t vocabulary_, width_;
  bool gradients_;
  at::ScalarType real_, narrow_;  // of the logits; of the gradients' GEMMs
  Tiling tiling_;

  Tensor logits_, partial_GRD_, weight_gradient_ND_;
  std::vector<Real> maximum_BR_, sum_BR_;  // B blocks
  std::vector<Real> target_logit_R_, maximum_R_, scale_R_, gradient_R_;

  int64_t first_ = 0, rows_ = 0;  // the tile at hand
  Tensor x_RD_, narrow_x_RD_;
};

}  // namespace

HeadPassResult run_head_pass(const HeadPass& pass) {
  const int64_t vocabulary = pass.weight_ND.size(0);
  const Tensor target_T = pass.target_T.contiguous();
  std::vector<int64_t> token, target;
  for (int64_t t = 0; t < target_T.numel(); ++t) {
    const int64_t word = target_T.data_ptr<int64_t>()[t];
    if (word == pass.ignore_index) continue;
    TORCH_CHECK_INDEX(word >= 0 && word < vocabulary, "linear_cross_entropy: target ", t, " must be in [0, ",
                      vocabulary, "), the rows of weight, or ignore_index ", pass.ignore_index, ", but is ", word);
    token.push_back(t);
    target.push_back(word);
  }
  const Tensor token_T = at::tensor(token, at::kLong);
  if (pass.x_TD.scalar_type() == at::kDouble) return Head<double>(pass, token_T, std::move(target)).run();
  return Head<float>(pass, token_T, std::move(target)).run();
}

}  // namespace tamis::ops

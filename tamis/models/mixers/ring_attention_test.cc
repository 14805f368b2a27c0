#include "tamis/models/mixers/ring_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/distributed/testing.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using distributed::ContextGroup;
using distributed::kAllKeys;
using distributed::ProcessGroup;
using distributed::testing::in_processes;

constexpr int64_t kSequences = 2, kOwnTokens = 70, kRingHeads = 3, kKeyDim = 8, kValueDim = 5;

Tensor waves(at::IntArrayRef shape, double shift) {
  int64_t numbers = 1;
  for (const int64_t n : shape) numbers *= n;
  return at::sin(at::arange(numbers, at::kDouble) * 1.7 + shift).view(shape).to(at::kFloat);
}

/// The largest error of a value of size 1, over a few keys.
double rounding(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-14 : dtype == at::kHalf ? 2e-3 : 2e-6;
}

/// q, k, v, log_scale, log_bias of the whole sequence, and the weight of each number of the result in the loss.
struct Sequence {
  Tensor q, k, v, log_scale, log_bias, weight;

  explicit Sequence(int64_t tokens, at::ScalarType dtype = at::kFloat)
      : q(waves({kSequences, tokens, kRingHeads, kKeyDim}, 0)),
        k(waves({kSequences, tokens, kRingHeads, kKeyDim}, 1)),
        v(waves({kSequences, tokens, kRingHeads, kValueDim}, 2)),
        log_scale(waves({kRingHeads}, 3)),
        log_bias(waves({kRingHeads}, 4)),
        weight(waves({kSequences, tokens, kRingHeads, kValueDim}, 5)) {
    for (Tensor* x : {&q, &k, &v, &weight}) *x = x->to(dtype);
    if (dtype == at::kDouble) log_scale = log_scale.to(dtype), log_bias = log_bias.to(dtype);
  }

  /// The tensors of [start, start + tokens), which need a gradient.
  Sequence part(int64_t start, int64_t tokens) const {
    Sequence part = *this;
    for (Tensor Sequence::*x : {&Sequence::q, &Sequence::k, &Sequence::v, &Sequence::weight}) {
      part.*x = (this->*x).narrow(1, start, tokens).clone();
    }
    for (Tensor Sequence::*x : {&Sequence::log_scale, &Sequence::log_bias}) part.*x = (this->*x).clone();
    for (const Tensor& x : {part.q, part.k, part.v, part.log_scale, part.log_bias}) x.requires_grad_(true);
    return part;
  }

  ops::SoftmaxAttentionOptions options(bool scalable, bool strict, const std::optional<Tensor>& document) const {
    ops::SoftmaxAttentionOptions options{.strict = strict, .document = document};
    if (scalable) {
      options.log_scale = log_scale;
      options.log_bias = log_bias;
    }
    return options;
  }
};

void expect_ring_attention(at::ScalarType dtype, const std::vector<int64_t>& sizes) {
  const auto expect_close = [=](const Tensor& found, const Tensor& expected, const std::string& what) {
    const Tensor exact = expected.to(at::kDouble);
    EXPECT_LE((found.to(at::kDouble) - exact).abs().max().item<double>(),
              rounding(dtype) * std::max(1.0, exact.abs().max().item<double>()))
        << what << ", " << dtype;
  };
  for (const int64_t size : sizes) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool scalable = kind % 2 == 1, strict = kind >= 2;
      for (const bool documents : {false, true}) {
        const int64_t T = size * kOwnTokens;
        std::optional<Tensor> document;
        if (documents) document = at::arange(T).add(9).floor_divide(31).expand({kSequences, T}).contiguous();
        const Sequence all(T, dtype), whole = all.part(0, T);
        const Tensor expected =
            ops::softmax_attention(whole.q, whole.k, whole.v, whole.options(scalable, strict, document));
        (expected * whole.weight).sum().backward();
        in_processes(size, [&](ProcessGroup& group) {
          ContextGroup context(group);
          const int64_t start = group.rank() * kOwnTokens;
          const Sequence own = all.part(start, kOwnTokens);
          const int64_t before = group.bytes_sent();
          const Tensor found = ring_attention(own.q, own.k, own.v, own.options(scalable, strict, document), context);
          const int64_t row_bytes = kSequences * kRingHeads * (kKeyDim + kValueDim) * all.q.element_size();
          const int64_t rows = ring_rows_sent(group.rank(), size, kOwnTokens);
          EXPECT_EQ(group.bytes_sent() - before, rows * row_bytes);
          (found * own.weight).sum().backward();
          EXPECT_EQ(group.bytes_sent() - before, (2 * rows + group.rank() * kOwnTokens) * row_bytes);
          const std::string where = "process " + std::to_string(group.rank()) + " of " + std::to_string(size) +
                                    (scalable ? ", scalable" : "") + (documents ? ", documents" : "") +
                                    (strict ? ", strict" : "");
          const auto of = [&](const Tensor& x) { return x.narrow(1, start, kOwnTokens); };
          expect_close(found.detach(), of(expected.detach()), where);
          expect_close(own.q.grad(), of(whole.q.grad()), "gradient of q, " + where);
          expect_close(own.k.grad(), of(whole.k.grad()), "gradient of k, " + where);
          expect_close(own.v.grad(), of(whole.v.grad()), "gradient of v, " + where);
          if (!scalable) return;
          // Each process has the gradient from its own queries: their sum is that of one process.
          const auto sum = [&](const Tensor& gradient) {
            const Tensor mine = gradient.to(at::kDouble).contiguous();
            const std::vector<double> values =
                group.gather(std::span(mine.const_data_ptr<double>(), static_cast<size_t>(kRingHeads)));
            return at::tensor(values).view({size, kRingHeads}).sum(0);
          };
          expect_close(sum(own.log_scale.grad()), whole.log_scale.grad(), "gradient of log_scale, " + where);
          expect_close(sum(own.log_bias.grad()), whole.log_bias.grad(), "gradient of log_bias, " + where);
        });
      }
    }
  }
}

TEST(RingAttention, IsTheAttentionOfTheWholeSequence) {
  expect_ring_attention(at::kFloat, {1, 2, 4});
}

TEST(RingAttention, IsSoWithoutAKernelForTheDtype) {
  expect_ring_attention(at::kDouble, {2, 3});
  expect_ring_attention(at::kHalf, {3});
}

/// The most memory that tensors of one process take in a forward and a backward pass of `attend`.
int64_t peak_bytes(int64_t size, const std::function<Tensor(const Sequence& own, ContextGroup& context)>& attend) {
  constexpr int64_t kMany = 256;
  const Sequence all(size * kMany);
  const ops::testing::PeakAllocation allocation;
  in_processes(size, [&](ProcessGroup& group) {
    ContextGroup context(group);
    const Sequence own = all.part(group.rank() * kMany, kMany);
    attend(own, context).sum().backward();
  });
  return allocation.peak_bytes_of_a_thread();
}

TEST(RingAttention, MemoryOfAProcessDoesNotGrowWithTheirNumber) {
  const auto ring = [](const Sequence& own, ContextGroup& context) {
    return ring_attention(own.q, own.k, own.v, {}, context);
  };
  const auto gathered = [](const Sequence& own, ContextGroup& context) {
    const Tensor kv = context.with_left(at::cat({own.k, own.v}, 3), std::vector<int64_t>(kRingHeads, kAllKeys));
    return ops::softmax_attention(own.q, kv.narrow(3, 0, kKeyDim), kv.narrow(3, kKeyDim, kValueDim));
  };
  const auto growth = [](const auto& attend) {
    return static_cast<double>(peak_bytes(8, attend)) / static_cast<double>(peak_bytes(2, attend));
  };
  EXPECT_LT(growth(ring), 1.5) << "four times the processes, the same memory of each";
  EXPECT_GT(growth(gathered), 2) << "gathering takes more: if not, this test measures nothing";
}

}  // namespace
}  // namespace tamis::models

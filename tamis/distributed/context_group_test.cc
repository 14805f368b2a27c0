#include "tamis/distributed/context_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <future>

#include "tamis/distributed/testing.h"

namespace tamis::distributed {
namespace {

using at::Tensor;
using testing::in_processes;

constexpr int64_t kBatch = 2, kTokens = 5, kHeads = 4, kChannels = 3;

/// A whole sequence of `size` processes, and weights that make every row's gradient different.
Tensor whole(int64_t size, double shift) {
  return at::sin(at::arange(kBatch * size * kTokens * kHeads * kChannels, at::kDouble) + shift)
      .view({kBatch, size * kTokens, kHeads, kChannels});
}

TEST(ContextGroup, DoesNotWaitUntilOthersHaveReceived) {
  std::promise<void> is_ahead;
  in_processes(2, [&](ProcessGroup& group) {
    ContextGroup context(group);
    if (group.rank() == 1) is_ahead.get_future().wait();
    for (int64_t layer = 0; layer < 3; ++layer) {
      const Tensor seen = context.with_left(at::full({1, kTokens, 1, 1}, group.rank() + layer, at::kFloat), {2});
      if (group.rank() == 1) {
        EXPECT_TRUE(seen.narrow(1, 0, 2).eq(layer).all().item<bool>());
      }
    }
    if (group.rank() == 0) is_ahead.set_value();
  });
}

TEST(ContextGroup, GivesEveryHeadTheRowsBefore) {
  const std::vector<int64_t> halos = {0, 3, 7, kAllKeys};
  for (const int64_t size : {1, 2, 4}) {
    const Tensor all = whole(size, 0), weights = whole(size, 1);
    // The gradient of every row, summed over the processes that see it.
    Tensor expected = at::zeros_like(all);
    in_processes(size, [&](ProcessGroup& group) {
      ContextGroup context(group);
      const int64_t start = group.rank() * kTokens;
      const Tensor own = all.narrow(1, start, kTokens).clone().requires_grad_(true);
      const int64_t before = group.bytes_sent();
      const Tensor seen = context.with_left(own, halos);
      const int64_t sent = group.bytes_sent() - before;
      EXPECT_EQ(sent, ContextGroup::rows_sent(halos, group.rank(), size, kTokens) * kBatch * kChannels * 8);
      ASSERT_EQ(seen.size(1), start + kTokens) << "one head needs all";
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t first = std::max<int64_t>(start - std::min(halos[h], start), 0);
        const Tensor head = seen.select(2, h);
        EXPECT_TRUE(head.narrow(1, 0, first).eq(0).all().item<bool>()) << "head " << h;
        EXPECT_TRUE(head.narrow(1, first, start + kTokens - first)
                        .equal(all.select(2, h).narrow(1, first, start + kTokens - first)))
            << "head " << h << " of process " << group.rank();
      }
      // Every process weights all rows that it sees, with a factor of its own.
      const auto factor = static_cast<double>(group.rank() + 1);
      (seen * weights.narrow(1, 0, start + kTokens) * factor).sum().backward();
      Tensor gradient = at::zeros({kBatch, kTokens, kHeads, kChannels}, at::kDouble);
      for (int64_t r = group.rank(); r < size; ++r) {
        for (int64_t h = 0; h < kHeads; ++h) {
          const int64_t first = std::max<int64_t>(r * kTokens - std::min(halos[h], r * kTokens), start);
          const int64_t rows = start + kTokens - first;
          if (rows <= 0) continue;
          gradient.select(2, h)
              .narrow(1, kTokens - rows, rows)
              .add_(weights.select(2, h).narrow(1, first, rows) * static_cast<double>(r + 1));
        }
      }
      EXPECT_TRUE(at::allclose(own.grad(), gradient)) << "process " << group.rank() << " of " << size;
    });
  }
}

/// Rounding after every process would add up; messages stay in the dtype of the rows.
TEST(ContextGroup, RoundsTheSumOfGradientsOnce) {
  constexpr int64_t kSize = 6, kRows = kSize * kTokens;
  const std::vector<int64_t> halos(kHeads, kAllKeys);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // What process r finds for all rows up to its last; in [1, 2], so that a sum in float32 is exact.
    const auto found = [&](int64_t r) {
      const Tensor all = 1.5 + whole(kSize, static_cast<double>(r)) / 2;
      return all.narrow(1, 0, (r + 1) * kTokens).to(dtype);
    };
    Tensor exact = at::zeros({kBatch, kRows, kHeads, kChannels}, at::kDouble);
    for (int64_t r = 0; r < kSize; ++r) exact.narrow(1, 0, (r + 1) * kTokens).add_(found(r));
    in_processes(kSize, [&](ProcessGroup& group) {
      ContextGroup context(group);
      const int64_t start = group.rank() * kTokens;
      const Tensor own = whole(1, 0).to(dtype).requires_grad_(true);
      const Tensor seen = context.with_left(own, halos);
      ASSERT_EQ(seen.scalar_type(), dtype);
      const int64_t before = group.bytes_sent();
      seen.backward(found(group.rank()));
      EXPECT_EQ(group.bytes_sent() - before, start * kHeads * kBatch * kChannels * 2);
      EXPECT_TRUE(own.grad().equal(exact.narrow(1, start, kTokens).to(dtype))) << dtype << ", process " << group.rank();
    });
  }
}

TEST(ContextGroup, ShorterHalosNeedFewerRows) {
  in_processes(3, [](ProcessGroup& group) {
    ContextGroup context(group);
    const Tensor own = whole(1, 0);
    EXPECT_EQ(context.with_left(own, {0, 2, 1, 0}).size(1), kTokens + (group.rank() == 0 ? 0 : 2));
    EXPECT_EQ(ContextGroup::rows_sent(std::vector<int64_t>{0, 2, 1, 0}, 0, 3, kTokens), 3);
    EXPECT_EQ(ContextGroup::rows_sent(std::vector<int64_t>{0, 7, 0, 0}, 0, 3, kTokens), 5 + 2);
    EXPECT_EQ(ContextGroup::rows_sent(std::vector<int64_t>{kAllKeys}, 1, 3, kTokens), 5);
  });
}

TEST(ContextGroup, PassesAStateAndItsGradient) {
  in_processes(3, [](ProcessGroup& group) {
    ContextGroup context(group);
    const Tensor factor = at::full({}, 2.0 + static_cast<double>(group.rank()), at::kDouble).requires_grad_(true);
    const Tensor state = context.from_left({at::ones({2}, at::kDouble)}, factor)[0];
    const Tensor next = state * factor;  // 2, 6, 24
    const Tensor loss = next.sum() + context.to_right({next});
    loss.backward();
    const double expected[] = {2, 6, 24};
    EXPECT_EQ(next[0].item<double>(), expected[group.rank()]);
    // loss = 2 (a + a b + a b c) over all processes
    const double gradients[] = {2 * (1 + 3 + 12), 2 * (2 + 8), 2 * 6};
    EXPECT_EQ(factor.grad().item<double>(), gradients[group.rank()]);
  });
}

TEST(ProcessGroup, DividesIntoGroupsOfNeighbours) {
  in_processes(4, [](ProcessGroup& all) {
    ProcessGroup half(all, 2, "halves");
    EXPECT_EQ(half.rank(), all.rank() % 2);
    EXPECT_EQ(half.gather(std::to_string(all.rank())),
              all.rank() < 2 ? (std::vector<std::string>{"0", "1"}) : (std::vector<std::string>{"2", "3"}));
    half.barrier();
  });
}

}  // namespace
}  // namespace tamis::distributed

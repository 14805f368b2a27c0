#include "tamis/train/gradient_exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <numeric>

#include "tamis/distributed/testing.h"
#include "tamis/train/optimizer.h"

namespace tamis::train {
namespace {

using distributed::ProcessGroup;
using distributed::testing::in_processes;

constexpr int64_t kSizes[] = {5, 3 * kNormBlock + 7, 1, kNormBlock, 40};

/// Parameters with the same values in every process; the second is a matrix.
std::vector<models::Parameter> make_parameters() {
  std::vector<models::Parameter> parameters;
  for (const int64_t size : kSizes) {
    at::Tensor values = at::linspace(-1, 1, size, at::kFloat);
    if (parameters.size() == 1) values = values.view({1, -1});
    parameters.push_back({fmt::format("p{}", parameters.size()), values.set_requires_grad(true)});
  }
  return parameters;
}

/// The gradient of a parameter in micro-batch m; the last parameter has none.
at::Tensor gradient(size_t parameter, int64_t m, const at::Tensor& like) {
  return at::sin(at::arange(like.numel(), at::kFloat) * static_cast<double>(m + 1) + static_cast<double>(parameter))
      .view(like.sizes());
}

void backward(const std::vector<models::Parameter>& parameters, int64_t m) {
  at::Tensor loss = at::zeros({});
  for (size_t p = 0; p + 1 < parameters.size(); ++p) {
    loss = loss + (parameters[p].tensor * gradient(p, m, parameters[p].tensor)).sum();
  }
  loss.backward();
}

/// The pieces of all processes put together: the sum over `rounds` micro-batches of each of `size` processes.
std::vector<at::Tensor> exchanged(int64_t size, int64_t rounds, const Reduction& reduction) {
  std::vector<at::Tensor> whole;
  for (const int64_t count : kSizes) whole.push_back(at::full({count}, NAN));
  in_processes(size, [&](ProcessGroup& group) {
    const std::vector<models::Parameter> parameters = make_parameters();
    GradientExchange exchange(group, parameters, reduction);
    const std::vector<models::Parameter> owned = exchange.owned_parameters();
    const int64_t before = group.bytes_sent();
    for (int64_t round = 0; round < rounds; ++round) {
      exchange.begin(round + 1 == rounds);
      backward(parameters, round * size + group.rank());
      exchange.end();
    }
    exchange.finish(owned);
    const int64_t gradients = group.bytes_sent() - before;
    const auto sums = exchange.block_sums(owned);
    for (size_t i = 0; i < owned.size(); ++i) {
      const auto& [p, begin, end] = exchange.owned()[i];
      if (p + 1 == parameters.size()) {
        EXPECT_FALSE(owned[i].tensor.grad().defined()) << "the loss does not depend on it";
        continue;
      }
      whole[p].slice(0, begin, end).copy_(owned[i].tensor.grad().view({-1}));
      EXPECT_EQ(begin % kNormBlock, 0);
      EXPECT_EQ(sums[p][begin / kNormBlock], gradient_block_sums(owned)[i][0]);
      EXPECT_EQ(owned[i].tensor.dim(), parameters[p].tensor.dim());
    }

    // Every process changes what it owns; afterwards all have all changes.
    for (size_t i = 0; i < owned.size(); ++i)
      owned[i].tensor.add_(static_cast<double>(exchange.owned()[i].parameter + 1));
    const int64_t between = group.bytes_sent();
    exchange.gather_parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor expected = make_parameters()[p].tensor.detach() + static_cast<double>(p + 1);
      EXPECT_TRUE(parameters[p].tensor.detach().equal(expected)) << parameters[p].name;
    }
    const int64_t sends = reduction.ordered ? rounds : 1;
    EXPECT_EQ(gradients, sends * exchange.layout().gradient_bytes(reduction.dtype));
    EXPECT_EQ(group.bytes_sent() - between, exchange.layout().parameter_bytes());
  });
  whole.pop_back();
  return whole;
}

/// The same sum in a single process, as autograd accumulates it.
std::vector<at::Tensor> accumulated(int64_t micro_batches) {
  const std::vector<models::Parameter> parameters = make_parameters();
  for (int64_t m = 0; m < micro_batches; ++m) backward(parameters, m);
  std::vector<at::Tensor> result;
  for (size_t p = 0; p + 1 < parameters.size(); ++p) result.push_back(parameters[p].tensor.grad().view({-1}));
  return result;
}

TEST(GradientExchange, OrderedSumsHaveTheBitsOfASingleProcess) {
  for (const auto& [size, rounds] : std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 3}, {3, 2}, {6, 1}}) {
    for (const int64_t bucket : {int64_t{1}, 2 * kNormBlock, int64_t{1} << 22}) {
      const auto sums = exchanged(size, rounds, {.ordered = true, .bucket_elements = bucket});
      const auto expected = accumulated(size * rounds);
      for (size_t p = 0; p < sums.size(); ++p) {
        EXPECT_TRUE(sums[p].equal(expected[p])) << size << " processes, bucket " << bucket << ", parameter " << p;
      }
    }
  }
}

TEST(GradientExchange, FastSumsAreAsAccurate) {
  const auto sums = exchanged(3, 4, {});
  const auto expected = accumulated(12);
  for (size_t p = 0; p < sums.size(); ++p) EXPECT_TRUE(at::allclose(sums[p], expected[p], 1e-5, 1e-5));
}

TEST(GradientExchange, ManyProcessesSendLittlePadding) {
  const int64_t units[] = {kWhole, kWhole, kWhole, kWhole};
  for (const int64_t last : {384, 643}) {  // blocks
    const int64_t sizes[] = {20 * kNormBlock, 1000 * kNormBlock + 1, 5, last * kNormBlock - 7};
    const auto all = static_cast<double>(std::accumulate(std::begin(sizes), std::end(sizes), int64_t{0}));
    for (const int64_t processes : {2, 16, 64, 128, 170}) {
      const ExchangeLayout layout(sizes, units, processes, Reduction().bucket_elements);
      const auto least = all * 4 * static_cast<double>(processes - 1) / static_cast<double>(processes);
      EXPECT_LE(static_cast<double>(layout.gradient_bytes(at::kFloat)), 1.125 * least) << processes << ", " << last;
    }
  }
}

TEST(GradientExchange, SendsBfloat16) {
  const auto sums = exchanged(2, 1, {.dtype = at::kBFloat16});
  const auto expected = accumulated(2);
  for (size_t p = 0; p < sums.size(); ++p) {
    EXPECT_FALSE(sums[p].equal(expected[p]));
    EXPECT_TRUE(at::allclose(sums[p], expected[p], 0, 2.0 / 256));
  }
}

TEST(GradientExchange, SendsWhileTheBackwardPassGoesOn) {
  in_processes(2, [](ProcessGroup& group) {
    std::vector<models::Parameter> parameters;
    for (int64_t p = 0; p < 3; ++p) {
      parameters.push_back({fmt::format("p{}", p), at::ones({2 * kNormBlock}, at::kFloat).set_requires_grad(true)});
    }
    GradientExchange exchange(group, parameters, {.bucket_elements = 2 * kNormBlock});  // each in a bucket of its own
    const std::vector<models::Parameter> owned = exchange.owned_parameters();
    const int64_t bucket_bytes = kNormBlock * static_cast<int64_t>(sizeof(float));  // that go to the other process
    std::vector<int64_t> sent;
    const auto after = [&](const at::Tensor& tensor) {  // what was sent before its own gradient is used
      tensor.register_hook([&](const at::Tensor&) { sent.push_back(group.bytes_sent()); });
      return tensor;
    };
    exchange.begin(/*last=*/true);
    const at::Tensor first = after(parameters[0].tensor * 2), second = after(first * parameters[1].tensor);
    (second * parameters[2].tensor).sum().backward();
    EXPECT_THAT(sent, ::testing::ElementsAre(bucket_bytes, 2 * bucket_bytes));
    exchange.end();
    EXPECT_EQ(group.bytes_sent(), 3 * bucket_bytes);
    exchange.finish(owned);
  });
}

TEST(GradientExchange, ShardedMatricesExistOnlyWhereTheyAreGathered) {
  in_processes(2, [](ProcessGroup& group) {
    const auto values = [](double shift) { return (at::arange(6 * kNormBlock, at::kFloat) + shift).view({2, -1}); };
    const std::vector<models::Parameter> parameters = {
        {"embed.weight", values(0).set_requires_grad(true)},
        {"layers.0.weight", values(1).set_requires_grad(true)},
        {"layers.0.s_w", at::ones({7}, at::kFloat).set_requires_grad(true)},
        {"layers.1.weight", values(2).set_requires_grad(true)}};
    const auto bytes = [&](size_t p) { return parameters[p].tensor.storage().nbytes(); };
    GradientExchange exchange(group, parameters, {.sharded = true});
    const std::vector<models::Parameter> owned = exchange.owned_parameters();
    for (const size_t matrix : {0, 1, 3}) EXPECT_EQ(bytes(matrix), 0) << matrix;
    EXPECT_EQ(bytes(2), 7 * sizeof(float)) << "only matrices are sharded";
    exchange.gather(1);
    EXPECT_EQ(bytes(1), 0);
    EXPECT_TRUE(parameters[3].tensor.equal(values(2)));
    exchange.release(1);
    EXPECT_EQ(bytes(3), 0);

    for (const models::Parameter& piece : owned) piece.tensor.add_(1);  // an update
    exchange.gather_parameters();
    EXPECT_TRUE(parameters[2].tensor.eq(2).all().item<bool>());
    exchange.gather_all();
    EXPECT_TRUE(parameters[0].tensor.equal(values(1)));
    EXPECT_TRUE(parameters[1].tensor.equal(values(2)));

    // The gradients of a layer are sent, and it is freed, while the backward pass goes on with the layers before it.
    exchange.begin(/*last=*/false);
    (parameters[3].tensor * 3).sum().backward();
    EXPECT_EQ(bytes(3), 0);
    EXPECT_FALSE(parameters[3].tensor.grad().defined());
    ((parameters[0].tensor + parameters[1].tensor).sum() + parameters[2].tensor.sum()).backward();
    exchange.end();
    exchange.finish(owned);
    for (size_t i = 0; i < owned.size(); ++i) {
      const double expected = exchange.owned()[i].parameter == 3 ? 6 : 2;
      EXPECT_TRUE(owned[i].tensor.grad().eq(expected).all().item<bool>()) << owned[i].name;
    }
  });
}

TEST(GradientExchange, GivesEveryProcessAboutTheSame) {
  in_processes(4, [](ProcessGroup& group) {
    const std::vector<models::Parameter> parameters = {
        {"large", at::zeros({1000, 1000}, at::kFloat).set_requires_grad(true)}};
    const GradientExchange exchange(group, parameters, {});
    int64_t owned = 0;
    for (const Piece& piece : exchange.owned()) owned += piece.end - piece.begin;
    EXPECT_NEAR(static_cast<double>(owned), 250'000, kNormBlock);
  });
}

}  // namespace
}  // namespace tamis::train

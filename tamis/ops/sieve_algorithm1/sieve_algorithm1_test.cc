#include "tamis/ops/sieve_algorithm1/sieve_algorithm1.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::sieve_algorithm1_test {
namespace {

using at::Tensor;
using testing::Tensors;
using Options = SieveAlgorithm1Options;

Tensors inputs(int64_t B, int64_t T, int64_t H, int64_t K, int64_t V, uint64_t seed, int64_t queries = -1,
               at::ScalarType dtype = at::kFloat) {
  return {testing::random_normal({B, queries < 0 ? T : queries, H, K}, seed, dtype),
          testing::random_normal({B, T, H, K}, seed + 1, dtype), testing::random_normal({B, T, H, V}, seed + 2, dtype)};
}

testing::Function operator_with(const Options& options) {
  return [options](const Tensors& in) { return Tensors{sieve_algorithm1(in[0], in[1], in[2], options)}; };
}

testing::Function definition_with(const Options& options) {
  return [options](const Tensors& in) { return Tensors{reference::sieve_algorithm1(in[0], in[1], in[2], options)}; };
}

/// Algorithm 1 with plain loops in float64, one key after the other.
Tensor loops(const Tensors& in, const Options& options) {
  const Tensor q = in[0].to(at::kDouble), k = in[1].to(at::kDouble), v = in[2].to(at::kDouble);
  const int64_t T_q = q.size(1), T_k = k.size(1);
  Tensor out = at::zeros({q.size(0), T_q, q.size(2), v.size(3)}, at::kDouble);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(2); ++h) {
      for (int64_t i = 0; i < T_q; ++i) {
        const int64_t position = T_k - T_q + i;
        std::vector<int64_t> keys;
        std::vector<double> z;
        double threshold = -HUGE_VAL;
        for (int64_t j = 0; j < position + (options.strict ? 0 : 1); ++j) {
          if (options.document && !options.document->select(0, b)[j].equal(options.document->select(0, b)[position])) {
            continue;
          }
          keys.push_back(j);
          z.push_back(q[b][i][h].dot(k[b][j][h]).item<double>() * options.scale.value_or(1 / std::sqrt(q.size(3))));
          threshold = std::max(threshold, z.back());
        }
        double left = 1;
        for (size_t j = 0; j < keys.size(); ++j) {
          const double share = 1 / (1 + std::exp(-z[j]));
          if (z[j] >= threshold - options.epsilon) out[b][i][h] += share * left * v[b][keys[j]][h];
          left *= 1 - share;
        }
      }
    }
  }
  return out;
}

Tensor two_documents(int64_t B, int64_t T) {
  Tensor document = at::full({B, T}, 5, at::kLong);
  document.slice(1, T / 3, T / 2).fill_(2);
  return document;
}

TEST(SieveAlgorithm1, IsThePapersAlgorithm) {
  const Tensor document = two_documents(2, 40);
  for (const double epsilon : {1e-6, 0.5, 2.0, 1e9}) {
    for (const bool strict : {true, false}) {
      for (const int64_t queries : {40, 7}) {
        const Tensors in = inputs(2, 40, 2, 8, 5, 1, queries);
        for (const Options& options :
             {Options{.epsilon = epsilon, .strict = strict},
              Options{.epsilon = epsilon, .scale = 0.9, .strict = strict, .document = document}}) {
          const Tensor exact = loops(in, options), found = operator_with(options)(in)[0];
          EXPECT_LE(testing::largest(found - exact), 1e-5) << "epsilon " << epsilon << ", strict " << strict;
        }
      }
    }
  }
}

TEST(SieveAlgorithm1, InFloat64IsTheDefinition) {
  for (const int64_t T : {1, 63, 300}) {
    for (const double epsilon : {1e-6, 2.0}) {
      for (const bool strict : {true, false}) {
        const Options options{.epsilon = epsilon, .strict = strict, .document = two_documents(2, T)};
        Tensors in = inputs(2, T, 2, 16, 24, 2);
        for (Tensor& x : in) x = x.to(at::kDouble);
        const Tensors found = testing::outputs_and_gradients(operator_with(options), in);
        const Tensors exact = testing::outputs_and_gradients(definition_with(options), in);
        for (size_t i = 0; i < exact.size(); ++i) {
          EXPECT_LE(testing::largest(found[i] - exact[i]), 1e-13 * std::max(1.0, testing::largest(exact[i])))
              << "T " << T << ", tensor " << i;
        }
      }
    }
  }
}

TEST(SieveAlgorithm1, IsAsAccurateAsPlainTorch) {
  // A selection of everything does not depend on rounding.
  for (const bool strict : {true, false}) {
    for (const bool documents : {false, true}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(::testing::Message() << "strict " << strict << ", documents " << documents << ", " << dtype);
        Options options{.epsilon = 1e9, .strict = strict};
        if (documents) options.document = two_documents(2, 130);
        std::vector<Tensors> samples;
        for (uint64_t i = 0; i < 4; ++i) samples.push_back(inputs(2, 130, 2, 16, 24, 10 + 100 * i, -1, dtype));
        testing::expect_as_accurate_as_plain_once(operator_with(options), definition_with(options), samples);
      }
    }
  }
}

TEST(SieveAlgorithm1, GradientsMatchFiniteDifferences) {
  for (const double epsilon : {1e-6, 1.0}) {
    Tensors in = inputs(1, 9, 2, 4, 3, 20);
    for (Tensor& x : in) x = x.to(at::kDouble);
    testing::expect_gradients(operator_with({.epsilon = epsilon}), in);
  }
}

TEST(SieveAlgorithm1, TheOldestKeyTakesFirstAndRejectedKeysTakeToo) {
  // Scores 2, -1, 1.5 of the keys 0, 1, 2 for query 3.
  const Tensor q = at::ones({1, 4, 1, 1}), k = at::tensor({2.0f, -1.0f, 1.5f, 7.0f}).view({1, 4, 1, 1});
  const Tensor v = at::eye(4).view({1, 4, 1, 4});
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  const auto weights = [&](double epsilon) {
    return sieve_algorithm1(q, k, v, {.epsilon = epsilon, .scale = 1.0}).select(1, 3).flatten();
  };
  const Tensor within = weights(0.6), best = weights(1e-6);
  EXPECT_NEAR(within[0].item<double>(), sigmoid(2), 1e-7);
  EXPECT_EQ(within[1].item<double>(), 0);
  EXPECT_NEAR(within[2].item<double>(), sigmoid(1.5) * (1 - sigmoid(2)) * (1 - sigmoid(-1)), 1e-7);
  EXPECT_NEAR(best[0].item<double>(), sigmoid(2), 1e-7);
  EXPECT_EQ(best[2].item<double>(), 0);
  EXPECT_GT(sieve_attention(q, k, v, {.scale = 1.0}).select(1, 3).flatten()[2].item<double>(), 0.8);  // newest first
}

TEST(SieveAlgorithm1, QueriesThatSeeNothingAreZeroWithoutGradient) {
  const Options options{.document = at::tensor({7, 7, 7, 2, 2, 7}).view({1, 6})};
  const Tensors found = testing::outputs_and_gradients(operator_with(options), inputs(1, 6, 2, 4, 3, 30));
  for (const Tensor& x : found) EXPECT_TRUE(x.isfinite().all().item<bool>());
  for (const int64_t row : {0, 3}) {
    EXPECT_EQ(testing::largest(found[0].select(1, row)), 0.0);
    EXPECT_EQ(testing::largest(found[1].select(1, row)), 0.0);
  }
  EXPECT_GT(testing::largest(found[0].select(1, 5)), 0.0);
}

TEST(SieveAlgorithm1, NaNShowsInTheResult) {
  Tensors in = inputs(1, 90, 1, 16, 24, 40);
  in[1].select(1, 40).fill_(std::numeric_limits<double>::quiet_NaN());
  const Tensor out = operator_with({})(in)[0];
  EXPECT_TRUE(out.slice(1, 41).isnan().all().item<bool>());
  EXPECT_TRUE(out.slice(1, 0, 41).isfinite().all().item<bool>());
}

TEST(SieveAlgorithm1, MemoryIsLinear) {
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(documents ? "documents" : "one document");
    testing::expect_linear_memory([&](int64_t T) {
      Options options;
      if (documents) options.document = two_documents(1, T);
      testing::outputs_and_gradients(operator_with(options), inputs(1, T, 1, 16, 16, 50));
    });
  }
}

TEST(SieveAlgorithm1, IsCallableThroughTheDispatcher) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tamis::sieve_algorithm1", "");
  EXPECT_EQ(toString(op.schema()),
            "tamis::sieve_algorithm1(Tensor q, Tensor k, Tensor v, *, float epsilon=9.9999999999999995e-07, "
            "float? scale=None, bool strict=True, Tensor? document=None) -> Tensor");
  const Tensors in = inputs(1, 20, 2, 4, 3, 60);
  torch::jit::Stack stack = {in[0], in[1], in[2], 0.5, c10::IValue(), false, c10::IValue()};
  op.callBoxed(stack);
  EXPECT_TRUE(testing::same_bits(stack.back().toTensor(), operator_with({.epsilon = 0.5, .strict = false})(in)[0]));
  const Tensor shape = sieve_algorithm1(in[0].to(at::kMeta), in[1].to(at::kMeta), in[2].to(at::kMeta));
  EXPECT_EQ(shape.sizes(), at::IntArrayRef({1, 20, 2, 3}));
}

TEST(SieveAlgorithm1, BadArgumentsAreNamed) {
  const Tensors in = inputs(1, 6, 2, 4, 3, 70);
  const auto expect_error = [&](const Tensors& arguments, const Options& options, const std::string& text) {
    testing::expect_throws<c10::ValueError>([&] { operator_with(options)(arguments); }, "sieve_algorithm1: " + text);
  };
  expect_error(in, {.epsilon = 0}, "epsilon must be above 0, but is 0");
  expect_error(in, {.epsilon = std::nan("")}, "epsilon must be above 0, but is nan");
  expect_error({in[0], in[1].slice(1, 0, 5), in[2]}, {}, "k must have the shape of q");
  expect_error(in, {.document = at::zeros({1, 5}, at::kLong)}, "document must have the shape [1, 6]");
}

}  // namespace
}  // namespace tamis::ops::sieve_algorithm1_test

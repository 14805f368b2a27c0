#include "tamis/infer/sampling.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/ops/simulated_device/testing.h"
#include "tamis/ops/testing.h"

namespace tamis::infer {
namespace {

using ::testing::HasSubstr;

/// The relative frequency of each token.
std::vector<double> shares(const std::vector<float>& logits, const SamplingOptions& options) {
  constexpr int kDraws = 20'000;
  std::vector<double> share(logits.size());
  for (uint64_t position = 0; position < kDraws; ++position) share[sample(logits, options, position)] += 1.0 / kDraws;
  return share;
}

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 5));
  return logits;
}

void expect_shares(const std::vector<double>& drawn, const std::vector<double>& expected) {
  for (size_t n = 0; n < expected.size(); ++n) {
    SCOPED_TRACE(n);
    if (expected[n] == 0) {
      EXPECT_EQ(drawn[n], 0);
    } else {
      EXPECT_NEAR(drawn[n], expected[n], 0.015);  // 4 sigma
    }
  }
}

TEST(Sampling, GreedyTakesTheLowestOfTheLikeliest) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 2}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-1}, {}, 7), 0);
}

TEST(Sampling, OnADeviceIsThatOfTheHostFromFewNumbers) {
  using ops::testing::SimulatedDevice;
  SimulatedDevice& simulated = SimulatedDevice::get();
  // Multiples of 1/4, so that many are equal.
  const at::Tensor host = (ops::testing::random_normal({500}, 3) * 4).round() / 4;
  const at::Tensor logits = host.to(SimulatedDevice::device());
  for (const auto& [options, numbers] : {std::pair<SamplingOptions, int64_t>{{}, 3},
                                         {{.temperature = 2, .top_k = 30}, 61},
                                         {{.temperature = 2, .top_k = 30, .top_p = 0.7, .min_p = 0.2}, 61},
                                         {{.temperature = 2, .top_p = 0.9}, 500},
                                         {{.temperature = 2, .top_k = 500}, 500}}) {
    for (uint64_t position = 0; position < 50; ++position) {
      simulated.reset();
      EXPECT_EQ(sample(logits, options, position), sample(host, options, position));
      EXPECT_EQ(simulated.to_host().size(), 1U);
      EXPECT_EQ(simulated.bytes_to_host(), numbers * 4);
    }
  }
  logits.narrow(0, 7, 1).fill_(-std::numeric_limits<float>::infinity());
  for (const SamplingOptions& options : {SamplingOptions{}, {.temperature = 1, .top_k = 3}}) {
    EXPECT_THROW(sample(logits, options, 0), Error);
  }
}

TEST(Sampling, FollowsTheProbabilities) {
  const auto logits = logits_of({0.1, 0.5, 0.4});
  expect_shares(shares(logits, {.temperature = 1}), {0.1, 0.5, 0.4});
  expect_shares(shares(logits, {.temperature = 0.5}), {0.01 / 0.42, 0.25 / 0.42, 0.16 / 0.42});
  expect_shares(shares(logits, {.temperature = 1e-12}), {0, 1, 0});
  expect_shares(shares(logits, {.temperature = 1e12}), {1 / 3.0, 1 / 3.0, 1 / 3.0});
}

TEST(Sampling, KeepsOnlyWhatTheFiltersAllow) {
  const auto logits = logits_of({0.1, 0.4, 0.3, 0.2});
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2}), {0, 4 / 7.0, 3 / 7.0, 0});
  expect_shares(shares(logits, {.temperature = 1, .top_k = 100}), {0.1, 0.4, 0.3, 0.2});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.65}), {0, 4 / 7.0, 3 / 7.0, 0});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.75}), {0, 4 / 9.0, 3 / 9.0, 2 / 9.0});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 1e-9}), {0, 1, 0, 0});
  expect_shares(shares(logits, {.temperature = 1, .min_p = 0.45}), {0, 4 / 9.0, 3 / 9.0, 2 / 9.0});
  expect_shares(shares(logits, {.temperature = 1, .min_p = 1}), {0, 1, 0, 0});
  // top_p applies after top_k: 4/7 < 0.6.
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.55}), {0, 1, 0, 0});
}

TEST(Sampling, IsAFunctionOfSeedAndPosition) {
  const auto logits = logits_of(std::vector<double>(100, 0.01));
  std::vector<int64_t> first, again, other;
  for (uint64_t position = 0; position < 50; ++position) {
    first.push_back(sample(logits, {.temperature = 1, .seed = 1}, position));
    again.push_back(sample(logits, {.temperature = 1, .seed = 1}, position));
    other.push_back(sample(logits, {.temperature = 1, .seed = 2}, position));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(Sampling, RefusesBadOptionsAndLogits) {
  const auto error_of = [](const SamplingOptions& options) -> std::string {
    try {
      check_sampling(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_THAT(error_of({.temperature = -1}), HasSubstr("temperature must be 0 or more, but is -1"));
  EXPECT_THAT(error_of({.temperature = std::nan("")}), HasSubstr("temperature"));
  EXPECT_THAT(error_of({.top_k = -1}), HasSubstr("top-k"));
  EXPECT_THAT(error_of({.top_p = 0}), HasSubstr("top-p must be in (0, 1], but is 0"));
  EXPECT_THAT(error_of({.min_p = 1.5}), HasSubstr("min-p must be in [0, 1], but is 1.5"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(sample(std::vector<float>{0, bad}, {}, 0), Error);
  }
}

}  // namespace
}  // namespace tamis::infer

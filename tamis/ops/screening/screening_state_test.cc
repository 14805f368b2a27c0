#include "tamis/ops/screening/screening_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/testing.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using Sequence = testing::StateInputs;

constexpr int64_t kK = 16, kV = 24;

const Tensor kWidthParameter = at::log(at::tensor({1.0f, 1.5f, 16.3f, 99.0f, 255.0f, 1e30f}));
const Tensor kAcceptParameter = at::tensor({0.0f, 2.0f, 1.0f, 0.0f, 3.0f, 0.5f});

Sequence random_sequence(int64_t T, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return testing::random_state_inputs(1, T, kWidthParameter.size(0), kK, kV, seed).to(dtype);
}

ScreeningState make_state(const ScreeningState::Options& options = {}) {
  return ScreeningState(kWidthParameter, kAcceptParameter, kK, kV, options);
}

Tensor step(ScreeningState& state, const Sequence& x) {
  return state.step(x.q, x.k, x.v, x.gate);
}

Tensor in_chunks(ScreeningState& state, const Sequence& x, const std::vector<int64_t>& lengths) {
  return testing::in_pieces(x, lengths, [&](const Sequence& part) { return step(state, part); });
}

std::vector<int64_t> random_split(int64_t total, uint64_t seed) {
  Random random{seed};
  std::vector<int64_t> lengths;
  while (total > 0) {
    const auto limit = static_cast<uint64_t>(random.below(3) == 0 ? 2 : 120);
    lengths.push_back(std::min<int64_t>(total, 1 + static_cast<int64_t>(random.below(limit))));
    total -= lengths.back();
  }
  return lengths;
}

void expect_close(const Tensor& found, const Tensor& full) {
  EXPECT_LE(testing::largest(found - full), 1e-5 * testing::largest(full));
}

TEST(ScreeningState, FullIsChunkedIsTokenByToken) {
  const int64_t T = 700;
  const Sequence x = random_sequence(T, 1);
  for (const std::optional<double> expand : {std::optional<double>(), std::optional<double>(50.0)}) {
    const Tensor full =
        screening(x.q, x.k, x.v, kWidthParameter, kAcceptParameter, {{.expand_beyond = expand}, /*gate=*/x.gate});
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      ScreeningState state = make_state({.expand_beyond = expand});
      expect_close(in_chunks(state, x, random_split(T, seed)), full);
      EXPECT_EQ(state.position(), T);
    }
    ScreeningState tokens = make_state({.expand_beyond = expand}), once = make_state({.expand_beyond = expand});
    expect_close(in_chunks(tokens, x, std::vector<int64_t>(T, 1)), full);
    expect_close(step(once, x), full);
  }
}

TEST(ScreeningState, AblationsAgreeWithTheOperator) {
  const Sequence x = random_sequence(200, 2);
  const ScreeningHeadOptions options = {.mipe_threshold = 90, .tanh_norm = false, .position = "none"};
  const Tensor full = screening(x.q, x.k, x.v, kWidthParameter, kAcceptParameter, {options, /*gate=*/x.gate});
  ScreeningState state = make_state(options);
  expect_close(in_chunks(state, x, random_split(200, 3)), full);
}

TEST(ScreeningState, BFloat16ProjectionsAreAccepted) {
  const Sequence x = random_sequence(150, 3, at::kBFloat16);
  const Tensor full = screening(x.q, x.k, x.v, kWidthParameter, kAcceptParameter, {.gate = x.gate});
  ScreeningState state = make_state();
  const Tensor found = in_chunks(state, x, random_split(150, 4));
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  EXPECT_LE(testing::largest(found.to(at::kFloat) - full.to(at::kFloat)), 0.01 * testing::largest(full));
}

TEST(ScreeningState, SeveralSequencesAtTheirOwnPositions) {
  const Sequence a = random_sequence(300, 4), b = random_sequence(300, 5);
  ScreeningState first = make_state(), second = make_state(), alone_a = make_state(), alone_b = make_state();
  step(first, a.slice(0, 117));
  step(alone_a, a.slice(0, 117));
  step(second, b.slice(0, 9));
  step(alone_b, b.slice(0, 9));
  const Sequence next_a = a.slice(117, 130), next_b = b.slice(9, 22);
  ScreeningState* const states[] = {&first, &second};
  const Tensor both = ScreeningState::step(states, at::cat({next_a.q, next_b.q}), at::cat({next_a.k, next_b.k}),
                                           at::cat({next_a.v, next_b.v}), at::cat({next_a.gate, next_b.gate}));
  EXPECT_TRUE(testing::same_bits(both.slice(0, 0, 1), step(alone_a, next_a)));
  EXPECT_TRUE(testing::same_bits(both.slice(0, 1, 2), step(alone_b, next_b)));
  EXPECT_EQ(first.position(), 130);
  EXPECT_EQ(second.position(), 22);
}

TEST(ScreeningState, ForkAndSavedCopyGoOnAlike) {
  const Sequence x = random_sequence(600, 6);
  ScreeningState state = make_state();
  step(state, x.slice(0, 333));
  ScreeningState fork = state.fork(), loaded = make_state();
  std::stringstream bytes;
  state.save(bytes);
  loaded.load(bytes);
  const Tensor expected = step(state, x.slice(333, 600));
  EXPECT_TRUE(testing::same_bits(expected, step(fork, x.slice(333, 600))));
  EXPECT_TRUE(testing::same_bits(expected, step(loaded, x.slice(333, 600))));
}

TEST(ScreeningState, DamagedBytesAreRefusedAndChangeNothing) {
  const Sequence x = random_sequence(100, 7);
  ScreeningState state = make_state();
  step(state, x.slice(0, 60));
  std::ostringstream saved;
  state.save(saved);
  const std::string good = saved.str();
  const auto expect_refused = [&](const std::string& bytes, const std::string& text) {
    std::istringstream in(bytes);
    testing::expect_throws<Error>([&] { state.load(in); }, text);
  };
  expect_refused("", "ends too early");
  expect_refused(good.substr(0, good.size() - 1), "ends too early");
  expect_refused("x" + good, "not a saved screening state");
  std::string heads = good, capacity = good;
  heads[8] = 3;
  capacity[8 + 32 + 5] = 1;
  expect_refused(heads, "expected 6 heads");
  expect_refused(capacity, "a head holds 48 keys");
  ScreeningState same = make_state();
  step(same, x.slice(0, 60));
  EXPECT_TRUE(testing::same_bits(step(state, x.slice(60, 100)), step(same, x.slice(60, 100))));
}

TEST(ScreeningState, ReservesWhatItSays) {
  // Windows of 8.4 tokens, of 1e41, infinite, and of 1e7: these need a softmask table from about 1,100 tokens on.
  const Tensor s_w = at::tensor({2.0f, 95.0f, 1e30f, 16.1f}), s_r = at::zeros({4});
  ScreeningState state(s_w, s_r, 4, 8);
  const auto read = [&state](int64_t tokens, uint64_t seed) {
    const auto rows = [&](int64_t width) { return testing::random_normal({1, tokens, 4, width}, seed); };
    state.step(rows(4), rows(4), rows(8));
  };
  for (const int64_t before : {0, 100, 1000}) {
    if (before > 0) read(before, 1);
    for (const int64_t tokens : {1, 50, 3000}) {
      const int64_t expected = state.bytes_after(tokens);
      ScreeningState reserved = state.fork();
      reserved.reserve(tokens);
      EXPECT_EQ(reserved.bytes(), expected) << before << " + " << tokens;
    }
  }
  state.reserve(3000);
  const int64_t reserved = state.bytes();
  read(3000, 2);
  read(1, 3);
  EXPECT_EQ(state.bytes(), reserved) << "a token after the reserved ones has room too";
}

TEST(ScreeningState, FiniteWindowsKeepABoundedStore) {
  const Tensor s_w = at::log(at::tensor({1.0f, 40.0f, 256.0f})), s_r = at::zeros({3});
  ScreeningState state(s_w, s_r, kK, kV);
  const auto tokens = [&](int64_t n, uint64_t seed) {
    state.step(testing::random_normal({1, n, 3, kK}, seed), testing::random_normal({1, n, 3, kK}, seed + 1),
               testing::random_normal({1, n, 3, kV}, seed + 2));
  };
  tokens(1000, 1);
  const int64_t bytes = state.bytes();
  for (int i = 0; i < 200; ++i) tokens(1, 10 + i);
  tokens(20'000, 2);
  EXPECT_EQ(state.bytes(), bytes);
  // ceil(w) keys per head, rounded up to whole tiles, and one block of queries.
  const int64_t keys = 2 + 41 + 257 + 3 * (2 * 16 + 32);
  EXPECT_LE(bytes, keys * (kK + 32 + 2) * 4 + 3 * 160 * 4);
}

TEST(ScreeningState, BadShapesAreNamed) {
  ScreeningState state = make_state();
  const Sequence x = random_sequence(3, 8);
  testing::expect_throws<c10::ValueError>([&] { state.step(x.q.slice(2, 0, 2), x.k, x.v, x.gate); },
                                          "q must have the shape");
  testing::expect_throws<c10::ValueError>([&] { state.step(x.q, x.k.slice(1, 0, 2), x.v, x.gate); },
                                          "k must have the shape");
  testing::expect_throws<c10::ValueError>([&] { state.step(x.q, x.k, x.v.to(at::kDouble), x.gate); },
                                          "v must be float32 or bfloat16");
  EXPECT_EQ(state.position(), 0);
  const at::Tensor scalars = at::zeros({2});
  testing::expect_throws<c10::ValueError>([&] { ScreeningState(scalars, scalars, 4, 3, {.trim_power = 1}); },
                                          "other shapes of Trim and Softmask need the state in plain torch");
}

}  // namespace
}  // namespace tamis::ops

// The decoding state of other devices, on the CPU.

#include "tamis/ops/screening/screening_blocked_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
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
using Projections = testing::StateInputs;

constexpr int64_t kDimK = 16, kDimV = 24;

// Windows of two groups, of infinity, and of 1e9 tokens, whose ring never fills. Not in the order of their lengths.
const Tensor kWindowScalars = at::log(at::tensor({255.0f, 1.0f, 1e30f, 16.3f, 99.0f, 1.5f, 1e9f, 62.0f}));
const Tensor kAcceptScalars = at::tensor({3.0f, 0.0f, 0.5f, 1.0f, 0.0f, 2.0f, 0.5f, 40.0f});

Projections random_projections(int64_t T, uint64_t seed, int64_t B = 1) {
  return testing::random_state_inputs(B, T, kWindowScalars.size(0), kDimK, kDimV, seed);
}

ScreeningBlockedState blocked_state(const ScreeningHeadOptions& options = {}) {
  return {kWindowScalars, kAcceptScalars, kDimK, kDimV, options, at::kCPU};
}

ScreeningState kernel_state(const ScreeningHeadOptions& options = {}) {
  return {kWindowScalars, kAcceptScalars, kDimK, kDimV, options};
}

template <typename State>
Tensor next(State& state, const Projections& x) {
  State* const states[] = {&state};
  return State::step(states, x.q, x.k, x.v, x.gate);
}

template <typename State>
Tensor in_pieces(State& state, const Projections& x, const std::vector<int64_t>& lengths) {
  return testing::in_pieces(x, lengths, [&](const Projections& part) { return next(state, part); });
}

/// Single tokens and chunks, some of which are longer than the rings.
std::vector<int64_t> mixed_lengths(int64_t total, uint64_t seed) {
  Random random{seed};
  std::vector<int64_t> lengths;
  while (total > 0) {
    const uint64_t limits[] = {1, 3, 120, 400};
    const uint64_t limit = limits[random.below(4)];
    lengths.push_back(std::min<int64_t>(total, 1 + static_cast<int64_t>(random.below(limit))));
    total -= lengths.back();
  }
  return lengths;
}

Tensor defined(const Projections& x, const ScreeningHeadOptions& options) {
  return reference::screening(x.q, x.k, x.v, kWindowScalars, kAcceptScalars, {options, /*gate=*/x.gate});
}

const std::vector<ScreeningHeadOptions> kStateOptions = {{},
                                                         {.expand_beyond = 50.0},
                                                         {.mipe_threshold = 90, .tanh_norm = false},
                                                         {.position = "none"},
                                                         {.trim_power = 1, .softmask = "linear"},
                                                         {.trim_power = 3, .softmask = "none"}};

TEST(ScreeningBlockedState, FullIsChunkedIsTokenByToken) {
  const int64_t T = 700;
  const Projections x = random_projections(T, 1);
  for (const ScreeningHeadOptions& options : kStateOptions) {
    SCOPED_TRACE(::testing::Message() << "expanded " << options.expand_beyond.has_value() << ", TanhNorm "
                                      << options.tanh_norm << ", position " << options.position);
    const Tensor exact = defined(x.to(at::kDouble), options), plain = defined(x, options);
    std::vector<std::vector<int64_t>> splits = {{T}, std::vector<int64_t>(T, 1)};
    for (uint64_t seed = 1; seed <= 4; ++seed) splits.push_back(mixed_lengths(T, seed));
    for (const std::vector<int64_t>& lengths : splits) {
      SCOPED_TRACE(::testing::Message() << lengths.size() << " chunks");
      ScreeningBlockedState state = blocked_state(options);
      testing::expect_error_within(2.0, {in_pieces(state, x, lengths)}, {plain}, {exact});
      EXPECT_EQ(state.position(), T);
    }
  }
}

TEST(ScreeningBlockedState, HalfPrecisionIsAsAccurateAsPlainTorch) {
  const int64_t T = 300;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Projections x = random_projections(T, 3).to(dtype);
    const Tensor exact = defined(x.to(at::kDouble), {}), plain = defined(x.to(at::kFloat), {}).to(dtype);
    for (const auto& lengths : {std::vector<int64_t>(T, 1), mixed_lengths(T, 5)}) {
      ScreeningBlockedState state = blocked_state();
      const Tensor found = in_pieces(state, x, lengths);
      EXPECT_EQ(found.scalar_type(), dtype);
      testing::expect_error_within(2.0, {found}, {plain}, {exact});
    }
  }
}

TEST(ScreeningBlockedState, WithoutAGateAndWithAdjacentHeads) {
  const Projections x = random_projections(200, 2);
  const Tensor s_w = std::get<0>(kWindowScalars.sort());
  ScreeningBlockedState state(s_w, kAcceptScalars, kDimK, kDimV, {}, at::kCPU);
  ScreeningBlockedState* const states[] = {&state};
  std::vector<Tensor> parts;
  for (int64_t t = 0; t < 200; ++t) {
    const Projections token = x.slice(t, t + 1);
    parts.push_back(ScreeningBlockedState::step(states, token.q, token.k, token.v));
  }
  const Tensor full = screening(x.q, x.k, x.v, s_w, kAcceptScalars);
  EXPECT_LE(testing::largest(at::cat(parts, 1) - full), 1e-5 * testing::largest(full));
}

TEST(ScreeningBlockedState, SeveralSequencesAtTheirOwnPositions) {
  const Projections x = random_projections(300, 4, /*B=*/2);
  const auto row = [&](int64_t b, int64_t first, int64_t last) {
    const Projections part = x.slice(first, last);
    return Projections{part.q.narrow(0, b, 1), part.k.narrow(0, b, 1), part.v.narrow(0, b, 1),
                       part.gate.narrow(0, b, 1)};
  };
  for (const int64_t tokens : {1, 13}) {
    ScreeningBlockedState first = blocked_state(), second = blocked_state();
    next(first, row(0, 0, 117));
    next(second, row(1, 0, 9));
    ScreeningBlockedState alone_first = first.fork(), alone_second = second.fork();
    const Projections a = row(0, 117, 117 + tokens), b = row(1, 9, 9 + tokens);
    ScreeningBlockedState* const states[] = {&first, &second};
    const Tensor both = ScreeningBlockedState::step(states, at::cat({a.q, b.q}), at::cat({a.k, b.k}),
                                                    at::cat({a.v, b.v}), at::cat({a.gate, b.gate}));
    const Tensor alone = at::cat({next(alone_first, a), next(alone_second, b)});
    EXPECT_LE(testing::largest(both - alone), 1e-6 * testing::largest(alone));
    EXPECT_EQ(first.position(), 117 + tokens);
    EXPECT_EQ(second.position(), 9 + tokens);
  }
}

TEST(ScreeningBlockedState, ForksAndSavedCopiesGoOnAlike) {
  const Projections x = random_projections(600, 6);
  for (const int64_t seen : {0, 40, 333}) {
    ScreeningBlockedState state = blocked_state(), loaded = blocked_state();
    if (seen > 0) next(state, x.slice(0, seen));
    next(loaded, x.slice(5, 9));  // is forgotten
    ScreeningBlockedState fork = state.fork();
    std::stringstream bytes;
    state.save(bytes);
    loaded.load(bytes);
    EXPECT_EQ(loaded.position(), seen);
    const std::vector<int64_t> lengths = mixed_lengths(600 - seen, 7);
    const Tensor expected = in_pieces(state, x.slice(seen, 600), lengths);
    EXPECT_TRUE(testing::same_bits(expected, in_pieces(fork, x.slice(seen, 600), lengths)));
    const Tensor of_loaded = in_pieces(loaded, x.slice(seen, 600), lengths);
    EXPECT_LE(testing::largest(of_loaded - expected), 1e-6 * testing::largest(expected)) << seen;
  }
}

TEST(ScreeningBlockedState, SharesSavedStatesWithTheKernels) {
  const Projections x = random_projections(600, 8);
  const ScreeningHeadOptions options = {.expand_beyond = 200.0};
  const Tensor full = defined(x, options);
  for (const int64_t seen : {0, 1, 50, 333}) {
    ScreeningState kernels = kernel_state(options), kernels_again = kernel_state(options);
    ScreeningBlockedState blocked = blocked_state(options), blocked_again = blocked_state(options);
    if (seen > 0) {
      next(kernels, x.slice(0, seen));
      next(blocked, x.slice(0, seen));
    }
    std::stringstream of_kernels, of_blocked;
    kernels.save(of_kernels);
    blocked.save(of_blocked);
    EXPECT_EQ(of_kernels.str().size(), of_blocked.str().size());
    kernels_again.load(of_blocked);
    blocked_again.load(of_kernels);
    const Projections rest = x.slice(seen, 600);
    const auto lengths = mixed_lengths(600 - seen, 9);
    const Tensor expected = full.slice(1, seen);
    EXPECT_LE(testing::largest(in_pieces(kernels_again, rest, lengths) - expected), 1e-5 * testing::largest(full));
    EXPECT_LE(testing::largest(in_pieces(blocked_again, rest, lengths) - expected), 1e-5 * testing::largest(full));
  }
}

TEST(ScreeningBlockedState, DamagedBytesAreRefusedAndChangeNothing) {
  const Projections x = random_projections(100, 7);
  ScreeningBlockedState state = blocked_state(), same = blocked_state();
  next(state, x.slice(0, 60));
  next(same, x.slice(0, 60));
  std::ostringstream saved;
  state.save(saved);
  const std::string good = saved.str();
  for (const auto& [bytes, text] : {std::pair<std::string, const char*>{"", "ends too early"},
                                    {good.substr(0, good.size() - 1), "ends too early"},
                                    {"x" + good, "not a saved screening state"}}) {
    std::istringstream in(bytes);
    testing::expect_throws<Error>([&] { state.load(in); }, text);
  }
  EXPECT_TRUE(testing::same_bits(next(state, x.slice(60, 100)), next(same, x.slice(60, 100))));
}

TEST(ScreeningBlockedState, MemoryIsWhatItSaysAndBoundedByFiniteWindows) {
  const auto peak_and_bytes = [](const Tensor& s_w, int64_t tokens) {
    ScreeningBlockedState state(s_w, at::zeros({3}), kDimK, kDimV, {}, at::kCPU);
    const int64_t expected = state.bytes_after(tokens);
    state.reserve(tokens);
    EXPECT_EQ(state.bytes(), expected);
    ScreeningBlockedState* const states[] = {&state};
    const auto rows = [&](int64_t count, int64_t width) { return testing::random_normal({1, count, 3, width}, 1); };
    ScreeningBlockedState::step(states, rows(tokens - 1, kDimK), rows(tokens - 1, kDimK), rows(tokens - 1, kDimV));
    ScreeningBlockedState::step(states, rows(1, kDimK), rows(1, kDimK), rows(1, kDimV));
    EXPECT_EQ(state.bytes(), expected);
    return expected;
  };
  const Tensor finite = at::log(at::tensor({1.0f, 40.0f, 256.0f})),
               infinite = at::log(at::tensor({1.0f, 40.0f, 1e30f}));
  const int64_t at_1k = peak_and_bytes(finite, 1000);
  EXPECT_EQ(peak_and_bytes(finite, 5000), at_1k);
  // ceil(w) keys of the longest window in each of two groups, and two numbers of the softmask.
  EXPECT_LE(at_1k, (2 * 42 + 258) * (kDimK + kDimV + 2) * 4);
  EXPECT_GT(peak_and_bytes(infinite, 5000), peak_and_bytes(infinite, 1000) + 4000 * (kDimK + kDimV) * 4 - 1);
}

TEST(ScreeningBlockedState, KeysBeforeEveryWindowAreNotKept) {
  Projections x = random_projections(400, 8);
  const Tensor s_w = at::full({8}, std::log(20.0f));
  ScreeningBlockedState state(s_w, kAcceptScalars, kDimK, kDimV, {}, at::kCPU);
  for (const Tensor& part : {x.k, x.v}) part.slice(1, 0, 300).fill_(std::numeric_limits<double>::quiet_NaN());
  std::vector<int64_t> lengths = {17, 283};
  lengths.insert(lengths.end(), 50, 1);
  lengths.push_back(50);
  const Tensor found = in_pieces(state, x, lengths);
  EXPECT_FALSE(found.slice(1, 299, 300).isfinite().all().item<bool>());
  EXPECT_TRUE(found.slice(1, 321).isfinite().all().item<bool>());
}

TEST(ScreeningBlockedState, BadShapesAreNamed) {
  ScreeningBlockedState state = blocked_state();
  ScreeningBlockedState* const states[] = {&state};
  const Projections x = random_projections(3, 8);
  const auto expect_named = [&](const Projections& bad, const char* text) {
    testing::expect_throws<c10::ValueError>([&] { ScreeningBlockedState::step(states, bad.q, bad.k, bad.v, bad.gate); },
                                            text);
  };
  expect_named({x.q.slice(2, 0, 2), x.k, x.v, x.gate}, "q must have the shape");
  expect_named({x.q, x.k.slice(1, 0, 2), x.v, x.gate}, "k must have the shape");
  expect_named({x.q, x.k, x.v.to(at::kMeta), x.gate}, "v must be on cpu, but is on meta");
  EXPECT_EQ(state.position(), 0);
}

}  // namespace
}  // namespace tamis::ops

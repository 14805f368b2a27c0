#include "tamis/models/multiscreen_token.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tamis/kernels/matvec.h"
#include "tamis/models/testing.h"
#include "tamis/ops/testing.h"

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

// All of this program's allocations are counted, those of the libraries included.
void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {  // of std::stable_sort
  ++allocations;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace tamis::models {
namespace {

using at::Tensor;
using testing::random_tokens;

struct Format {
  const char* name;
  ForwardOptions options;
};

void PrintTo(const Format& format, std::ostream* out) {
  *out << format.name;
}

std::unique_ptr<Model> small_model(const nlohmann::json& change = nlohmann::json::object()) {
  auto model = make_model(testing::small_config(change), 3);
  testing::disturb(*model);
  return model;
}

using States = std::vector<std::unique_ptr<DecodingState>>;

/// New states, the b-th having read 3 b tokens.
States staggered_states(const Model& model, int64_t count, const ForwardOptions& options) {
  States states;
  for (int64_t b = 0; b < count; ++b) {
    states.push_back(model.new_state(options));
    DecodingState* const one[] = {states.back().get()};
    if (b > 0) model.decode(random_tokens(1, 3 * b, model.vocab_size(), static_cast<uint64_t>(b)), one);
  }
  return states;
}

/// x after each token of tokens_BT, token by token.
Tensor by_token(const Model& model, const States& states, const Tensor& tokens_BT) {
  std::vector<DecodingState*> pointers;
  for (const auto& state : states) pointers.push_back(state.get());
  std::vector<Tensor> parts;
  for (const Tensor& token : tokens_BT.split(1, 1)) parts.push_back(model.decode(token.contiguous(), pointers));
  return at::cat(parts, 1);
}

class TokenByToken : public ::testing::TestWithParam<Format> {};

TEST_P(TokenByToken, IsTheChunkWithinTheFormatsRounding) {
  const ForwardOptions& options = GetParam().options;
  for (const auto& change : {nlohmann::json::object(), nlohmann::json{{"gate", false}}}) {
    const auto model = small_model(change);
    const Tensor tokens = random_tokens(1, 120, model->vocab_size(), 1);
    const States whole = staggered_states(*model, 1, options);
    DecodingState* const one[] = {whole[0].get()};
    const Tensor chunk = model->decode(tokens, one);
    const Tensor steps = by_token(*model, staggered_states(*model, 1, options), tokens);
    const double tolerance = options.compute_dtype == at::kBFloat16 ? 0.02 : options.int8_weights ? 1e-4 : 1e-5;
    EXPECT_LT((chunk - steps).abs().max().item<double>(), tolerance * chunk.abs().max().item<double>());
  }
}

TEST_P(TokenByToken, HasTheSameBitsForAnyNumberOfThreadsAndSequences) {
  const ForwardOptions& options = GetParam().options;
  const auto model = small_model();
  const Tensor tokens_BT = random_tokens(8, 40, model->vocab_size(), 1);
  const States start = staggered_states(*model, 8, options);
  const auto found = [&](int64_t first, int64_t count) {
    States forks;
    for (int64_t b = first; b < first + count; ++b) forks.push_back(start[b]->fork());
    return by_token(*model, forks, tokens_BT.narrow(0, first, count).contiguous());
  };
  std::vector<Tensor> alone;
  for (int64_t b = 0; b < 8; ++b) alone.push_back(found(b, 1));
  for (const int threads : {1, 2, 5}) {
    const ops::testing::Threads set(threads);
    for (const int64_t count : {1, 2, 3, 8}) {
      const Tensor together = found(0, count);
      for (int64_t b = 0; b < count; ++b) {
        EXPECT_TRUE(together.narrow(0, b, 1).equal(alone[b])) << threads << " threads, " << b << " of " << count;
      }
    }
  }
}

TEST_P(TokenByToken, AllocatesNothing) {
  const auto model = small_model();
  const auto config = read_multiscreen_config(model->config());
  const States states = staggered_states(*model, 2, GetParam().options);
  std::vector<MultiscreenState*> sequences;
  for (const auto& state : states) sequences.push_back(dynamic_cast<MultiscreenState*>(state.get()));
  std::vector<float> x_BD(2 * config.hidden_size, 0.3f);
  const auto tokens = [&](int count) {
    for (int i = 0; i < count; ++i) decode_token(config, sequences, x_BD.data());
  };
  tokens(600);  // windows are full, threads and scratch memory are there
  const int64_t before = allocations;
  tokens(50);
  EXPECT_EQ(allocations, before);
}

INSTANTIATE_TEST_SUITE_P(Formats, TokenByToken,
                         ::testing::Values(Format{"float32", {}}, Format{"bfloat16", {.compute_dtype = at::kBFloat16}},
                                           Format{"int8", {.int8_weights = true}}));

TEST(TokenByToken, Int8WeightsAreNearFloat32) {
  const auto model = small_model();
  const Tensor tokens = random_tokens(1, 100, model->vocab_size(), 1);
  const at::NoGradGuard no_grad;
  const Tensor exact = model->hidden(tokens, {});
  const Tensor found = by_token(*model, staggered_states(*model, 1, {.int8_weights = true}), tokens);
  EXPECT_LT((found - exact).norm().item<double>(), 0.03 * exact.norm().item<double>());
}

TEST_P(TokenByToken, ManySequencesAreAsFewWithinTheFormatsRounding) {
  const ForwardOptions& options = GetParam().options;
  const auto model = small_model();
  const int64_t many = kernels::kMostVectors + 3;
  const Tensor tokens_BT = random_tokens(many, 20, model->vocab_size(), 1);
  const Tensor few = by_token(*model, staggered_states(*model, 4, options), tokens_BT.narrow(0, 0, 4).contiguous());
  const double tolerance = options.compute_dtype == at::kBFloat16 ? 0.02 : options.int8_weights ? 1e-4 : 1e-5;
  for (const int64_t count : {int64_t{9}, int64_t{33}, many}) {
    const States states = staggered_states(*model, count, options);
    const Tensor found = by_token(*model, states, tokens_BT.narrow(0, 0, count).contiguous());
    EXPECT_LT((found.narrow(0, 0, 4) - few).abs().max().item<double>(), tolerance * few.abs().max().item<double>());
  }
}

TEST_P(TokenByToken, ManyHaveTheSameBitsForAnyNumberOfThreadsAndSequences) {
  const ForwardOptions& options = GetParam().options;
  const auto model = small_model();
  const Tensor tokens_BT = random_tokens(20, 20, model->vocab_size(), 1);
  const States start = staggered_states(*model, 20, options);  // read by products whose bits depend on the threads
  const auto found = [&](int64_t count) {
    States forks;
    for (int64_t b = 0; b < count; ++b) forks.push_back(start[b]->fork());
    return by_token(*model, forks, tokens_BT.narrow(0, 0, count).contiguous());
  };
  const Tensor all = found(20);
  for (const int threads : {1, 2, 5}) {
    const ops::testing::Threads set(threads);
    EXPECT_TRUE(found(20).equal(all));
    EXPECT_TRUE(found(9).equal(all.narrow(0, 0, 9)));
  }
}

}  // namespace
}  // namespace tamis::models

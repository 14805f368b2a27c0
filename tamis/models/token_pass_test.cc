// decode_token of every kind of layer, through Model::decode.

#include "tamis/models/token_pass.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "tamis/base/error.h"
#include "tamis/kernels/matvec.h"
#include "tamis/models/sequence_state.h"
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

nlohmann::json mixture_config(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", "transformer"},
                           {"vocab_size", 37},
                           {"hidden_size", 64},
                           {"num_hidden_layers", 7},
                           {"num_attention_heads", 4},
                           {"pattern", "awebvms"},
                           {"window", 9},
                           {"mlstm_heads", 2},
                           {"qk_norm", true},
                           {"intermediate_size", 100},
                           {"ssmax", "learned"},
                           {"max_position_embeddings", 32}};
  config.update(change);
  return complete_config(config);
}

/// Without entmax and Sieve: what they select jumps when a matrix is rounded.
nlohmann::json smooth_mixture_config(const nlohmann::json& change) {
  nlohmann::json all = {{"pattern", "awbms"}, {"num_hidden_layers", 5}};
  all.update(change);
  return mixture_config(all);
}

/// One model in one format of weights.
struct Case {
  const char* name;
  nlohmann::json (*config)(const nlohmann::json& change);
  ForwardOptions options;

  /// By how much results may differ, as a share of the largest, whose products are rounded elsewhere: bfloat16
  /// activations of chunks to 2^-9, those of int8 to 2^-16. A layer with an MLP has four products, not two, and a gate
  /// between them.
  double tolerance() const {
    const double products = config == testing::small_config ? 1 : 4;
    return products * (options.compute_dtype == at::kBFloat16 ? 0.02 : options.int8_weights ? 1e-4 : 1e-5);
  }
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

std::unique_ptr<Model> make_small(const Case& one, const nlohmann::json& change = nlohmann::json::object()) {
  auto model = make_model(one.config(change), 3);
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

/// Decodes the x of its sequences without a tensor, a token at each call.
std::function<void(float* x_BD)> bare_step(const States& states) {
  std::vector<SequenceState*> own;
  for (const auto& state : states) own.push_back(dynamic_cast<SequenceState*>(state.get()));
  return [own](float* x_BD) { decode_token(own, x_BD); };
}

class TokenByToken : public ::testing::TestWithParam<Case> {};

TEST_P(TokenByToken, IsTheChunkWithinTheFormatsRounding) {
  const ForwardOptions& options = GetParam().options;
  const auto model = make_small(GetParam());
  const Tensor tokens = random_tokens(1, 120, model->vocab_size(), 1);
  const States whole = staggered_states(*model, 1, options);
  DecodingState* const one[] = {whole[0].get()};
  const Tensor chunk = model->decode(tokens, one);
  const Tensor steps = by_token(*model, staggered_states(*model, 1, options), tokens);
  EXPECT_LT((chunk - steps).abs().max().item<double>(), GetParam().tolerance() * chunk.abs().max().item<double>());
}

TEST_P(TokenByToken, HasTheSameBitsForAnyNumberOfThreadsAndSequences) {
  const ForwardOptions& options = GetParam().options;
  const auto model = make_small(GetParam());
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
  const auto model = make_small(GetParam());
  const States states = staggered_states(*model, 2, GetParam().options);
  for (const auto& state : states) state->reserve(700);
  const auto step = bare_step(states);
  std::vector<float> x_BD(2 * model->hidden_size(), 0.3f);
  for (int i = 0; i < 600; ++i) step(x_BD.data());  // windows are full, threads and scratch memory are there
  const int64_t before = allocations;
  for (int i = 0; i < 50; ++i) step(x_BD.data());
  EXPECT_EQ(allocations, before);
}

TEST_P(TokenByToken, IsNearFloat32) {
  const auto model = make_small(GetParam());
  const Tensor tokens = random_tokens(1, 100, model->vocab_size(), 1);
  const at::NoGradGuard no_grad;
  const Tensor exact = model->hidden(tokens, {});
  const Tensor found = by_token(*model, staggered_states(*model, 1, GetParam().options), tokens);
  const double share = GetParam().config == testing::small_config ? 0.03 : 0.06;  // of rounding every weight to int8
  EXPECT_LT((found - exact).norm().item<double>(), share * exact.norm().item<double>());
}

TEST_P(TokenByToken, ManySequencesAreAsFewWithinTheFormatsRounding) {
  const ForwardOptions& options = GetParam().options;
  const auto model = make_small(GetParam());
  const int64_t many = kernels::kMostVectors + 3;
  const Tensor tokens_BT = random_tokens(many, 20, model->vocab_size(), 1);
  for (const int64_t count : {int64_t{9}, int64_t{33}, many}) {
    const States states = staggered_states(*model, count, options);
    const auto decoded = [&](int64_t first, int64_t sequences) {
      States forks;
      for (int64_t b = first; b < first + sequences; ++b) forks.push_back(states[b]->fork());
      return by_token(*model, forks, tokens_BT.narrow(0, first, sequences).contiguous());
    };
    const Tensor all = decoded(0, count);
    for (const int64_t first : {int64_t{0}, count - 4}) {  // of the first group and of the last
      const Tensor few = decoded(first, 4), found = all.narrow(0, first, 4);
      EXPECT_LT((found - few).abs().max().item<double>(), GetParam().tolerance() * few.abs().max().item<double>());
    }
  }
}

TEST_P(TokenByToken, ManyHaveTheSameBitsForAnyNumberOfThreadsAndSequences) {
  const ForwardOptions& options = GetParam().options;
  const auto model = make_small(GetParam());
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

TEST_P(TokenByToken, ThreadsMayDecodeAtOnceEachItsOwn) {
  const auto model = make_small(GetParam());
  const Tensor tokens = random_tokens(1, 60, model->vocab_size(), 1);
  const Tensor expected = by_token(*model, staggered_states(*model, 1, GetParam().options), tokens);
  std::vector<Tensor> found(3);
  std::vector<std::thread> threads;
  for (Tensor& own : found) {
    threads.emplace_back([&] { own = by_token(*model, staggered_states(*model, 1, GetParam().options), tokens); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& own : found) EXPECT_TRUE(own.equal(expected));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, TokenByToken,
    ::testing::Values(Case{"multiscreen, float32", testing::small_config, {}},
                      Case{"multiscreen, bfloat16", testing::small_config, {.compute_dtype = at::kBFloat16}},
                      Case{"multiscreen, int8", testing::small_config, {.int8_weights = true}},
                      Case{"mixture, float32", mixture_config, {}},
                      Case{"mixture, bfloat16", smooth_mixture_config, {.compute_dtype = at::kBFloat16}},
                      Case{"mixture, int8", smooth_mixture_config, {.int8_weights = true}}));

TEST(TokenByTokenOfAMultiscreen, MayHaveNoGate) {
  const Case one{"multiscreen", testing::small_config, {}};
  const auto model = make_small(one, {{"gate", false}});
  const Tensor tokens = random_tokens(1, 120, model->vocab_size(), 1);
  const at::NoGradGuard no_grad;
  const Tensor whole = model->hidden(tokens, {});
  const Tensor steps = by_token(*model, staggered_states(*model, 1, {}), tokens);
  EXPECT_LT((whole - steps).abs().max().item<double>(), 1e-5 * whole.abs().max().item<double>());
}

TEST(TokenByTokenOfAMixture, IsTheModelForEveryVariant) {
  for (const nlohmann::json& change :
       {nlohmann::json{{"ssmax", "bias"}}, nlohmann::json{{"ssmax", "one"}, {"qk_norm", false}},
        nlohmann::json{{"ssmax", "fixed"}}, nlohmann::json{{"ssmax", "position"}}, nlohmann::json{{"mlp", "gelu"}},
        nlohmann::json{{"position", "none"}, {"num_attention_heads", 16}},
        nlohmann::json{{"rope_factor", 4}, {"alpha", 1.25}}, nlohmann::json{{"window", 1}},
        nlohmann::json{{"window", 70}, {"num_attention_heads", 2}}}) {
    const Case one{"mixture", mixture_config, {}};
    const auto model = make_small(one, change);
    const Tensor tokens = random_tokens(1, 200, model->vocab_size(), 1);
    const at::NoGradGuard no_grad;
    const Tensor whole = model->hidden(tokens, {});
    const Tensor steps = by_token(*model, staggered_states(*model, 1, {}), tokens);
    EXPECT_LT((whole - steps).abs().max().item<double>(), 1e-5 * whole.abs().max().item<double>()) << change;
  }
}

TEST(TokenByTokenOfAnyModel, RefusesTheStatesOfAnotherOne) {
  for (const Case& one : {Case{"mixture", mixture_config, {}}, Case{"multiscreen", testing::small_config, {}}}) {
    const auto model = make_small(one), other = make_small(one);
    const auto state = other->new_state({});
    DecodingState* pointer = state.get();
    for (const int64_t tokens : {1, 3}) {
      EXPECT_THROW(model->decode(random_tokens(1, tokens, model->vocab_size(), 1), std::span(&pointer, 1)), Error);
      EXPECT_EQ(state->position(), 0);
    }
  }
}

}  // namespace
}  // namespace tamis::models

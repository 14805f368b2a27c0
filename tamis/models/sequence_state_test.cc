#include "tamis/models/sequence_state.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/models/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using nlohmann::json;
using testing::decode;
using testing::disturb;
using testing::expect_near;
using ::testing::HasSubstr;
using testing::random_tokens;
using testing::small_config;

std::unique_ptr<Model> disturbed_model(const json& change = json::object()) {
  auto model = make_model(small_config(change), 3);
  disturb(*model);
  return model;
}

Tensor hidden(const Model& model, const Tensor& tokens_T, const ForwardOptions& options = {}) {
  const at::NoGradGuard no_grad;
  return model.hidden(tokens_T.unsqueeze(0), options)[0];
}

/// tokens_T in chunks of random lengths, single tokens among them.
Tensor in_random_chunks(const Model& model, DecodingState& state, const Tensor& tokens_T, Random& random) {
  std::vector<Tensor> parts;
  for (int64_t at = 0; at < tokens_T.size(0);) {
    const uint64_t most = random.below(2) == 0 ? 1 : 70;
    const int64_t length = std::min<int64_t>(tokens_T.size(0) - at, 1 + static_cast<int64_t>(random.below(most)));
    parts.push_back(decode(model, state, tokens_T.narrow(0, at, length)));
    at += length;
  }
  return at::cat(parts);
}

class Decoding : public ::testing::TestWithParam<json> {};

TEST_P(Decoding, FullIsChunkedIsTokenByToken) {
  const auto model = disturbed_model(GetParam());
  const Tensor tokens = random_tokens(1, 400, model->vocab_size(), 1)[0];
  Random random({7});
  for (const bool expand : {false, true}) {
    const ForwardOptions options = {.expand_windows = expand};
    const Tensor full = hidden(*model, tokens, options);
    const auto whole = model->new_state(options);
    expect_near(decode(*model, *whole, tokens), full);
    EXPECT_EQ(whole->position(), 400);
    for (int split = 0; split < 4; ++split) {
      const auto state = model->new_state(options);
      expect_near(in_random_chunks(*model, *state, tokens, random), full);
    }
    const auto steps = model->new_state(options);
    std::vector<Tensor> parts;
    for (int64_t t = 0; t < 100; ++t) parts.push_back(decode(*model, *steps, tokens.narrow(0, t, 1)));
    expect_near(at::cat(parts), full.slice(0, 0, 100));
  }
}

INSTANTIATE_TEST_SUITE_P(Multiscreen, Decoding,
                         ::testing::Values(json::object(), json{{"position", "none"}}, json{{"tanh_norm", false}},
                                           json{{"gate", false}}, json{{"fixed_r", 1.0}}, json{{"position", "rope"}},
                                           json{{"trim_power", 3}, {"softmask", "linear"}}));

TEST(Decoding, Bfloat16IsNearItsForwardPass) {
  const auto model = disturbed_model();
  const Tensor tokens = random_tokens(1, 200, model->vocab_size(), 1)[0];
  const ForwardOptions options = {.compute_dtype = at::kBFloat16};
  const auto state = model->new_state(options);
  Random random({7});
  const Tensor found = in_random_chunks(*model, *state, tokens, random);
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  expect_near(found, hidden(*model, tokens, options), 0.02);
}

TEST(Decoding, SeveralSequencesAtTheirOwnPositions) {
  const auto model = disturbed_model();
  const Tensor tokens_BT = random_tokens(3, 150, model->vocab_size(), 2);
  const int64_t seen[] = {0, 1, 77};
  std::vector<std::unique_ptr<DecodingState>> owned;
  std::vector<DecodingState*> states;
  std::vector<Tensor> rest;
  for (int64_t b = 0; b < 3; ++b) {
    owned.push_back(model->new_state({}));
    states.push_back(owned.back().get());
    if (seen[b] > 0) decode(*model, *states[b], tokens_BT[b].slice(0, 0, seen[b]));
    rest.push_back(tokens_BT[b].narrow(0, seen[b], 60));
  }
  const Tensor tokens_BC = at::stack(rest);
  for (const auto& [first, length] : {std::pair<int64_t, int64_t>{0, 37}, {37, 1}, {38, 22}}) {
    const Tensor x = model->decode(tokens_BC.narrow(1, first, length), states);
    for (int64_t b = 0; b < 3; ++b) {
      expect_near(x[b], hidden(*model, tokens_BT[b]).narrow(0, seen[b] + first, length));
      EXPECT_EQ(states[b]->position(), seen[b] + first + length);
    }
  }
}

TEST(Decoding, ForksGoTheirOwnWays) {
  const auto model = disturbed_model();
  const Tensor tokens = random_tokens(1, 90, model->vocab_size(), 2)[0];
  const auto trunk = model->new_state({.expand_windows = true});
  decode(*model, *trunk, tokens.slice(0, 0, 50));
  const auto branch = trunk->fork();
  EXPECT_EQ(branch->position(), 50);
  const Tensor other = at::cat({tokens.slice(0, 0, 50), tokens.slice(0, 50, 90).flip(0)});
  const Tensor of_branch = decode(*model, *branch, other.slice(0, 50));
  const Tensor of_trunk = decode(*model, *trunk, tokens.slice(0, 50));
  expect_near(of_trunk, hidden(*model, tokens, {.expand_windows = true}).slice(0, 50));
  expect_near(of_branch, hidden(*model, other, {.expand_windows = true}).slice(0, 50));
}

TEST(Decoding, ASavedStateGoesOnWithTheSameBits) {
  const auto model = disturbed_model();
  const Tensor tokens = random_tokens(1, 130, model->vocab_size(), 2)[0];
  for (const bool expand : {false, true}) {
    const auto state = model->new_state({.expand_windows = expand});
    decode(*model, *state, tokens.slice(0, 0, 101));
    std::stringstream bytes;
    state->save(bytes);
    bytes << "what follows";
    const auto loaded = model->new_state({.expand_windows = expand});
    loaded->load(bytes);
    EXPECT_EQ(loaded->position(), 101);
    EXPECT_TRUE(decode(*model, *loaded, tokens.slice(0, 101)).equal(decode(*model, *state, tokens.slice(0, 101))));
    std::string rest;
    std::getline(bytes, rest);
    EXPECT_EQ(rest, "what follows");
  }
}

TEST(Decoding, RefusesAStateOfAnotherModelOrADamagedOne) {
  const auto model = disturbed_model();
  const Tensor tokens = random_tokens(1, 40, model->vocab_size(), 2)[0];
  const auto state = model->new_state({});
  decode(*model, *state, tokens);
  std::stringstream saved;
  state->save(saved);
  const std::string bytes = saved.str();
  const auto refusal = [&](DecodingState& target, const std::string& content) {
    std::istringstream in(content);
    try {
      target.load(in);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto other = disturbed_model({{"key_dim", 8}});
  EXPECT_THAT(refusal(*other->new_state({}), bytes), HasSubstr("decoding state: expected one of this model"));
  EXPECT_THAT(refusal(*model->new_state({.expand_windows = true}), bytes), HasSubstr("expanded windows"));
  const auto target = model->new_state({});
  decode(*model, *target, tokens.slice(0, 0, 9));
  for (size_t length = 0; length < bytes.size(); length += 97) {
    EXPECT_NE(refusal(*target, bytes.substr(0, length)), "accepted") << length;
  }
  EXPECT_EQ(target->position(), 9) << "a refused load changes nothing";
  expect_near(decode(*model, *target, tokens.slice(0, 9)), hidden(*model, tokens).slice(0, 9));
}

TEST(Decoding, MemoryIsFlatWithFiniteWindows) {
  const auto model = make_model(small_config(), 3);  // windows up to 256 tokens
  const auto state = model->new_state({});
  const Tensor tokens = random_tokens(1, 4096, model->vocab_size(), 2)[0];
  decode(*model, *state, tokens);
  const int64_t bytes = state->bytes();
  EXPECT_GT(bytes, 0);
  for (int round = 0; round < 8; ++round) decode(*model, *state, tokens);
  for (int64_t t = 0; t < 40; ++t) decode(*model, *state, tokens.narrow(0, t, 1));
  EXPECT_EQ(state->bytes(), bytes);
  EXPECT_EQ(state->position(), 9 * 4096 + 40);

  const auto growing = model->new_state({.expand_windows = true});
  decode(*model, *growing, tokens);
  const int64_t before = growing->bytes();
  EXPECT_GT(before, bytes);
  decode(*model, *growing, tokens);
  EXPECT_GT(growing->bytes(), before) << "an infinite window keeps every key";
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFreedMemoryStays = true;  // in quarantine, 256 MB of it
#else
constexpr bool kFreedMemoryStays = false;
#endif

TEST(Decoding, AMillionTokensTakeNoMemory) {
  const json config = {{"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"hidden_size", 8}};
  const auto model = make_model(small_config(config), 3);  // windows of 2 and 257 tokens
  const auto state = model->new_state({});
  const Tensor tokens = random_tokens(1, 2000, model->vocab_size(), 2)[0];
  const auto some_chunks_and_steps = [&] {
    decode(*model, *state, tokens);
    for (int64_t t = 0; t < 20; ++t) decode(*model, *state, tokens.narrow(0, t, 1));
  };
  for (int round = 0; round < 20; ++round) some_chunks_and_steps();
  const int64_t bytes = state->bytes(), resident = resident_bytes();
  while (state->position() < 1'000'000) some_chunks_and_steps();
  EXPECT_EQ(state->bytes(), bytes);
  const int64_t growth = resident_bytes() - resident;
  EXPECT_LT(growth, kFreedMemoryStays ? 256 << 20 : 2 << 20);
  const Tensor last = decode(*model, *state, tokens);
  // What a window no longer reaches leaves no trace, whatever the position.
  expect_near(last.slice(0, 256), hidden(*model, tokens).slice(0, 256));
}

TEST(Decoding, LivingStatesShareWeightsUntilTheyChange) {
  const auto model = disturbed_model();
  const Tensor tokens = random_tokens(1, 20, model->vocab_size(), 2)[0];
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const ForwardOptions options = {.compute_dtype = dtype};
    const auto weights = [](const DecodingState& state) { return dynamic_cast<const SequenceState&>(state).weights(); };
    auto first = model->new_state(options);
    const auto second = model->new_state(options);
    EXPECT_EQ(weights(*first), weights(*second));
    {
      const at::NoGradGuard no_grad;
      model->parameters()[4].tensor.mul_(1.5);
    }
    const auto third = model->new_state(options);
    EXPECT_NE(weights(*third), weights(*first));
    expect_near(decode(*model, *third, tokens), hidden(*model, tokens, options), 0.02);
    DecodingState* const mixed[] = {first.get(), third.get()};
    EXPECT_THROW(model->decode(at::stack({tokens, tokens}), mixed), Error);
  }
}

TEST(Decoding, ThreadsDecodeOnTheirOwn) {
  const auto model = disturbed_model();
  const Tensor tokens_BT = random_tokens(4, 120, model->vocab_size(), 2);
  std::vector<Tensor> found(4);
  std::vector<std::thread> threads;
  for (int64_t b = 0; b < 4; ++b) {
    threads.emplace_back([&, b] {
      Random random({static_cast<uint64_t>(b)});
      const auto state = model->new_state({});
      found[b] = in_random_chunks(*model, *state, tokens_BT[b], random);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t b = 0; b < 4; ++b) expect_near(found[b], hidden(*model, tokens_BT[b]));
}

TEST(Decoding, RefusesTokensWithoutAState) {
  const auto model = disturbed_model();
  const auto state = model->new_state({});
  DecodingState* const states[] = {state.get()};
  EXPECT_THROW(model->decode(random_tokens(2, 3, 37, 1), states), Error);
  EXPECT_THROW(model->decode(at::full({1, 1}, -1, at::kLong), states), Error);
  EXPECT_THROW(model->decode(at::empty({0, 3}, at::kLong), {}), Error);
  EXPECT_EQ(state->position(), 0);
}

}  // namespace
}  // namespace tamis::models

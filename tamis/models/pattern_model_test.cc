#include "tamis/models/pattern_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <tuple>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"
#include "tamis/models/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using nlohmann::json;
using testing::disturb;
using testing::named_doubles;
using testing::random_tokens;
using testing::small_model;

int64_t parameters_of(const json& config, bool with_embedding) {
  const ParameterCount count = count_parameters(complete_config(config));
  return with_embedding ? count.total : count.without_embedding;
}

json transformer(int64_t layers, int64_t heads, int64_t hidden) {
  return {{"model_type", "transformer"},
          {"vocab_size", 50257},
          {"hidden_size", hidden},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads}};
}

TEST(PatternModel, HasThePapersParameterCounts) {
  EXPECT_EQ(parameters_of(transformer(6, 4, 128), true), 7'613'312);
  EXPECT_EQ(parameters_of(transformer(6, 8, 512), true), 44'609'024);
  EXPECT_EQ(parameters_of(transformer(24, 16, 1024), true), 353'453'056);
  EXPECT_EQ(parameters_of(transformer(24, 16, 2048), true), 1'310'935'040);
  EXPECT_EQ(parameters_of(transformer(6, 4, 128), false), 1'180'416);
  EXPECT_EQ(parameters_of(transformer(24, 16, 2048), false), 1'208'008'704);
}

TEST(PatternModel, HasScalableSoftmaxsParameterCounts) {
  json config = transformer(12, 12, 768);
  config.update({{"intermediate_size", 2048}, {"tie_word_embeddings", false}, {"final_norm_weight", true}});
  EXPECT_EQ(parameters_of(config, true), 162'148'608);
  config["ssmax"] = "learned";
  EXPECT_EQ(parameters_of(config, true), 162'148'608 + 144);
  config["ssmax"] = "bias";
  EXPECT_EQ(parameters_of(config, true), 162'148'608 + 288);
}

/// "SWAX", table 1, 1.4B parameters. What the paper does not give is as its figures come out right: MLPs 8 D / 3 wide,
/// 2^17 tokens, four heads of mLSTM. Its columns for xLSTM and for pure windows are interchanged.
TEST(PatternModel, CostsWhatThePaperOfSwaxSays) {
  const auto flops = [](const std::string& pattern, int64_t window, int64_t length) {
    const json config = complete_config({{"model_type", "swax"},
                                         {"vocab_size", 1 << 17},
                                         {"hidden_size", 2048},
                                         {"num_hidden_layers", 24},
                                         {"num_attention_heads", 16},
                                         {"mlstm_heads", 4},
                                         {"pattern", pattern},
                                         {"window", window}});
    const auto model = make_model(config, Start{.seed = std::nullopt, .device = at::kMeta});
    return model->flops_per_token(length).executed(/*accepted_share=*/1);
  };
  constexpr int64_t kEndless = int64_t{1} << 40;  // the first tokens, which see less than a window, do not count
  for (const int64_t window : {128, 256, 512, 1024, 2048}) {
    const double paper = 2.9910e9 + 98'304.0 * static_cast<double>(window);
    EXPECT_NEAR(flops("wm", window, kEndless), paper, 1e-3 * paper) << window;
  }
  EXPECT_NEAR(flops("wm", 2048, kEndless) - flops("wm", 1024, kEndless), 98'304.0 * 1024, 1e3);
  EXPECT_NEAR(flops("a", 1, 2 * 16384 - 1), 6.174e9, 5e5) << "every token sees 16,384 keys, on the mean";
  EXPECT_NEAR(flops("m", 1, kEndless), 3.029e9, 5e5);
  EXPECT_NEAR(flops("w", 128, kEndless), 2.978e9, 5e5);
}

TEST(PatternModel, AStrictLayerDoesNotPayForTheOwnKey) {
  const auto similarities = [](const std::string& pattern, bool strict, int64_t length) {
    const json config = small_model({{"pattern", pattern}, {"window", 3}, {"strict", strict}});
    return make_model(config, 3)->flops_per_token(length).similarities;
  };
  const double of_a_key = similarities("a", false, 1);
  for (const auto& [pattern, keys, strict_keys] :
       {std::tuple{"a", 15, 10}, std::tuple{"v", 15, 10}, std::tuple{"w", 12, 9}}) {
    EXPECT_DOUBLE_EQ(similarities(pattern, false, 5), of_a_key * keys / 5) << pattern;
    EXPECT_DOUBLE_EQ(similarities(pattern, true, 5), of_a_key * strict_keys / 5) << pattern;
    EXPECT_EQ(similarities(pattern, true, 1), 0) << pattern;
  }
}

TEST(PatternModel, WhatIsLearnedOfScalableSoftmaxBeginsAsAsked) {
  const auto scale = [](const json& change) {
    return named_doubles(*make_model(small_model(change), 3)).at("layers.1.log_scale").min().item<double>();
  };
  EXPECT_EQ(scale({{"ssmax", "learned"}}), 1.0);
  EXPECT_NEAR(scale({{"ssmax", "learned"}, {"ssmax_scale", 0.16847}}), 0.16847, 1e-7);
}

TEST(PatternModel, MlstmHasHeadsOfItsOwn) {
  const json config = small_model({{"pattern", "wm"}, {"mlstm_heads", 2}});
  const auto w = named_doubles(*make_model(config, 3));
  EXPECT_EQ(w.at("layers.1.gates.weight").sizes(), at::IntArrayRef({2 * 2, 24}));
  EXPECT_EQ(config["mlstm_heads"], 2);
  EXPECT_FALSE(small_model({{"pattern", "wm"}}).contains("mlstm_heads")) << "as many as the others";
  EXPECT_EQ(parameters_of(small_model({{"mlp", "gelu"}}), false),
            parameters_of(small_model({{"intermediate_size", 64}}), false))
      << "4 D twice and 8 D / 3 thrice";
}

// ---- every mixer, whatever it is

/// Layers of a mixer, or of all of them, and keys that change what it computes.
struct MixerCase {
  std::string pattern;
  json keys = json::object();
};

void PrintTo(const MixerCase& mixer, std::ostream* out) {
  *out << mixer.pattern << " " << mixer.keys;
}

std::vector<MixerCase> mixer_cases() {
  std::vector<MixerCase> result;
  std::string all;
  for (const MixerKind& kind : known_mixers()) {
    result.push_back({std::string(1, kind.letter)});
    all += kind.letter;
  }
  result.push_back({all});
  for (const char* letter : {"a", "w", "e"}) result.push_back({letter, {{"strict", true}}});
  for (const char* letter : {"b", "v"}) result.push_back({letter, {{"strict", false}}});
  result.push_back({"aw", {{"strict", true}, {"ssmax", "bias"}}});
  result.push_back({"aw", {{"strict", true}, {"ssmax", "position"}}});
  result.push_back({"v", {{"sieve", "algorithm1"}, {"sieve_epsilon", 1.0}}});
  return result;
}

class EveryMixer : public ::testing::TestWithParam<MixerCase> {
 protected:
  const std::string& pattern() const { return GetParam().pattern; }
  json config() const {
    json config = {{"pattern", pattern()},
                   {"num_hidden_layers", std::max<size_t>(2, pattern().size())},
                   {"hidden_size", 64},
                   {"window", 70}};
    config.update(GetParam().keys);
    return small_model(config);
  }
};

INSTANTIATE_TEST_SUITE_P(Patterns, EveryMixer, ::testing::ValuesIn(mixer_cases()));

TEST_P(EveryMixer, FullEqualsChunkedEqualsTokenByToken) {
  const auto model = make_model(config(), 4);
  disturb(*model);
  const at::NoGradGuard no_grad;
  const int64_t T = 200;  // beyond a tile of keys, a window, the least room of a cache
  const Tensor tokens = random_tokens(2, T, model->vocab_size(), 2);
  const Tensor whole = model->hidden(tokens, {});
  for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{90}, T}) {
    std::vector<std::unique_ptr<DecodingState>> states;
    std::vector<DecodingState*> pointers;
    for (int64_t b = 0; b < 2; ++b) {
      states.push_back(model->new_state({}));
      pointers.push_back(states.back().get());
    }
    std::vector<Tensor> parts;
    for (int64_t first = 0; first < T; first += chunk) {
      parts.push_back(model->decode(tokens.slice(1, first, std::min(first + chunk, T)), pointers));
    }
    EXPECT_EQ(states[0]->position(), T);
    const double error = (at::cat(parts, 1) - whole).abs().max().item<double>();
    EXPECT_LE(error, 1e-5 * whole.abs().max().item<double>()) << "chunk " << chunk;
  }
}

TEST_P(EveryMixer, StatesForkSaveAndLoad) {
  const auto model = make_model(config(), 4);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(1, 40, model->vocab_size(), 3);
  const auto state = model->new_state({});
  DecodingState* pointer = state.get();
  model->decode(tokens.slice(1, 0, 25), std::span(&pointer, 1));
  std::stringstream bytes;
  state->save(bytes);
  const auto fork = state->fork();
  const auto loaded = model->new_state({});
  loaded->load(bytes);
  const Tensor rest = tokens.slice(1, 25);
  const Tensor expected = model->decode(rest, std::span(&pointer, 1));
  for (DecodingState* other : {fork.get(), loaded.get()}) {
    EXPECT_EQ(other->position(), 25);
    EXPECT_LE((model->decode(rest, std::span(&other, 1)) - expected).abs().max().item<double>(), 1e-6);
  }
  std::stringstream damaged("no state of anything");
  EXPECT_THROW(loaded->load(damaged), Error);
  const auto begin = static_cast<size_t>(bytes.str().find('\n')) + 1;
  std::string elsewhere = bytes.str();
  elsewhere[begin] = 26;  // the position, not those of the caches
  std::stringstream moved(elsewhere);
  if (pattern() == "m") {
    EXPECT_NO_THROW(loaded->load(moved)) << "its memory has no position";
  } else {
    EXPECT_THROW(loaded->load(moved), Error);
  }
  std::stringstream cut(bytes.str().substr(0, bytes.str().size() / 2));
  EXPECT_THROW(loaded->load(cut), Error);
}

/// A window that is full, and has moved: what is saved is its end, and tokens go on from there.
TEST_P(EveryMixer, StatesOfAFullWindowGoOnTokenByToken) {
  json short_window = config();
  short_window["window"] = 9;
  const auto model = make_model(complete_config(short_window), 4);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(1, 60, model->vocab_size(), 3);
  const auto state = model->new_state({});
  DecodingState* pointer = state.get();
  model->decode(tokens.slice(1, 0, 25), std::span(&pointer, 1));
  for (int64_t t = 25; t < 40; ++t) model->decode(tokens.slice(1, t, t + 1), std::span(&pointer, 1));
  std::stringstream bytes;
  state->save(bytes);
  const auto fork = state->fork();
  const auto loaded = model->new_state({});
  loaded->load(bytes);
  const Tensor whole = model->hidden(tokens, {});
  for (DecodingState* each : {pointer, fork.get(), loaded.get()}) {
    for (int64_t t = 40; t < 60; ++t) {
      const Tensor x = model->decode(tokens.slice(1, t, t + 1), std::span(&each, 1));
      const double error = (x[0][0] - whole[0][t]).abs().max().item<double>();
      EXPECT_LE(error, 1e-5 * whole.abs().max().item<double>()) << t;
    }
  }
}

TEST_P(EveryMixer, EveryParameterLearns) {
  const auto model = make_model(config(), 5);
  disturb(*model);
  const Tensor tokens = random_tokens(2, 30, model->vocab_size(), 4);
  std::vector<Tensor> parameters;
  for (const Parameter& parameter : model->parameters()) parameters.push_back(parameter.tensor);
  const auto gradients = [&](const ForwardOptions& options) {
    const Tensor logits = at::linear(model->hidden(tokens.slice(1, 0, -1), options), model->head_weight());
    const Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
    return torch::autograd::grad({loss}, parameters);
  };
  const std::vector<Tensor> kept = gradients({}), again = gradients({.recompute = 1});
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_GT(kept[p].abs().max().item<double>(), 0.0) << model->parameters()[p].name;
    EXPECT_TRUE(kept[p].equal(again[p])) << model->parameters()[p].name;
  }
}

/// Two documents of 90 and 110 tokens in a sequence of 200, and a second sequence that is one document.
Tensor two_documents() {
  const Tensor document = at::zeros({2, 200}, at::kInt);
  document[0].slice(0, 90).fill_(1);
  return document;
}

TEST_P(EveryMixer, WhatForwardReadsMovesWithTheModel) {
  std::vector<json> configs = {config()};
  if (pattern().find('s') != std::string::npos) {
    configs.push_back(config());
    configs.back()["fixed_r"] = 0.25;
  }
  for (const json& each : configs) {
    for (const char letter : pattern()) {
      const auto mixer = find_mixer(letter).make(read_model_config(complete_config(each)), at::kCPU);
      for (const LayerParameter& parameter : mixer->parameters()) parameter.tensor.requires_grad_(true);
      const std::vector<Tensor> buffers = mixer->buffers();
      for (const Tensor& weight : mixer->weights(at::kFloat)) {
        const bool kept = std::ranges::any_of(buffers, [&](const Tensor& own) { return own.is_same(weight); });
        EXPECT_NE(weight.requires_grad(), kept) << letter << ": made from parameters, or a buffer";
      }
    }
  }
  const auto model = make_model(complete_config(configs.back()), 1);
  EXPECT_EQ(model->buffers().empty(), configs.size() == 1);
  const Tensor tokens = random_tokens(1, 9, model->vocab_size(), 2), before = model->hidden(tokens, {});
  move_to(*model, at::kCPU);
  EXPECT_TRUE(model->hidden(tokens, {}).equal(before));
}

TEST_P(EveryMixer, AnotherDocumentDoesNotChangeABit) {
  const auto model = make_model(config(), 4);
  disturb(*model);
  const ForwardOptions options{.document_BT = two_documents()};
  const Tensor tokens = random_tokens(2, 200, model->vocab_size(), 2), changed = tokens.clone();
  changed[0].slice(0, 0, 90).copy_(random_tokens(1, 90, model->vocab_size(), 3)[0]);
  const auto second_document = [&](const Tensor& any_tokens) {
    const Tensor x = model->hidden(any_tokens, options)[0].slice(0, 90);
    const Tensor gradient = torch::autograd::grad({x.sin().sum()}, {model->parameters().back().tensor})[0];
    return std::pair(x.detach(), gradient);
  };
  const auto [x, gradient] = second_document(tokens);
  const auto [x_changed, gradient_changed] = second_document(changed);
  EXPECT_TRUE(x.equal(x_changed));
  EXPECT_TRUE(gradient.equal(gradient_changed));
  EXPECT_FALSE(x.equal(model->hidden(tokens, {})[0].slice(0, 90))) << "without documents it sees the first";
}

TEST_P(EveryMixer, ADocumentIsReadAsIfItWereAlone) {
  const auto model = make_model(config(), 4);
  disturb(*model);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(2, 200, model->vocab_size(), 2);
  const Tensor together = model->hidden(tokens, {.document_BT = two_documents()});
  const auto expect_alone = [&](int64_t row, int64_t first, int64_t last) {
    const Tensor alone = model->hidden(tokens.narrow(0, row, 1).slice(1, first, last), {})[0];
    const double error = (together[row].slice(0, first, last) - alone).abs().max().item<double>();
    EXPECT_LE(error, 1e-5 * alone.abs().max().item<double>()) << row << ", " << first;
  };
  expect_alone(0, 0, 90);
  expect_alone(0, 90, 200);
  expect_alone(1, 0, 200);
}

TEST_P(EveryMixer, RelevanceIsCausalAndOfTheExecutedPath) {
  const auto model = make_model(config(), 6);
  const Tensor tokens = random_tokens(1, 21, model->vocab_size(), 5);
  const auto maps = model->relevance(tokens, {});
  EXPECT_EQ(maps.size(), config()["num_hidden_layers"].get<size_t>());
  for (const RelevanceMap& map : maps) {
    EXPECT_EQ(map.relevance.size(1), 21);
    EXPECT_EQ(map.relevance.size(2), 21);
    EXPECT_EQ(map.relevance.triu(1).abs().max().item<double>(), 0.0);
    EXPECT_GT(map.relevance.abs().max().item<double>(), 0.0);
    EXPECT_EQ(map.window.size(), static_cast<size_t>(map.relevance.size(0)));
  }
}

TEST_P(EveryMixer, AttentionMassIsOfTheExecutedPath) {
  const auto model = make_model(config(), 6);
  disturb(*model);
  EXPECT_LE(testing::mass_error(*model, random_tokens(1, 21, model->vocab_size(), 5)), 1e-5);
  EXPECT_LE(testing::mass_error(*model, random_tokens(1, 150, model->vocab_size(), 5)), 1e-5);
}

TEST(PatternModel, AttentionsWeightsSumToOne) {
  const auto model = make_model(small_model({{"pattern", "aw"}, {"num_hidden_layers", 2}}), 6);
  const auto maps = model->relevance(random_tokens(1, 21, model->vocab_size(), 5), {});
  for (const RelevanceMap& map : maps) {
    EXPECT_LE((map.relevance.sum(-1) - 1).abs().max().item<double>(), 1e-5);
  }
  EXPECT_GT(maps[0].relevance[0][20][0].item<double>(), 0.0);
  EXPECT_EQ(maps[1].relevance[0][20][20 - 9].item<double>(), 0.0);  // outside the window of 9
  EXPECT_GT(maps[1].relevance[0][20][20 - 8].item<double>(), 0.0);
}

TEST(PatternModel, AStrictWindowHasTheKeysBefore) {
  const json keys = {{"pattern", "aw"}, {"num_hidden_layers", 2}, {"strict", true}};
  const auto maps = make_model(small_model(keys), 6)->relevance(random_tokens(1, 21, 37, 5), {});
  for (const RelevanceMap& map : maps) {
    EXPECT_EQ(map.relevance.triu(0).abs().max().item<double>(), 0.0);  // nor its own
    EXPECT_LE((map.relevance.slice(1, 1).sum(-1) - 1).abs().max().item<double>(), 1e-5);
  }
  EXPECT_EQ(maps[1].relevance[0][20][20 - 10].item<double>(), 0.0);
  EXPECT_GT(maps[1].relevance[0][20][20 - 9].item<double>(), 0.0);
}

TEST(PatternModel, AWindowBoundsTheState) {
  const auto model = make_model(small_model({{"pattern", "w"}}), 7);
  const at::NoGradGuard no_grad;
  const auto state = model->new_state({});
  DecodingState* pointer = state.get();
  int64_t most = 0;
  for (int i = 0; i < 300; ++i) {
    model->decode(random_tokens(1, 1, model->vocab_size(), static_cast<uint64_t>(i)), std::span(&pointer, 1));
    most = std::max(most, state->bytes());
  }
  EXPECT_GE(model->new_state({})->bytes_after(1), most);
  model->decode(random_tokens(1, 500, model->vocab_size(), 1), std::span(&pointer, 1));  // a long chunk
  most = std::max(most, state->bytes());
  EXPECT_LE(most, int64_t{3} * 2 * 4 * 16 * 4 * 64);  // layers, keys and values, heads, padded, bytes, least capacity
}

TEST(PatternModel, ExpandsTheWindowsOfScreeningAlone) {
  const Tensor tokens = random_tokens(1, 9, 37, 1);
  EXPECT_NO_THROW(make_model(small_model({{"pattern", "as"}}), 7)->hidden(tokens, {.expand_windows = true}));
  const auto model = make_model(small_model({{"pattern", "wm"}}), 7);
  const auto [code, message] = tamis::testing::error_of([&] { model->hidden(tokens, {.expand_windows = true}); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_NE(message.find("has no screening layers"), std::string::npos) << message;
}

TEST(PatternModel, BadConfigurationsAreNamed) {
  const auto expect_error = [](const json& change, const std::string& text) {
    try {
      small_model(change);
      ADD_FAILURE() << "expected an error that says: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_error({{"pattern", "ax"}}, "\"pattern\" has the unknown letter \"x\"; known: a (softmax attention)");
  expect_error({{"pattern", ""}}, "must have a letter for each layer");
  expect_error({{"window", 0}}, "\"window\" must be a whole number from 1");
  expect_error({{"num_attention_heads", 5}}, "must divide \"hidden_size\" 24, but is 5");
  expect_error({{"num_attention_heads", 8}}, "heads of even width");
  expect_error({{"pattern", "m"}, {"mlstm_heads", 5}},
               "(default: \"num_attention_heads\"), but 24 is not a multiple of 10");
  expect_error({{"alpha", 0.5}}, "\"alpha\" must be a number from 1 to 2, but is 0.5");
  expect_error({{"rope_factor", 0}}, "\"rope_factor\" must be a number above 0");
  expect_error({{"ssmax", "learnt"}}, "did you mean \"learned\"");
  expect_error(
      {{"strict", true}, {"pattern", "as"}},
      "\"strict\" = true hides a token from itself in attention, but screening (letter s of \"pattern\") always "
      "sees it; leave \"strict\" out or choose another pattern");
  expect_error({{"strict", true}, {"pattern", "wm"}}, "but mLSTM (letter m of \"pattern\") always sees it");
  expect_error({{"strict", "yes"}}, "\"strict\" must be true or false, but is \"yes\"");
  expect_error({{"sieve", "algorithm"}}, "unknown sieve \"algorithm\"; did you mean \"algorithm1\"?");
  expect_error({{"sieve_epsilon", 0}}, "\"sieve_epsilon\" must be a number above 0");
  expect_error({{"patern", "a"}}, "did you mean \"pattern\"");
}

}  // namespace
}  // namespace tamis::models

#include "tamis/models/stack.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "tamis/base/error.h"
#include "tamis/models/registry.h"
#include "tamis/models/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using nlohmann::json;
using testing::disturb;
using testing::random_tokens;

json small(const json& change = json::object()) {
  json config = {{"model_type", "transformer"},
                 {"vocab_size", 37},
                 {"hidden_size", 24},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"max_position_embeddings", 32},
                 {"window", 9}};
  config.update(change);
  return complete_config(config);
}

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

TEST(Stack, HasThePapersParameterCounts) {
  EXPECT_EQ(parameters_of(transformer(6, 4, 128), true), 7'613'312);
  EXPECT_EQ(parameters_of(transformer(6, 8, 512), true), 44'609'024);
  EXPECT_EQ(parameters_of(transformer(24, 16, 1024), true), 353'453'056);
  EXPECT_EQ(parameters_of(transformer(24, 16, 2048), true), 1'310'935'040);
  EXPECT_EQ(parameters_of(transformer(6, 4, 128), false), 1'180'416);
  EXPECT_EQ(parameters_of(transformer(24, 16, 2048), false), 1'208'008'704);
}

TEST(Stack, HasScalableSoftmaxsParameterCounts) {
  json config = transformer(12, 12, 768);
  config.update({{"intermediate_size", 2048}, {"tie_word_embeddings", false}, {"final_norm_weight", true}});
  EXPECT_EQ(parameters_of(config, true), 162'148'608);
  config["ssmax"] = "learned";
  EXPECT_EQ(parameters_of(config, true), 162'148'608 + 144);
  config["ssmax"] = "bias";
  EXPECT_EQ(parameters_of(config, true), 162'148'608 + 288);
}

/// "SWAX", table 1, 1.4B parameters. What the paper does not give is as its figures come out right: MLPs 8 D / 3 wide,
/// 2^17 tokens, four heads of mLSTM. Its columns of xLSTM and of pure windows stand in each other's place.
TEST(Stack, CostsWhatThePaperOfSwaxSays) {
  const auto flops = [](const std::string& pattern, int64_t window, int64_t length) {
    const json config = complete_config({{"model_type", "swax"},
                                         {"vocab_size", 1 << 17},
                                         {"hidden_size", 2048},
                                         {"num_hidden_layers", 24},
                                         {"num_attention_heads", 16},
                                         {"mlstm_heads", 4},
                                         {"pattern", pattern},
                                         {"window", window}});
    const auto model = find_architecture(config).make(config, {.seed = std::nullopt, .device = at::kMeta});
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

// ---- the equations, from the checkpoint's names, query by query

using Named = std::map<std::string, Tensor>;

Named doubles(const Model& model) {
  std::vector<Tensor> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter.tensor.detach());
  Named result;
  for (const auto& [name, tensor] : model.checkpoint_tensors(parameters)) result[name] = tensor.to(at::kDouble);
  return result;
}

Tensor rms(const Tensor& x, double eps) {
  return x / (x.square().mean(-1, true) + eps).sqrt();
}

/// LLaMA's rotation of one row of a head.
Tensor rotated_row(const Tensor& x, double position, const StackConfig& c) {
  if (c.position != "rope") return x;
  const int64_t half = x.size(0) / 2;
  Tensor y = x.clone();
  for (int64_t i = 0; i < half; ++i) {
    const double angle =
        position / c.rope_factor * std::pow(c.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

/// What a layer's tensors are called without their prefix.
using TensorsOf = std::function<Tensor(const std::string& name)>;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// tau with sum_j [(alpha - 1) z_j - tau]_+ ^ (1 / (alpha - 1)) = 1, by halving.
double entmax_threshold(const std::vector<double>& z, double alpha) {
  const double most = (alpha - 1) * *std::max_element(z.begin(), z.end());
  double low = most - 1, high = most;
  for (int step = 0; step < 200; ++step) {
    const double tau = (low + high) / 2;
    double sum = 0;
    for (const double score : z) sum += std::pow(std::max((alpha - 1) * score - tau, 0.0), 1 / (alpha - 1));
    (sum > 1 ? low : high) = tau;
  }
  return (low + high) / 2;
}

/// Weights of the keys with scores z, oldest first.
std::vector<double> paper_weights(char letter, const std::vector<double>& z, double alpha) {
  std::vector<double> weights(z.size(), 0.0);
  if (z.empty()) return weights;
  if (letter == 'a' || letter == 'w') {
    double sum = 0;
    for (const double score : z) sum += std::exp(score);
    for (size_t j = 0; j < z.size(); ++j) weights[j] = std::exp(z[j]) / sum;
    return weights;
  }
  const double tau = letter == 'b' ? -HUGE_VAL : entmax_threshold(z, alpha);
  double left = 1;  // of the stick
  for (size_t j = z.size(); j-- > 0;) {
    const double above = (alpha - 1) * z[j] - tau;
    if (above <= 0) continue;
    if (letter == 'e') {
      weights[j] = std::pow(above, 1 / (alpha - 1));
    } else {
      weights[j] = sigmoid(z[j]) * left;
      left *= 1 - sigmoid(z[j]);
    }
  }
  return weights;
}

double length_factor(const StackConfig& c, const TensorsOf& of, const Named& w, int64_t h, int64_t seen) {
  const double logarithm = std::log(static_cast<double>(seen));
  double factor = 1;
  if (c.ssmax == "one") factor = logarithm;
  if (c.ssmax == "fixed") factor = *c.ssmax_scale * logarithm;
  if (c.ssmax == "learned" || c.ssmax == "bias") factor = of("log_scale")[h].item<double>() * logarithm;
  if (c.ssmax == "position") {
    factor = of("log_scale")[h].item<double>() * w.at("position_scale")[seen - 1].item<double>();
  }
  if (c.ssmax == "bias" || c.ssmax == "position") factor += of("log_bias")[h].item<double>();
  return factor;
}

Tensor paper_attention(const StackConfig& c, char letter, const TensorsOf& of, const Named& w, const Tensor& n) {
  const int64_t T = n.size(0), H = c.num_attention_heads, d = c.head_dim();
  const bool strict = letter == 'b' || letter == 'v', scalable = letter == 'a' || letter == 'w';
  const Tensor qkv = n.matmul(of("qkv_proj.weight").t()).view({T, 3, H, d});
  Tensor mixed = at::zeros({T, H, d}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    const auto row = [&](int64_t which, int64_t t) {
      Tensor y = qkv[t][which][h];
      if (c.qk_norm && which < 2) y = rms(y, c.norm_eps) * of(which == 0 ? "q_norm.weight" : "k_norm.weight");
      return which < 2 && !strict ? rotated_row(y, static_cast<double>(t), c) : y;
    };
    for (int64_t i = 0; i < T; ++i) {
      const int64_t first = letter == 'w' ? std::max<int64_t>(0, i - c.window + 1) : 0, end = strict ? i : i + 1;
      const double factor = scalable ? length_factor(c, of, w, h, end - first) : 1.0;
      std::vector<double> z;
      for (int64_t j = first; j < end; ++j) {
        z.push_back(row(0, i).dot(row(1, j)).item<double>() * factor / std::sqrt(static_cast<double>(d)));
      }
      const std::vector<double> weights = paper_weights(letter, z, c.alpha);
      for (int64_t j = first; j < end; ++j) mixed[i][h] += weights[j - first] * row(2, j);
    }
  }
  return mixed.flatten(1).matmul(of("o_proj.weight").t());
}

/// "SWAX" and xLSTM-large: the recurrence, a layer norm of every head, the output gate.
Tensor paper_mlstm(const StackConfig& c, const TensorsOf& of, const Tensor& n) {
  const int64_t T = n.size(0), H = c.mlstm_heads, V = c.hidden_size / H, K = V / 2;
  const auto projected = n.matmul(of("qkvo_proj.weight").t()).split_with_sizes({H * K, H * K, H * V, H * V}, -1);
  const Tensor gates = n.matmul(of("gates.weight").t()) + at::cat({of("input_bias"), of("forget_bias")});
  Tensor mixed = at::zeros({T, H, V}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    Tensor C = at::zeros({V, K}, at::kDouble), sum = at::zeros({K}, at::kDouble);
    double m = 0;
    for (int64_t t = 0; t < T; ++t) {
      const auto capped = [&](int64_t gate) { return 15 * std::tanh(gates[t][gate].item<double>() / 15); };
      const Tensor q = projected[0][t].view({H, K})[h] / std::sqrt(static_cast<double>(K));
      const Tensor k = projected[1][t].view({H, K})[h], v = projected[2][t].view({H, V})[h];
      const double i = capped(h), kept = std::log(sigmoid(capped(H + h))) + m;
      m = std::max(kept, i);
      C = std::exp(kept - m) * C + std::exp(i - m) * at::outer(v, k);
      sum = std::exp(kept - m) * sum + std::exp(i - m) * k;
      const double divisor = std::max(std::abs(sum.dot(q).item<double>()), std::exp(-m)) + 1e-6;
      const Tensor y = C.mv(q) / divisor, centred = y - y.mean();
      mixed[t][h] = centred / (centred.square().mean() + c.norm_eps).sqrt();
    }
  }
  const Tensor gated = mixed.flatten(1) * of("norm.weight") / (1 + (-projected[3]).exp());
  return gated.matmul(of("out_proj.weight").t());
}

/// "Screening Is Enough", Eq. (4)-(18), without the scale of a Multiscreen layer.
Tensor paper_screening(const StackConfig& c, const TensorsOf& of, const Tensor& n) {
  const int64_t T = n.size(0), H = c.num_attention_heads, K = c.key_dim, V = c.value_dim;
  const auto projected = n.matmul(of("qkvg_proj.weight").t()).split_with_sizes({H * K, H * K, H * V, H * V}, -1);
  Tensor mixed = at::zeros({T, H, V}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    const double w = std::exp(of("s_w")[h].item<double>()) + 1, r = sigmoid(of("s_r")[h].item<double>());
    const double phi = w < c.mipe_threshold ? (std::cos(M_PI * w / c.mipe_threshold) + 1) / 2 : 0;
    const auto unit_row = [&](int64_t which, int64_t t) {
      const Tensor x = projected[which][t].view({H, which < 2 ? K : V})[h], unit = x / x.norm();
      if (which == 2) return unit;
      const double angle = M_PI * static_cast<double>(t) * phi / w;
      const Tensor turned = unit.clone();
      turned[0] = unit[0] * std::cos(angle) - unit[1] * std::sin(angle);
      turned[1] = unit[0] * std::sin(angle) + unit[1] * std::cos(angle);
      return turned;
    };
    for (int64_t i = 0; i < T; ++i) {
      Tensor sum = at::zeros({V}, at::kDouble);
      for (int64_t j = 0; j <= i; ++j) {
        const auto distance = static_cast<double>(i - j);
        if (distance >= w) continue;
        const double s = unit_row(0, i).dot(unit_row(1, j)).item<double>();
        const double trim = std::pow(std::max(1 - (1 - s) / r, 0.0), 2);
        sum += trim * (std::cos(M_PI * distance / w) + 1) / 2 * unit_row(2, j);
      }
      const Tensor norm = sum.norm();
      if (norm.item<double>() > 0) sum = sum * norm.tanh() / norm;
      const Tensor g = projected[3][i].view({H, V})[h];
      mixed[i][h] = sum * (g / (1 + (-g).exp())).tanh();
    }
  }
  return mixed.flatten(1).matmul(of("o_proj.weight").t());
}

Tensor paper_logits(const StackConfig& c, const Named& w, const Tensor& tokens_T) {
  Tensor x = w.at("embed.weight").index_select(0, tokens_T);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const TensorsOf of = [&](const std::string& name) { return w.at("layers." + std::to_string(l) + "." + name); };
    const Tensor n = rms(x, c.norm_eps) * of("mixer_norm.weight");
    const char letter = c.mixer_of(l);
    x = x + (letter == 'm'   ? paper_mlstm(c, of, n)
             : letter == 's' ? paper_screening(c, of, n)
                             : paper_attention(c, letter, of, w, n));
    const Tensor m = rms(x, c.norm_eps) * of("mlp_norm.weight");
    const Tensor up = m.matmul(of("up_proj.weight").t());
    const Tensor inner = c.mlp == "gelu" ? up * 0.5 * (1 + at::erf(up / std::sqrt(2.0)))
                                         : at::silu(m.matmul(of("gate_proj.weight").t())) * up;
    x = x + inner.matmul(of("down_proj.weight").t());
  }
  x = rms(x, c.norm_eps);
  if (c.final_norm_weight) x = x * w.at("norm.weight");
  return x.matmul(w.at(c.tie_word_embeddings ? "embed.weight" : "head.weight").t());
}

class Variant : public ::testing::TestWithParam<json> {};

TEST_P(Variant, IsThePapersModel) {
  const auto model = make_model(small(GetParam()), 3);
  disturb(*model);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(2, 20, model->vocab_size(), 1);
  const Tensor logits = at::linear(model->hidden(tokens, {}), model->head_weight());
  for (int64_t b = 0; b < 2; ++b) {
    const Tensor exact = paper_logits(read_stack_config(small(GetParam())), doubles(*model), tokens[b]);
    EXPECT_LT((logits[b] - exact).abs().max().item<double>(), 2e-5 * exact.abs().max().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Variant,
                         ::testing::Values(json::object(), json{{"position", "none"}}, json{{"qk_norm", true}},
                                           json{{"rope_theta", 500.0}, {"rope_factor", 4.0}},
                                           json{{"ssmax", "learned"}}, json{{"ssmax", "one"}},
                                           json{{"ssmax", "bias"}, {"qk_norm", true}}, json{{"ssmax", "fixed"}},
                                           json{{"ssmax", "position"}}, json{{"pattern", "w"}}, json{{"mlp", "gelu"}},
                                           json{{"pattern", "aw"}, {"ssmax", "learned"}}, json{{"pattern", "e"}},
                                           json{{"pattern", "e"}, {"alpha", 1.25}}, json{{"pattern", "b"}},
                                           json{{"pattern", "v"}}, json{{"pattern", "m"}}, json{{"pattern", "s"}},
                                           json{{"pattern", "m"}, {"mlstm_heads", 2}},
                                           json{{"pattern", "vwm"}, {"qk_norm", true}},
                                           json{{"tie_word_embeddings", false}, {"final_norm_weight", true}}));

TEST(Stack, WhatIsLearnedOfScalableSoftmaxBeginsAsAsked) {
  const auto scale = [](const json& change) {
    return doubles(*make_model(small(change), 3)).at("layers.1.log_scale").min().item<double>();
  };
  EXPECT_EQ(scale({{"ssmax", "learned"}}), 1.0);
  EXPECT_NEAR(scale({{"ssmax", "learned"}, {"ssmax_scale", 0.16847}}), 0.16847, 1e-7);
}

TEST(Stack, MlstmHasHeadsOfItsOwn) {
  const json config = small({{"pattern", "wm"}, {"mlstm_heads", 2}});
  const Named w = doubles(*make_model(config, 3));
  EXPECT_EQ(w.at("layers.1.gates.weight").sizes(), at::IntArrayRef({2 * 2, 24}));
  EXPECT_EQ(config["mlstm_heads"], 2);
  EXPECT_FALSE(small({{"pattern", "wm"}}).contains("mlstm_heads")) << "as many as the others";
  EXPECT_EQ(parameters_of(small({{"mlp", "gelu"}}), false), parameters_of(small({{"intermediate_size", 64}}), false))
      << "4 D twice and 8 D / 3 thrice";
}

// ---- every mixer, whatever it is

std::vector<std::string> patterns() {
  std::vector<std::string> result;
  for (const MixerKind& kind : known_mixers()) result.push_back(std::string(1, kind.letter));
  std::string all;
  for (const std::string& one : result) all += one;
  result.push_back(all);
  return result;
}

class EveryMixer : public ::testing::TestWithParam<std::string> {
 protected:
  json config() const {
    return small({{"pattern", GetParam()},
                  {"num_hidden_layers", std::max<size_t>(2, GetParam().size())},
                  {"hidden_size", 64},
                  {"window", 70}});
  }
};

INSTANTIATE_TEST_SUITE_P(Patterns, EveryMixer, ::testing::ValuesIn(patterns()));

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
  if (GetParam() == "m") {
    EXPECT_NO_THROW(loaded->load(moved)) << "its memory has no position";
  } else {
    EXPECT_THROW(loaded->load(moved), Error);
  }
  std::stringstream cut(bytes.str().substr(0, bytes.str().size() / 2));
  EXPECT_THROW(loaded->load(cut), Error);
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

TEST(Stack, AttentionsWeightsSumToOne) {
  const auto model = make_model(small({{"pattern", "aw"}, {"num_hidden_layers", 2}}), 6);
  const auto maps = model->relevance(random_tokens(1, 21, model->vocab_size(), 5), {});
  for (const RelevanceMap& map : maps) {
    EXPECT_LE((map.relevance.sum(-1) - 1).abs().max().item<double>(), 1e-5);
  }
  EXPECT_GT(maps[0].relevance[0][20][0].item<double>(), 0.0);
  EXPECT_EQ(maps[1].relevance[0][20][20 - 9].item<double>(), 0.0);  // outside the window of 9
  EXPECT_GT(maps[1].relevance[0][20][20 - 8].item<double>(), 0.0);
}

TEST(Stack, AWindowBoundsTheState) {
  const auto model = make_model(small({{"pattern", "w"}}), 7);
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

TEST(Stack, BadConfigurationsAreNamed) {
  const auto expect_error = [](const json& change, const std::string& text) {
    try {
      small(change);
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
  expect_error({{"alpha", 0.5}}, "\"alpha\" must be from 1 to 2, but is 0.5");
  expect_error({{"rope_factor", 0}}, "\"rope_factor\" must be a number above 0");
  expect_error({{"ssmax", "learnt"}}, "did you mean \"learned\"");
  expect_error({{"patern", "a"}}, "did you mean \"pattern\"");
}

}  // namespace
}  // namespace tamis::models

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numbers>

#include "tamis/base/error.h"
#include "tamis/base/instruction_set.h"
#include "tamis/base/random.h"
#include "tamis/models/model_config.h"
#include "tamis/models/testing.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tamis/ops/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using nlohmann::json;
using testing::disturb;
using testing::random_tokens;
using testing::small_config;

struct Gradients {
  Tensor loss;
  std::vector<Tensor> of;
};

Gradients gradients(const Model& model, const Tensor& tokens_BT, const ForwardOptions& options) {
  const Tensor x = model.hidden(tokens_BT.slice(1, 0, -1), options);
  const Tensor logits = at::linear(x, model.head_weight());
  const Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens_BT.slice(1, 1).flatten());
  std::vector<Tensor> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter.tensor);
  return {loss.detach(), torch::autograd::grad({loss}, parameters)};
}

// ---- the paper's equations, head by head, from the checkpoint's names

using Named = std::map<std::string, Tensor>;

Tensor unit(const Tensor& x) {
  return x / x.norm(2, -1, true);
}

Tensor multiscreen_logits(const ModelConfig& c, const Named& w, const Tensor& tokens_T) {
  const double pi = std::numbers::pi;
  const int64_t T = tokens_T.size(0), K = c.key_dim, V = c.value_dim;
  const Tensor wbar = unit(w.at("embed.weight"));
  Tensor x = w.at("s_E").exp() * wbar.index_select(0, tokens_T);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const auto of = [&](const std::string& name) { return w.at("layers." + std::to_string(l) + "." + name); };
    Tensor update = at::zeros_like(x);
    for (int64_t h = 0; h < c.num_attention_heads; ++h) {
      const auto rows = [&](const char* name, int64_t width) {
        return x.matmul(of(std::string(name) + "_proj.weight").narrow(0, h * width, width).t());
      };
      const double width = std::exp(of("s_w")[h].item<double>()) + 1;
      const double accept = c.fixed_r ? *c.fixed_r : of("s_r")[h].sigmoid().item<double>();
      const double phi = width < c.mipe_threshold ? (std::cos(pi * width / c.mipe_threshold) + 1) / 2 : 0.0;
      Tensor q = unit(rows("q", K)), k = unit(rows("k", K)), v = unit(rows("v", V));
      if (c.screening_position == "mipe") {
        const Tensor angle = at::arange(T, at::kDouble) * (pi * phi / width);
        const auto rotate = [&](const Tensor& y) {
          const Tensor y0 = y.select(1, 0), y1 = y.select(1, 1);
          const Tensor first = at::stack({y0 * angle.cos() - y1 * angle.sin(), y0 * angle.sin() + y1 * angle.cos()}, 1);
          return at::cat({first, y.slice(1, 2)}, 1);
        };
        q = rotate(q);
        k = rotate(k);
      }
      if (c.screening_position == "rope") {
        const Tensor exponent = at::arange(K / 2, at::kDouble) * (-2.0 / static_cast<double>(K));
        const Tensor position = at::arange(T, at::kDouble).unsqueeze(1) / c.rope_factor;
        const Tensor angle = position * at::pow(at::scalar_tensor(c.rope_theta, at::kDouble), exponent);
        const auto rotate = [&](const Tensor& y) {
          const Tensor a = y.slice(1, 0, K / 2), b = y.slice(1, K / 2);
          return at::cat({a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()}, 1);
        };
        q = rotate(q);
        k = rotate(k);
      }
      Tensor u = at::zeros({T, V}, at::kDouble);
      for (int64_t i = 0; i < T; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          if (static_cast<double>(i - j) >= width) continue;
          const double s = q[i].dot(k[j]).item<double>();
          const double a = std::pow(std::max(1 - (1 - s) / accept, 0.0), static_cast<double>(c.trim_power));
          const double distance = static_cast<double>(i - j);
          double m = (std::cos(pi * distance / width) + 1) / 2;
          if (c.softmask == "linear") m = 1 - distance / width;
          if (c.softmask == "none") m = 1;
          u[i] += a * m * v[j];
        }
        const double norm = u[i].norm().item<double>();
        if (c.tanh_norm && norm > 0) u[i] *= std::tanh(norm) / norm;
      }
      if (c.gate) u = u * at::tanh(at::silu(rows("g", V)));
      update += of("s_O")[h].exp() * u.matmul(of("o_proj.weight").narrow(1, h * V, V).t());
    }
    x = x + update;
  }
  return w.at("s_F").exp() * x.matmul(wbar.t());
}

class Ablation : public ::testing::TestWithParam<json> {};

TEST_P(Ablation, IsThePapersModel) {
  const json config = small_config(GetParam());
  const auto model = make_model(config, 3);
  disturb(*model);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(2, 20, model->vocab_size(), 1);
  const Tensor logits = at::linear(model->hidden(tokens, {}), model->head_weight());
  for (int64_t b = 0; b < 2; ++b) {
    const Tensor exact = multiscreen_logits(read_model_config(config), testing::named_doubles(*model), tokens[b]);
    EXPECT_LT((logits[b] - exact).abs().max().item<double>(), 1e-5 * exact.abs().max().item<double>());
  }
}

TEST_P(Ablation, GradientsMatchFiniteDifferences) {
  const auto model = make_model(small_config(GetParam()), 3);
  disturb(*model);
  const Tensor tokens = random_tokens(2, 17, model->vocab_size(), 1);
  const Gradients exact = gradients(*model, tokens, {});
  const auto parameters = model->parameters();
  Random random({9});
  for (size_t p = 0; p < parameters.size(); ++p) {
    // Along a random direction, with a step that float32 still resolves.
    const at::NoGradGuard no_grad;
    const Tensor& value = parameters[p].tensor;
    const Tensor direction = at::empty_like(value);
    for (Tensor element : direction.view(-1).unbind()) element.fill_(random.normal());
    const double step = value.dim() > 1 ? 2e-3 : 1e-2;
    const Tensor scaled = direction * (step / direction.norm());
    const auto loss_at = [&](double sign) {
      const at::AutoGradMode grad(false);
      value.add_(scaled, sign);
      const Tensor x = model->hidden(tokens.slice(1, 0, -1), {});
      const Tensor logits = at::linear(x, model->head_weight()).to(at::kDouble);
      const Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
      value.sub_(scaled, sign);
      return loss.item<double>();
    };
    const double difference = (loss_at(1) - loss_at(-1)) / 2;
    const double derivative = (exact.of[p] * scaled).sum().item<double>();
    EXPECT_NEAR(difference, derivative, 2e-6 + 0.02 * std::abs(derivative)) << parameters[p].name;
  }
}

TEST_P(Ablation, RecomputationKeepsEveryBit) {
  const auto model = make_model(small_config(GetParam()), 3);
  disturb(*model);
  const Tensor tokens = random_tokens(2, 33, model->vocab_size(), 1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Gradients kept = gradients(*model, tokens, {.compute_dtype = dtype});
    const Gradients again = gradients(*model, tokens, {.compute_dtype = dtype, .recompute = 1});
    EXPECT_TRUE(kept.loss.equal(again.loss));
    for (size_t p = 0; p < kept.of.size(); ++p) {
      EXPECT_TRUE(kept.of[p].equal(again.of[p])) << model->parameters()[p].name;
      EXPECT_GT(kept.of[p].abs().max().item<double>(), 0) << model->parameters()[p].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Multiscreen, Ablation,
                         ::testing::Values(json::object(), json{{"position", "none"}}, json{{"tanh_norm", false}},
                                           json{{"gate", false}}, json{{"fixed_r", 0.5}}, json{{"fixed_r", 1.0}},
                                           json{{"position", "rope"}},
                                           json{{"position", "rope"}, {"rope_factor", 4}, {"rope_theta", 100}},
                                           json{{"trim_power", 1}}, json{{"trim_power", 3}, {"softmask", "linear"}},
                                           json{{"softmask", "none"}}));

TEST(Multiscreen, StartsAsInThePaper) {
  const auto model = make_model(complete_config({{"psi", 8}, {"vocab_size", 500}}), 7);
  const Named w = testing::named_doubles(*model);
  const auto deviation = [&](const std::string& name) { return w.at(name).std().item<double>(); };
  EXPECT_NEAR(deviation("embed.weight"), 0.1 / 8, 3e-4);
  EXPECT_NEAR(deviation("layers.3.q_proj.weight"), 0.1 / 4, 5e-4);
  EXPECT_NEAR(deviation("layers.3.k_proj.weight"), 0.1 / 4, 5e-4);
  EXPECT_NEAR(deviation("layers.3.v_proj.weight"), 0.1 / 8, 2e-4);
  EXPECT_NEAR(deviation("layers.3.g_proj.weight"), 0.1, 1e-3);
  EXPECT_NEAR(deviation("layers.3.o_proj.weight"), 0.1 / 8, 2e-4);
  EXPECT_NEAR(w.at("layers.3.o_proj.weight").mean().item<double>(), 0, 2e-4);
  EXPECT_EQ(w.at("layers.5.s_w")[0].item<double>(), 0);
  EXPECT_NEAR(w.at("layers.5.s_w")[1].item<double>(), std::log(256.0) / 7, 1e-6);
  EXPECT_NEAR(w.at("layers.5.s_w")[7].item<double>(), std::log(256.0), 1e-6);
  EXPECT_EQ(w.at("layers.5.s_r").abs().max().item<double>(), 0);
  EXPECT_NEAR(w.at("layers.5.s_O")[2].item<double>(), -std::log(64.0) / 2, 1e-6);
  EXPECT_EQ(w.at("s_E").item<double>(), 0);
  EXPECT_NEAR(w.at("s_F").item<double>(), std::log(8.0), 1e-6);
}

TEST(Multiscreen, SameSeedSameBits) {
  const auto values = [](uint64_t seed) {
    std::vector<Tensor> result;
    for (const Parameter& parameter : make_model(small_config(), seed)->parameters()) {
      if (parameter.tensor.dim() == 2) result.push_back(parameter.tensor);
    }
    return result;
  };
  const auto first = values(1), again = values(1), other = values(2);
  for (size_t p = 0; p < first.size(); ++p) {
    EXPECT_TRUE(first[p].equal(again[p]));
    EXPECT_FALSE(first[p].equal(other[p]));
  }
  EXPECT_FALSE(first[1].equal(first[3])) << "every layer has numbers of its own";
}

TEST(Multiscreen, ASilentEmbeddingRowStaysSilent) {
  const auto model = make_model(small_config(), 3);
  {
    const at::NoGradGuard no_grad;
    model->parameters()[0].tensor[5].zero_();
  }
  const Gradients g = gradients(*model, random_tokens(2, 33, model->vocab_size(), 1), {});
  EXPECT_TRUE(std::isfinite(g.loss.item<double>()));
  for (const Tensor& gradient : g.of) EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  EXPECT_EQ(g.of[0][5].abs().max().item<double>(), 0);
}

TEST(Multiscreen, Bfloat16IsNearFloat32) {
  const auto model = make_model(small_config(), 3);
  const Tensor tokens = random_tokens(2, 33, model->vocab_size(), 1);
  const Gradients exact = gradients(*model, tokens, {});
  const Gradients rounded = gradients(*model, tokens, {.compute_dtype = at::kBFloat16});
  EXPECT_NEAR(exact.loss.item<double>(), rounded.loss.item<double>(), 1e-2);
  EXPECT_FALSE(exact.loss.equal(rounded.loss));
  for (size_t p = 0; p < exact.of.size(); ++p) {
    EXPECT_EQ(rounded.of[p].scalar_type(), at::kFloat);
    EXPECT_LT((exact.of[p] - rounded.of[p]).norm().item<double>(), 0.1 * exact.of[p].norm().item<double>())
        << model->parameters()[p].name;
  }
}

TEST(Multiscreen, UnitDeviationChangesNoOutput) {
  const Start start{.seed = 3, .device = at::kCPU, .unit_deviation = 2.0};
  const auto model = make_model(small_config(), 3), larger = make_model(small_config(), start);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(2, 33, model->vocab_size(), 1);
  EXPECT_TRUE(at::allclose(model->hidden(tokens, {}), larger->hidden(tokens, {}), 1e-5, 1e-6));
  const Named before = testing::named_doubles(*model), after = testing::named_doubles(*larger);
  for (const auto& [name, tensor] : after) {
    const bool is_unit = name == "embed.weight" || name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") ||
                         name.ends_with("v_proj.weight");
    if (is_unit) {
      EXPECT_NEAR(tensor.std().item<double>(), 2.0, 0.2) << name;
    } else {
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;
    }
  }
}

TEST(Multiscreen, WindowsExpandOnRequest) {
  const json config = small_config({{"num_hidden_layers", 1}, {"position", "none"}, {"fixed_r", 1.0}});
  const auto model = make_model(config, 3);
  const at::NoGradGuard no_grad;
  const Tensor s_w = model->parameters()[5].tensor;
  ASSERT_EQ(model->parameters()[5].name, "layers.0.s_w");
  s_w.fill_(std::log(32.5 - 1));  // just beyond the training length of 32
  Tensor tokens = random_tokens(1, 80, model->vocab_size(), 1);
  const auto last = [&](bool expand) { return model->hidden(tokens, {.expand_windows = expand})[0][79].clone(); };
  const Tensor finite = last(false), infinite = last(true);
  tokens[0][3] = (tokens[0][3] + 1) % model->vocab_size();
  EXPECT_TRUE(last(false).equal(finite)) << "76 tokens away is out of sight";
  EXPECT_FALSE(last(true).equal(infinite)) << "an infinite window sees it";
  s_w.fill_(std::log(32.0 - 1));
  EXPECT_TRUE(last(true).equal(last(false))) << "a window of the training length is not expanded";
}

TEST(Multiscreen, RefusesTokensOutOfRange) {
  const auto model = make_model(small_config(), 3);
  try {
    model->hidden(at::full({1, 2}, 37, at::kLong), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInput);
    EXPECT_STREQ(error.what(), "model: token ids must lie in [0, 37), but range from 37 to 37; is this its tokenizer?");
  }
}

TEST(Multiscreen, AsTrainedAcceptsALargeShareOfTheKeys) {
  // Of the visible keys of random tokens; initial widths accept few.
  const auto accepted = [](const Model& model) {
    double share = 0;
    const auto maps = model.relevance(random_tokens(1, 64, model.vocab_size(), 3), {});
    for (const RelevanceMap& map : maps) {
      const Tensor visible = map.softmask.gt(0);
      share += map.trim.gt(0).logical_and(visible).sum().item<double>() / visible.sum().item<double>();
    }
    return share / static_cast<double>(maps.size());
  };
  const auto model = make_model(small_config(), 1);
  const double initial = accepted(*model);
  model->set_as_trained();
  EXPECT_LT(initial, accepted(*model) / 1.3);
  EXPECT_NEAR(accepted(*model), 0.2, 0.1);
}

TEST(Multiscreen, LooksInside) {
  const auto model = make_model(small_config(), 3);
  disturb(*model);
  const auto heads = model->screening_heads();
  ASSERT_EQ(heads.size(), 12u);
  EXPECT_EQ(heads[7].layer, 1);
  EXPECT_EQ(heads[7].head, 3);
  const Named w = testing::named_doubles(*model);
  EXPECT_NEAR(heads[7].window, std::exp(w.at("layers.1.s_w")[3].item<double>()) + 1, 1e-9);
  EXPECT_NEAR(heads[7].accept, w.at("layers.1.s_r")[3].sigmoid().item<double>(), 1e-9);

  const Tensor tokens = random_tokens(1, 40, model->vocab_size(), 1);
  const auto maps = model->relevance(tokens, {.expand_windows = true});
  ASSERT_EQ(maps.size(), 3u);
  for (const RelevanceMap& map : maps) {
    EXPECT_EQ(map.relevance.sizes(), at::IntArrayRef({4, 40, 40}));
    EXPECT_TRUE(map.relevance.equal(map.trim * map.softmask));
    EXPECT_EQ(map.relevance.triu(1).abs().max().item<double>(), 0) << "nothing from the future";
    EXPECT_GT(map.relevance.max().item<double>(), 0);
    ASSERT_EQ(map.window.size(), 4u);
    EXPECT_TRUE(std::isinf(map.window[3])) << "the widest window lies beyond the training length";
    EXPECT_EQ(map.softmask[3][39][0].item<double>(), 1.0);
  }
}

TEST(Multiscreen, AttentionMassIsOfTheExecutedPath) {
  for (const bool gate : {true, false}) {
    const auto model = make_model(testing::small_config({{"gate", gate}}), 6);
    disturb(*model);
    const Tensor tokens = random_tokens(1, 40, model->vocab_size(), 1);
    EXPECT_LE(testing::mass_error(*model, tokens), 1e-5);
    EXPECT_LE(testing::mass_error(*model, tokens, {.expand_windows = true}), 1e-5);
  }
}

TEST(Multiscreen, WhatAcceptsNothingHasNoAttentionMass) {
  const auto model = make_model(testing::small_config(), 6);
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : model->parameters()) {
    if (parameter.name.ends_with(".s_r")) parameter.tensor.fill_(-20);
  }
  const Tensor mass = model->attention_mass(random_tokens(1, 40, model->vocab_size(), 1), 0, 40, {});
  EXPECT_EQ(mass.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(mass.abs().max().item<double>(), 0.0);
}

TEST(Multiscreen, CountsTheWorkOfATokensWeights) {
  const auto model = make_model(complete_config({{"psi", 8}, {"vocab_size", 500}}), 1);
  constexpr int64_t kVectors = 2 + 3 * 8 * 8;  // s_E, s_F; s_w, s_r, s_O of each head: no products
  EXPECT_EQ(model->flops_per_token(4096).weights, 2.0 * (917'698 - kVectors + 500 * 64));
}

TEST(Multiscreen, CountsTheInitialWindowsWithoutWeights) {
  const json config = small_config({{"mipe_threshold", 64}});
  const auto made = make_model(config, 1),
             planned = make_model(config, Start{.seed = std::nullopt, .device = at::kMeta});
  EXPECT_EQ(planned->flops_per_token(4096).executed(1), made->flops_per_token(4096).executed(1));
}

TEST(Multiscreen, CountsTheKeysThatWindowsShow) {
  const auto model = make_model(testing::small_config({{"num_hidden_layers", 1}, {"num_attention_heads", 3}}), 1);
  const at::NoGradGuard no_grad;
  // Windows of 2.5 tokens (3 keys), of 9 (all 5), and infinite.
  for (const Parameter& parameter : model->parameters()) {
    if (parameter.name == "layers.0.s_w") parameter.tensor.copy_(at::tensor({std::log(1.5), std::log(8.0), 200.0}));
  }
  double keys = 0;
  for (int64_t query = 0; query < 5; ++query) keys += std::min<double>(query + 1, 3) + 2.0 * (query + 1);
  const Flops flops = model->flops_per_token(5);
  EXPECT_NEAR(flops.similarities, 2 * 6 * keys / 5, 1e-9);
  EXPECT_NEAR(flops.values, 2 * 10 * keys / 5, 1e-9);
  EXPECT_EQ(flops.executed(0.5), flops.weights + flops.similarities + 0.5 * flops.values);
}

TEST(Multiscreen, ShowsEveryActivationInOrder) {
  const auto model = make_model(testing::small_config(), 1);
  std::vector<std::string> names;
  const at::Tensor tokens = testing::random_tokens(1, 9, 37, 1);
  const at::Tensor observed =
      model->hidden(tokens, {.observe = [&](const std::string& name, const at::Tensor&) { names.push_back(name); }});
  EXPECT_TRUE(observed.equal(model->hidden(tokens, {})));
  ASSERT_EQ(names.size(), 2 + 3 * 6u);
  EXPECT_EQ(names.front(), "embedding");
  EXPECT_EQ(names[1], "layers.0.q");
  EXPECT_EQ(names[5], "layers.0.screening");
  EXPECT_EQ(names[6], "layers.0");
  EXPECT_EQ(names.back(), "final");
}

/// Loss and gradients of a step, as training makes them.
std::vector<Tensor> step_of(const Model& model, const Tensor& tokens_BT, const ForwardOptions& options) {
  const Tensor x = model.hidden(tokens_BT.slice(1, 0, -1), options);
  const Tensor head = model.head_weight().to(options.compute_dtype);
  const Tensor loss =
      ops::linear_cross_entropy(x.to(options.compute_dtype).flatten(0, 1), head, tokens_BT.slice(1, 1).flatten(), {});
  std::vector<Tensor> parameters;
  for (const Parameter& parameter : model.parameters()) parameters.push_back(parameter.tensor);
  std::vector<Tensor> result = torch::autograd::grad({loss}, parameters);
  result.push_back(loss.detach());
  return result;
}

TEST(Multiscreen, AStepHasTheSameBitsForAnyNumberOfThreadsByOneDnn) {
  const auto model = make_model({{"psi", 8}, {"vocab_size", 300}}, 3);
  const Tensor tokens = random_tokens(2, 700, 300, 5);
  if (!ops::testing::has_backend(at::kFloat, ops::MatmulBackend::kOneDnn)) {
    GTEST_SKIP() << "oneDNN never multiplies float32 on this processor";
  }
  const ops::testing::Backend set(at::kFloat, ops::MatmulBackend::kOneDnn);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    if (dtype == at::kBFloat16 && instruction_set() < InstructionSet::kAvx512Bf16) continue;
    std::vector<Tensor> expected;
    for (const int threads : {1, 2, 5}) {
      const ops::testing::Threads count(threads);
      const std::vector<Tensor> found = step_of(*model, tokens, {.compute_dtype = dtype});
      if (expected.empty()) expected = found;
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(ops::testing::same_bits(found[i], expected[i]))
            << dtype << ", " << threads << " threads, tensor " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tamis::models

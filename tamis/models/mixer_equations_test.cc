// Mixers and MLPs against the equations of the papers, from the checkpoint's names, in float64, query by query.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tamis/models/model_config.h"
#include "tamis/models/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using nlohmann::json;
using testing::disturb;
using testing::named_doubles;
using testing::random_tokens;
using testing::small_model;

using Named = std::map<std::string, Tensor>;

Tensor rms(const Tensor& x, double eps) {
  return x / (x.square().mean(-1, true) + eps).sqrt();
}

/// LLaMA's rotation of one row of a head.
Tensor rotated_row(const Tensor& x, double position, const ModelConfig& c) {
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

/// Algorithm 1 of "Sieve Attention": keys within epsilon of the largest score, sticks over all keys, oldest first.
std::vector<double> algorithm1_weights(const std::vector<double>& z, double epsilon) {
  std::vector<double> weights(z.size(), 0.0);
  double left = 1;
  for (size_t j = 0; j < z.size(); ++j) {
    if (z[j] >= *std::max_element(z.begin(), z.end()) - epsilon) weights[j] = sigmoid(z[j]) * left;
    left *= 1 - sigmoid(z[j]);
  }
  return weights;
}

/// Weights of the keys with scores z, oldest first.
std::vector<double> paper_weights(char letter, const std::vector<double>& z, const ModelConfig& c) {
  if (letter == 'v' && c.sieve == "algorithm1") return algorithm1_weights(z, c.sieve_epsilon);
  const double alpha = c.alpha;
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

double length_factor(const ModelConfig& c, const TensorsOf& of, const Named& w, int64_t h, int64_t seen) {
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

Tensor paper_attention(const ModelConfig& c, char letter, const TensorsOf& of, const Named& w, const Tensor& n) {
  const int64_t T = n.size(0), H = c.num_attention_heads, d = c.head_dim();
  const bool rotates = letter != 'b' && letter != 'v', scalable = letter == 'a' || letter == 'w';
  const int64_t hidden = c.strict.value_or(!rotates) ? 1 : 0;  // whether a query's own key is
  const Tensor qkv = n.matmul(of("qkv_proj.weight").t()).view({T, 3, H, d});
  Tensor mixed = at::zeros({T, H, d}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    const auto row = [&](int64_t which, int64_t t) {
      Tensor y = qkv[t][which][h];
      if (c.qk_norm && which < 2) y = rms(y, c.norm_eps) * of(which == 0 ? "q_norm.weight" : "k_norm.weight");
      return which < 2 && rotates ? rotated_row(y, static_cast<double>(t), c) : y;
    };
    for (int64_t i = 0; i < T; ++i) {
      const int64_t end = i + 1 - hidden, first = letter == 'w' ? std::max<int64_t>(0, end - c.window) : 0;
      if (first == end) continue;
      const double factor = scalable ? length_factor(c, of, w, h, end - first) : 1.0;
      std::vector<double> z;
      for (int64_t j = first; j < end; ++j) {
        z.push_back(row(0, i).dot(row(1, j)).item<double>() * factor / std::sqrt(static_cast<double>(d)));
      }
      const std::vector<double> weights = paper_weights(letter, z, c);
      for (int64_t j = first; j < end; ++j) mixed[i][h] += weights[j - first] * row(2, j);
    }
  }
  return mixed.flatten(1).matmul(of("o_proj.weight").t());
}

/// "SWAX" and xLSTM-large: the recurrence, a layer norm of every head, the output gate.
Tensor paper_mlstm(const ModelConfig& c, const TensorsOf& of, const Tensor& n) {
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

/// "Screening Is Enough", Eq. (4)-(18).
Tensor paper_screening(const ModelConfig& c, const TensorsOf& of, const Tensor& n) {
  const int64_t T = n.size(0), H = c.num_attention_heads, K = c.key_dim, V = c.value_dim;
  std::vector<Tensor> projected;
  for (const char* name : {"q", "k", "v", "g"}) {
    projected.push_back(n.matmul(of(std::string(name) + "_proj.weight").t()));
  }
  Tensor mixed = at::zeros({T, H, V}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    const double scale = c.output_scale ? std::exp(of("s_O")[h].item<double>()) : 1;
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
      mixed[i][h] = scale * sum * (g / (1 + (-g).exp())).tanh();
    }
  }
  return mixed.flatten(1).matmul(of("o_proj.weight").t());
}

Tensor paper_logits(const ModelConfig& c, const Named& w, const Tensor& tokens_T) {
  const bool unit = c.embedding == "unit";
  const Tensor W = unit ? w.at("embed.weight") / w.at("embed.weight").norm(2, -1, true) : w.at("embed.weight");
  const auto norm = [&](const Tensor& y) { return c.norm == "rms" ? rms(y, c.norm_eps) : y; };
  const auto weight = [&](const Tensor& y, const TensorsOf& of, const char* name) {
    return c.norm == "rms" ? y * of(name) : y;
  };
  Tensor x = W.index_select(0, tokens_T);
  if (unit) x = x * w.at("s_E").exp();
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const TensorsOf of = [&](const std::string& name) { return w.at("layers." + std::to_string(l) + "." + name); };
    const Tensor n = weight(norm(x), of, "mixer_norm.weight");
    const char letter = c.mixer_of(l);
    x = x + (letter == 'm'   ? paper_mlstm(c, of, n)
             : letter == 's' ? paper_screening(c, of, n)
                             : paper_attention(c, letter, of, w, n));
    if (c.mlp == "none") continue;
    const Tensor m = weight(norm(x), of, "mlp_norm.weight");
    const Tensor up = m.matmul(of("up_proj.weight").t());
    const Tensor inner = c.mlp == "gelu" ? up * 0.5 * (1 + at::erf(up / std::sqrt(2.0)))
                                         : at::silu(m.matmul(of("gate_proj.weight").t())) * up;
    x = x + inner.matmul(of("down_proj.weight").t());
  }
  x = norm(x);
  if (c.final_norm_weight) x = x * w.at("norm.weight");
  if (unit) return w.at("s_F").exp() * x.matmul(W.t());
  return x.matmul(w.at(c.tie_word_embeddings ? "embed.weight" : "head.weight").t());
}

class Variant : public ::testing::TestWithParam<json> {};

TEST_P(Variant, IsThePapersModel) {
  const auto model = make_model(small_model(GetParam()), 3);
  disturb(*model);
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(2, 20, model->vocab_size(), 1);
  const Tensor logits = at::linear(model->hidden(tokens, {}), model->head_weight());
  for (int64_t b = 0; b < 2; ++b) {
    const Tensor exact = paper_logits(read_model_config(small_model(GetParam())), named_doubles(*model), tokens[b]);
    EXPECT_LT((logits[b] - exact).abs().max().item<double>(), 2e-5 * exact.abs().max().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Variant,
    ::testing::Values(
        json::object(), json{{"position", "none"}}, json{{"qk_norm", true}},
        json{{"rope_theta", 500.0}, {"rope_factor", 4.0}}, json{{"ssmax", "learned"}}, json{{"ssmax", "one"}},
        json{{"ssmax", "bias"}, {"qk_norm", true}}, json{{"ssmax", "fixed"}}, json{{"ssmax", "position"}},
        json{{"pattern", "w"}}, json{{"mlp", "gelu"}}, json{{"pattern", "aw"}, {"ssmax", "learned"}},
        json{{"pattern", "e"}}, json{{"pattern", "e"}, {"alpha", 1.25}}, json{{"pattern", "b"}}, json{{"pattern", "v"}},
        json{{"pattern", "m"}}, json{{"pattern", "s"}}, json{{"pattern", "m"}, {"mlstm_heads", 2}},
        json{{"pattern", "vwm"}, {"qk_norm", true}}, json{{"pattern", "s"}, {"output_scale", false}},
        json{{"pattern", "sa"}, {"embedding", "unit"}}, json{{"pattern", "sma"}, {"norm", "none"}},
        json{{"pattern", "sw"}, {"mlp", "none"}}, json{{"tie_word_embeddings", false}, {"final_norm_weight", true}},
        json{{"strict", true}}, json{{"pattern", "w"}, {"strict", true}}, json{{"pattern", "w"}, {"strict", false}},
        json{{"pattern", "aw"}, {"strict", true}, {"ssmax", "bias"}, {"qk_norm", true}},
        json{{"pattern", "wa"}, {"strict", true}, {"ssmax", "position"}}, json{{"pattern", "e"}, {"strict", true}},
        json{{"pattern", "b"}, {"strict", false}}, json{{"pattern", "v"}, {"strict", false}},
        json{{"pattern", "awebv"}, {"strict", true}}, json{{"pattern", "v"}, {"sieve", "algorithm1"}},
        json{{"pattern", "v"}, {"sieve", "algorithm1"}, {"sieve_epsilon", 0.2}, {"strict", false}}));

}  // namespace
}  // namespace tamis::models

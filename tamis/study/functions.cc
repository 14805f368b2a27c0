#include "tamis/study/functions.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/nn/rows.h"
#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_functions.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"
#include "tamis/ops/window.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using Numbers = std::vector<double>;

struct Function {
  std::vector<std::string> metrics;
  std::map<std::string, Numbers> defaults;
  void (*evaluate)(const std::map<std::string, Numbers>& settings, const AddRow& add);
};

using Settings = std::map<std::string, Numbers>;

/// `count` equally spaced numbers from `first` to `last`.
Numbers spaced(double first, double last, int count) {
  Numbers numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(first + (last - first) * i / (count - 1));
  return numbers;
}

/// A number that may have become 63.99999 in a table of powers.
int64_t whole(double value) {
  return std::llround(value);
}

void trim(const Settings& settings, const AddRow& add) {
  for (const double r : settings.at("r")) {
    for (const double s : settings.at("similarity")) {
      add("trim", ops::trim(s, r), {{"r", r}, {"similarity", s}});
    }
  }
}

void softmask(const Settings& settings, const AddRow& add) {
  for (const double w : settings.at("w")) {
    for (const double distance : settings.at("distance")) {
      add("softmask", ops::softmask(distance, w), {{"w", w}, {"distance", distance}});
    }
  }
}

void mipe(const Settings& settings, const AddRow& add) {
  for (const double threshold : settings.at("threshold")) {
    for (const double w : settings.at("w")) {
      add("mipe_phi", ops::mipe_phi(w, threshold), {{"w", w}, {"threshold", threshold}});
    }
  }
}

void tanh_norm(const Settings& settings, const AddRow& add) {
  for (const double norm : settings.at("norm")) add("tanh_norm", ops::tanh_norm(norm), {{"norm", norm}});
}

/// The keys' weights for one query, by the operators: the weight of the keys marked 1 in `target_n` and of the others.
struct Weights {
  double target, others;
};

const std::vector<std::string> kMechanisms = {"softmax", "ssmax", "entmax", "stick-breaking", "sieve"};

/// `scores_n`, float64, oldest key first. `s` is the factor of Scalable-Softmax.
at::Tensor attend(const std::string& mechanism, const at::Tensor& scores_n, const at::Tensor& values_nV, double alpha,
                  double s) {
  const at::Tensor q = at::ones({1, 1, 1, 1}, at::kDouble);
  const at::Tensor k = scores_n.reshape({1, -1, 1, 1}), v = values_nV.reshape({1, values_nV.size(0), 1, -1});
  if (mechanism == "softmax") return ops::softmax_attention(q, k, v, {.scale = 1});
  if (mechanism == "ssmax")
    return ops::softmax_attention(q, k, v, {.scale = 1, .log_scale = at::full({1}, s, at::kDouble)});
  if (mechanism == "entmax") return ops::entmax_attention(q, k, v, {.alpha = alpha, .scale = 1});
  if (mechanism == "sieve") return ops::sieve_attention(q, k, v, {.alpha = alpha, .scale = 1, .strict = false});
  return std::get<0>(ops::stick_breaking_attention(q, k, v, {.scale = 1, .strict = false}));
}

Weights weights(const std::string& mechanism, const at::Tensor& scores_n, const at::Tensor& target_n, double alpha,
                double s) {
  const at::Tensor values = at::stack({target_n, 1 - target_n}, 1);
  const at::Tensor sums = attend(mechanism, scores_n, values, alpha, s).reshape({2});
  return {sums[0].item<double>(), sums[1].item<double>()};
}

void largest_weight(const Settings& settings, const AddRow& add) {
  for (const double size : settings.at("n")) {
    const int64_t n = whole(size);
    for (const double largest : settings.at("largest")) {
      at::Tensor scores = at::full({n}, settings.at("others")[0], at::kDouble), target = at::zeros({n}, at::kDouble);
      scores[n - 1] = largest;
      target[n - 1] = 1;
      for (const char* mechanism : {"softmax", "ssmax"}) {
        const Weights result = weights(mechanism, scores, target, 1.5, settings.at("s")[0]);
        add("largest_weight", result.target, {{"mechanism", mechanism}, {"n", n}, {"largest", largest}});
      }
    }
  }
}

/// The relevance of each key for a head with an infinite window and without positions.
at::Tensor relevance(const at::Tensor& query_1K, const at::Tensor& keys_nK, double r) {
  const at::Tensor s_w = at::full({1}, INFINITY, at::kDouble);
  const at::Tensor s_r = at::full({1}, ops::acceptance_scalar(r), at::kDouble);
  const auto found = ops::reference::screening_relevance(
      query_1K.reshape({1, 1, 1, -1}), keys_nK.reshape({1, keys_nK.size(0), 1, -1}), s_w, s_r, {{.position = "none"}});
  return (found.trim * found.softmask).flatten();
}

/// Calls `draw(seed, size, generator)` for the seeds 1, 2, ... and every value of the setting `sizes`, with a generator
/// for each seed.
template <typename Draw>
void for_each_draw(const Settings& settings, const char* sizes, const Draw& draw) {
  for (int64_t seed = 1; seed <= whole(settings.at("seeds")[0]); ++seed) {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
    for (const double size : settings.at(sizes)) draw(seed, whole(size), generator);
  }
}

/// One key equals the query, n - 1 keys are random; K dimensions. The scores of attention are gain cos(q, k).
void target_weight(const Settings& settings, const AddRow& add) {
  const auto dimensions = whole(settings.at("key_dim")[0]);
  const double gain = settings.at("gain")[0], r = settings.at("r")[0], alpha = settings.at("alpha")[0];
  for_each_draw(settings, "n", [&](int64_t seed, int64_t n, at::Generator& generator) {
    at::Tensor keys = nn::unit_rows(at::randn({n, dimensions}, generator, at::kDouble));
    const at::Tensor query = nn::unit_rows(at::randn({1, dimensions}, generator, at::kDouble));
    at::Tensor target = at::zeros({n}, at::kDouble);
    keys[n / 2].copy_(query[0]);
    target[n / 2] = 1;
    const at::Tensor cosines = keys.matmul(query[0]);
    const auto add_both = [&](const std::string& mechanism, const Weights& result) {
      const json columns = {{"mechanism", mechanism}, {"n", n}, {"seed", seed}};
      add("target_weight", result.target, columns);
      add("noise_weight", result.others, columns);
    };
    for (const std::string& mechanism : kMechanisms) {
      add_both(mechanism, weights(mechanism, gain * cosines, target, alpha, settings.at("s")[0]));
    }
    const at::Tensor accepted = relevance(query, keys, r);
    add_both("screening", {accepted.dot(target).item<double>(), accepted.dot(1 - target).item<double>()});
  });
}

/// The share of random directions whose cosine with a random direction is above 1 - r.
void accepted_share(const Settings& settings, const AddRow& add) {
  constexpr int64_t kPairs = 1 << 18;
  for_each_draw(settings, "key_dim", [&](int64_t seed, int64_t dimensions, at::Generator& generator) {
    const at::Tensor keys = nn::unit_rows(at::randn({kPairs, dimensions}, generator, at::kDouble));
    const at::Tensor cosines = keys.select(1, 0);  // with a fixed query; all directions are alike
    for (const double r : settings.at("r")) {
      const double share = (cosines > 1 - r).to(at::kDouble).mean().item<double>();
      add("accepted_share", share, {{"key_dim", dimensions}, {"r", r}, {"seed", seed}});
    }
  });
}

/// The number of keys that alpha-entmax selects among n with scores from N(0, 1).
void entmax_support(const Settings& settings, const AddRow& add) {
  for_each_draw(settings, "n", [&](int64_t seed, int64_t n, at::Generator& generator) {
    const at::Tensor scores = std::get<0>(at::randn({n}, generator, at::kDouble).sort(/*dim=*/0, /*descending=*/true));
    for (const double alpha : settings.at("alpha")) {
      // The support is the longest prefix of the sorted scores whose last one is selected. It is not counted from an
      // operator's weights, because these underflow for alpha near 1.
      int64_t low = 1, high = n;
      const auto selected = [&](int64_t count) {
        const at::Tensor z = (alpha - 1) * scores.narrow(0, 0, count);
        const at::Tensor above = (z - z[count - 1]).pow(1 / (alpha - 1));
        return above.sum().item<double>() < 1;
      };
      while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (selected(middle))
          low = middle;
        else
          high = middle - 1;
      }
      add("entmax_support", static_cast<double>(low), {{"n", n}, {"alpha", alpha}, {"seed", seed}});
    }
  });
}

/// The oldest key has the score `target`, the newest `competitors` keys half of it, all others noise from N(0, 1).
void distractors(const Settings& settings, const AddRow& add) {
  const auto competitors = whole(settings.at("competitors")[0]);
  for_each_draw(settings, "n", [&](int64_t seed, int64_t n, at::Generator& generator) {
    const at::Tensor noise = at::randn({n}, generator, at::kDouble);
    for (const double target : settings.at("target")) {
      at::Tensor scores = noise.clone(), parts = at::zeros({n, 3}, at::kDouble);
      scores[0] = target;
      scores.narrow(0, n - competitors, competitors).fill_(target / 2);
      parts.select(1, 2).fill_(1);
      parts[0].copy_(at::tensor({1.0, 0.0, 0.0}, at::kDouble));
      parts.narrow(0, n - competitors, competitors).copy_(at::tensor({0.0, 1.0, 0.0}, at::kDouble));
      for (const std::string& mechanism : kMechanisms) {
        const at::Tensor sums =
            attend(mechanism, scores, parts, settings.at("alpha")[0], settings.at("s")[0]).reshape({3});
        const json columns = {{"mechanism", mechanism}, {"n", n}, {"target", target}, {"seed", seed}};
        for (int part = 0; part < 3; ++part) {
          json at = columns;
          at["part"] = std::array{"target", "competitors", "noise"}[static_cast<size_t>(part)];
          add("distractor_weights", sums[part].item<double>(), at);
        }
      }
    }
  });
}

double entropy(const at::Tensor& weights) {
  return -at::xlogy(weights, weights).sum().item<double>();
}

/// The propositions of paper 001 on random scores of n keys:
///
///   entropy_larger      1 if H(a) > H(c): Proposition 1 says that it never is. a: the weights, divided by their sum;
///                       c: alpha-entmax
///   distractor_selected 1 if a nearer key with half the score of the farthest, highest one is selected (Prop. 2)
///   ratio_error         largest relative error of the ratio of two weights by Proposition 3
///   weight_sum          of all keys
void sieve_properties(const Settings& settings, const AddRow& add) {
  const double alpha = settings.at("alpha")[0], scale = settings.at("scale")[0];
  for_each_draw(settings, "n", [&](int64_t seed, int64_t n, at::Generator& generator) {
    at::Tensor scores = scale * at::randn({n}, generator, at::kDouble);
    const at::Tensor eye = at::eye(n, at::kDouble);
    const at::Tensor a = attend("sieve", scores, eye, alpha, 1).reshape({n});
    const at::Tensor c = attend("entmax", scores, eye, alpha, 1).reshape({n});
    const json columns = {{"n", n}, {"seed", seed}};
    const auto add_property = [&](const char* property, double value) {
      json at = columns;
      at["property"] = property;
      add("sieve_properties", value, at);
    };
    add_property("entropy_larger", entropy(a / a.sum()) > entropy(c) + 1e-9 ? 1 : 0);
    add_property("weight_sum", a.sum().item<double>());
    const at::Tensor chosen = (c > 0).nonzero().flatten();
    double worst = 0;
    // Of neighbours i < j in S: a_i / a_j = sigmoid(z_i) / sigmoid(z_j) (1 - sigmoid(z_j)).
    for (int64_t i = 0; i + 1 < chosen.size(0); ++i) {
      const auto first = chosen[i].item<int64_t>(), second = chosen[i + 1].item<int64_t>();
      const double before = at::sigmoid(scores[first]).item<double>(),
                   after = at::sigmoid(scores[second]).item<double>();
      const double expected = before / after * (1 - after) * a[second].item<double>();
      if (expected > 1e-200) worst = std::max(worst, std::abs(a[first].item<double>() / expected - 1));
    }
    add_property("ratio_error", worst);
    const double highest = scores.abs().max().item<double>() * 2 + 4;
    scores[0] = highest;
    scores[n - 1] = highest / 2;
    const at::Tensor selected = attend("entmax", scores, eye, alpha, 1).reshape({n});
    add_property("distractor_selected", selected[n - 1].item<double>() > 0 ? 1 : 0);
  });
}

const std::map<std::string, Function>& functions() {
  static const Numbers kPowers = {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
  static const std::map<std::string, Function> kFunctions = {
      {"trim", {{"trim"}, {{"r", {0.1, 0.25, 0.5, 0.9}}, {"similarity", spaced(-1, 1, 201)}}, trim}},
      {"softmask", {{"softmask"}, {{"w", {16, 64, 256}}, {"distance", spaced(0, 300, 301)}}, softmask}},
      {"mipe", {{"mipe_phi"}, {{"threshold", {256}}, {"w", spaced(1, 400, 400)}}, mipe}},
      {"tanh_norm", {{"tanh_norm"}, {{"norm", spaced(0, 5, 101)}}, tanh_norm}},
      {"largest_weight",
       {{"largest_weight"}, {{"n", kPowers}, {"largest", {3}}, {"others", {-2}}, {"s", {0.43}}}, largest_weight}},
      {"target_weight",
       {{"target_weight", "noise_weight"},
        {{"n", kPowers},
         {"key_dim", {16}},
         {"gain", {8}},
         {"r", {0.25}},
         {"alpha", {1.5}},
         {"s", {0.43}},
         {"seeds", {8}}},
        target_weight}},
      {"accepted_share", {{"accepted_share"}, {{"key_dim", {16}}, {"r", {0.5}}, {"seeds", {5}}}, accepted_share}},
      {"entmax_support",
       {{"entmax_support"}, {{"n", {16, 256, 4096}}, {"alpha", {1.5}}, {"seeds", {8}}}, entmax_support}},
      {"distractors",
       {{"distractor_weights"},
        {{"n", {32, 128, 512, 2048}},
         {"target", {8}},
         {"competitors", {8}},
         {"alpha", {1.5}},
         {"s", {0.43}},
         {"seeds", {8}}},
        distractors}},
      {"sieve_properties",
       {{"sieve_properties"},
        {{"n", {8, 32, 128}}, {"alpha", {1.5}}, {"scale", {1}}, {"seeds", {100}}},
        sieve_properties}},
  };
  return kFunctions;
}

void check_setting(const std::string& name, const std::string& key, double value) {
  const bool count = key == "n" || key == "key_dim" || key == "seeds" || key == "competitors";
  if (count && !(value >= 1 && value <= 1 << 24)) {
    fail(ExitCode::kUsage, "settings.{} of {} must be in 1..{}, but is {}", key, name, 1 << 24, value);
  }
  if (!std::isfinite(value)) fail(ExitCode::kUsage, "settings.{} of {} must be finite", key, name);
}

/// Settings of which a function uses one value; all others are evaluated for each value of a list.
bool is_single(const std::string& name, const std::string& key) {
  static const std::map<std::string, std::set<std::string>> kSingle = {
      {"largest_weight", {"others", "s"}},
      {"target_weight", {"key_dim", "gain", "r", "alpha", "s", "seeds"}},
      {"accepted_share", {"seeds"}},
      {"entmax_support", {"seeds"}},
      {"distractors", {"competitors", "alpha", "s", "seeds"}},
      {"sieve_properties", {"alpha", "scale", "seeds"}},
  };
  const auto found = kSingle.find(name);
  return found != kSingle.end() && found->second.contains(key);
}

}  // namespace

json function_settings(const std::string& name, const json& settings) {
  std::vector<std::string> known;
  for (const auto& [each, unused] : functions()) known.push_back(each);
  const auto found = functions().find(name);
  if (found == functions().end()) throw Error(ExitCode::kUsage, unknown_name("function", name, known));
  json complete = found->second.defaults;
  std::vector<std::string> keys;
  for (const auto& [key, unused] : complete.items()) keys.push_back(key);
  for (const auto& [key, value] : settings.items()) {
    if (!complete.contains(key)) throw Error(ExitCode::kUsage, unknown_name("setting of " + name, key, keys));
    const json list = value.is_array() ? value : json::array({value});
    bool numbers = !list.empty();
    for (const json& each : list) numbers = numbers && each.is_number();
    if (!numbers) fail(ExitCode::kUsage, "settings.{} of {} must be a number or a list of numbers", key, name);
    for (const json& each : list) check_setting(name, key, each);
    if (list.size() > 1 && is_single(name, key))
      fail(ExitCode::kUsage, "settings.{} of {} must be one number", key, name);
    complete[key] = list;
  }
  if (name == "distractors" && *std::ranges::min_element(complete["n"]) <= complete["competitors"][0]) {
    fail(ExitCode::kUsage, "settings.n of distractors must be more than settings.competitors, {}",
         complete["competitors"][0].dump());
  }
  return complete;
}

std::vector<std::string> function_metrics(const std::string& name) {
  const auto found = functions().find(name);
  return found == functions().end() ? std::vector<std::string>() : found->second.metrics;
}

void evaluate_function(const std::string& name, const json& settings, const AddRow& add) {
  functions().at(name).evaluate(settings.get<Settings>(), add);
}

}  // namespace tamis::study

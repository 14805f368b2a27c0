#include "tamis/report/relevance_data.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/models/model_config.h"
#include "tamis/ops/window.h"
#include "tamis/report/base64.h"
#include "tamis/text/utf8.h"

namespace tamis::report {
namespace {

constexpr double kMostBytes = 4.0 * (1 << 30);

/// Writes float16 numbers with run-length encoding of zeros (see encode_map).
class HalfWriter {
 public:
  void add(uint16_t half) {
    if (half == 0) {
      if (++zeros_ == UINT16_MAX) end_run();
      return;
    }
    end_run();
    put(half);
  }
  std::string finish() {
    end_run();
    return std::move(bytes_);
  }

 private:
  void put(uint16_t half) {
    bytes_ += static_cast<char>(half & 0xff);
    bytes_ += static_cast<char>(half >> 8);
  }
  void end_run() {
    if (zeros_ == 0) return;
    put(0);
    put(static_cast<uint16_t>(zeros_));
    zeros_ = 0;
  }

  std::string bytes_;
  int zeros_ = 0;
};

/// The power of two by which weights are divided so that the largest is in [2^14, 2^15): float16 then keeps 11 bits of
/// every weight down to 2^-29 of the largest.
double weight_scale(float largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0, exponent - 15);
}

/// exp(entropy) of the normalised weights, the effective number of keys; 0 when all weights are 0.
double spread_over(std::span<const float> weights) {
  double sum = 0, logs = 0;
  for (const float weight : weights) {
    if (!(weight > 0)) continue;
    sum += weight;
    logs += weight * std::log(static_cast<double>(weight));
  }
  return sum > 0 ? std::exp(std::log(sum) - logs / sum) : 0;
}

/// One head of a map [H, T, T] as contiguous float32 on the CPU.
at::Tensor of_head(const at::Tensor& map_HTT, int64_t head) {
  return map_HTT.select(0, head).to(at::kCPU, at::kFloat).contiguous();
}

/// Escapes bytes beyond ASCII as `\xE2`.
std::string escaped(std::string_view bytes) {
  std::string result;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    result += byte < 0x80 ? std::string(1, c) : fmt::format("\\x{:02X}", byte);
  }
  return result;
}

}  // namespace

int64_t keys_in_window(int64_t query, double window) {
  return ops::visible_span(window, query + 1);
}

Mechanism mechanism_of(const nlohmann::json& config, int64_t layer) {
  const models::MixerKind& kind = models::find_mixer(models::read_model_config(config).mixer_of(layer));
  return {kind.name, kind.support};
}

nlohmann::json encode_map(const models::RelevanceMap& map, int64_t head, const Mechanism& mechanism) {
  const bool screening = map.trim.defined() && !map.accept.empty();
  const at::Tensor relevance_TT = of_head(map.relevance, head);
  const double scale = screening ? 1 : weight_scale(relevance_TT.max().item<float>());
  const at::Tensor halves_TT = (screening ? of_head(map.trim, head).sqrt() : relevance_TT / scale).to(at::kHalf);
  const float* relevance = relevance_TT.const_data_ptr<float>();
  const at::Half* halves = halves_TT.const_data_ptr<at::Half>();
  const int64_t T = relevance_TT.size(0);
  const double window = map.window.at(head);

  HalfWriter numbers;
  int64_t inside = 0, nonzero = 0, queries = 0;
  double keys = 0;
  for (int64_t query = 0; query < T; ++query) {
    const int64_t span = keys_in_window(query, window), first = query * T + query + 1 - span;
    for (int64_t at = first; at < first + span; ++at) {
      const bool weighs = relevance[at] > 0.0f;
      nonzero += weighs;
      numbers.add(weighs ? std::max<uint16_t>(halves[at].x, 1) : 0);
    }
    inside += span;
    const double spread = spread_over({relevance + first, static_cast<size_t>(span)});
    queries += spread > 0;
    keys += spread;
  }
  const auto number_or_null = [](bool known, double value) { return known ? nlohmann::json(value) : nlohmann::json(); };
  return {
      {"layer", map.layer},
      {"head", head},
      {"window", number_or_null(std::isfinite(window), window)},
      {"accept", map.accept.empty() ? nlohmann::json() : nlohmann::json(map.accept.at(head))},
      {"mechanism", mechanism.name},
      {"selects", mechanism.support == models::Support::kSelected},
      {"nonzero", static_cast<double>(nonzero) / static_cast<double>(std::max<int64_t>(inside, 1))},
      {"keys", number_or_null(queries > 0, keys / static_cast<double>(std::max<int64_t>(queries, 1)))},
      {"scale", number_or_null(!screening, scale)},
      {"numbers", base64(numbers.finish())},
  };
}

std::vector<std::string> readable_tokens(const text::Tokenizer& tokenizer, std::span<const int64_t> tokens) {
  constexpr size_t kMostBytesOfACharacter = 4;
  std::vector<std::string> result;
  while (result.size() < tokens.size()) {
    const auto rest = tokens.subspan(result.size());
    std::string bytes;
    size_t count = 0;
    bool whole = false;
    while (!whole && count < std::min(kMostBytesOfACharacter, rest.size())) {
      bytes = tokenizer.decode(rest.first(++count));
      whole = text::valid_utf8(bytes) == bytes;
    }
    result.push_back(whole ? bytes : escaped(tokenizer.decode(rest.first(1))));
    if (whole) result.insert(result.end(), count - 1, "\u2027");
  }
  return result;
}

Relevance find_relevance(const models::Model& model, const text::Tokenizer& tokenizer, std::span<const int64_t> tokens,
                         const models::ForwardOptions& options) {
  if (tokens.empty()) fail(ExitCode::kInput, "relevance maps: expected a text of at least one token, got an empty one");
  const auto T = static_cast<double>(tokens.size());
  const double bytes = 4.0 * sizeof(float) * T * T * static_cast<double>(model.relevance_maps());
  if (bytes > kMostBytes) {
    fail(ExitCode::kUsage,
         "relevance maps: those of {} tokens would need {}, more than {}; ask for fewer with --tokens", tokens.size(),
         format_bytes(bytes), format_bytes(kMostBytes));
  }
  const auto size = static_cast<int64_t>(tokens.size());
  const at::Tensor tokens_1T =
      at::tensor(at::ArrayRef<int64_t>(tokens.data(), tokens.size())).view({1, size}).to(model.head_weight().device());
  Relevance found{
      .tokens = readable_tokens(tokenizer, tokens), .maps = model.relevance(tokens_1T, options), .mechanisms = {}};
  for (const models::RelevanceMap& map : found.maps) {
    found.mechanisms.push_back(mechanism_of(model.config(), map.layer));
  }
  return found;
}

nlohmann::json to_json(const Relevance& relevance) {
  nlohmann::json maps = nlohmann::json::array();
  for (size_t l = 0; l < relevance.maps.size(); ++l) {
    const models::RelevanceMap& map = relevance.maps[l];
    for (int64_t head = 0; head < std::ssize(map.window); ++head)
      maps.push_back(encode_map(map, head, relevance.mechanisms[l]));
  }
  return {{"tokens", relevance.tokens}, {"maps", std::move(maps)}};
}

}  // namespace tamis::report

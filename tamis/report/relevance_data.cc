#include "tamis/report/relevance_data.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/report/base64.h"
#include "tamis/text/utf8.h"

namespace tamis::report {
namespace {

constexpr double kMostBytes = 4.0 * (1 << 30);

/// Codes in the page's order, runs of zeros shortened.
class CodeWriter {
 public:
  void add(uint8_t code) {
    if (code == 0) {
      if (++zeros_ == 255) end_run();
      return;
    }
    end_run();
    bytes_ += static_cast<char>(code);
  }
  std::string finish() {
    end_run();
    return std::move(bytes_);
  }

 private:
  void end_run() {
    if (zeros_ == 0) return;
    bytes_ += '\0';
    bytes_ += static_cast<char>(zeros_);
    zeros_ = 0;
  }

  std::string bytes_;
  int zeros_ = 0;
};

uint8_t quantised(double fraction) {
  return static_cast<uint8_t>(std::clamp(static_cast<int>(std::lround(255.0 * fraction)), 1, 255));
}

/// A head of [H, T, T] as contiguous float32 on the CPU.
at::Tensor of_head(const at::Tensor& map_HTT, int64_t head) {
  return map_HTT.select(0, head).to(at::kCPU, at::kFloat).contiguous();
}

/// Bytes beyond ASCII as `\xE2`.
std::string escaped(std::string_view bytes) {
  std::string result;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    result += byte < 0x80 ? std::string(1, c) : fmt::format("\\x{:02X}", byte);
  }
  return result;
}

}  // namespace

nlohmann::json encode_map(const models::RelevanceMap& map, int64_t head) {
  const bool screening = map.trim.defined() && !map.accept.empty();
  const at::Tensor relevance_TT = of_head(map.relevance, head);
  const at::Tensor coded_TT = screening ? of_head(map.trim, head) : relevance_TT;
  const float scale = screening ? 1.0f : std::max(relevance_TT.max().item<float>(), 1e-30f);
  const float* relevance = relevance_TT.data_ptr<float>();
  const float* coded = coded_TT.data_ptr<float>();
  const int64_t T = relevance_TT.size(0);
  const double window = map.window.at(head);

  CodeWriter codes;
  int64_t inside = 0, nonzero = 0;
  for (int64_t query = 0; query < T; ++query) {
    // Distances 0 <= d < w, w a real number: ceil(w) of them.
    const int64_t span = window > static_cast<double>(query) ? query + 1 : static_cast<int64_t>(std::ceil(window));
    for (int64_t key = query + 1 - span; key <= query; ++key) {
      const int64_t at = query * T + key;
      const bool accepted = relevance[at] > 0.0f;
      inside += 1;
      nonzero += accepted;
      codes.add(!accepted ? 0 : quantised(screening ? std::sqrt(coded[at]) : coded[at] / scale));
    }
  }
  return {
      {"layer", map.layer},
      {"head", head},
      {"window", std::isfinite(window) ? nlohmann::json(window) : nlohmann::json()},
      {"accept", map.accept.empty() ? nlohmann::json() : nlohmann::json(map.accept.at(head))},
      {"nonzero", static_cast<double>(nonzero) / static_cast<double>(std::max<int64_t>(inside, 1))},
      {"scale", screening ? nlohmann::json() : nlohmann::json(scale)},
      {"codes", base64(codes.finish())},
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

nlohmann::json describe_relevance(const models::Model& model, const text::Tokenizer& tokenizer,
                                  std::span<const int64_t> tokens, const models::ForwardOptions& options) {
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
  nlohmann::json maps = nlohmann::json::array();
  for (const models::RelevanceMap& map : model.relevance(tokens_1T, options)) {
    for (int64_t head = 0; head < static_cast<int64_t>(map.window.size()); ++head)
      maps.push_back(encode_map(map, head));
  }
  return {{"tokens", readable_tokens(tokenizer, tokens)}, {"maps", std::move(maps)}};
}

}  // namespace tamis::report

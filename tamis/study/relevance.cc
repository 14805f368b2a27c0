#include "tamis/study/relevance.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "tamis/infer/decode.h"
#include "tamis/infer/load.h"

namespace tamis::study {
namespace {

constexpr double kLeastRelevance = 0.01;  // of a query, in the mean

struct Head {
  std::string name;
  double distance = 0;      // of the relevance, tokens, in the mean
  at::Tensor relevance_TT;  // float64
};

std::string name_of(const models::RelevanceMap& map, int64_t head) {
  const auto at = static_cast<size_t>(head);
  std::string name = fmt::format("layer {}, head {}", map.layer, head);
  const double window = map.window[at];
  if (std::isfinite(window))
    name += window < 100 ? fmt::format(", w {:.3g}", window) : fmt::format(", w {:.0f}", window);
  if (!map.accept.empty()) name += fmt::format(", r {:.2f}", map.accept[at]);
  return name;
}

}  // namespace

void add_relevance(const models::Model& model, const std::vector<int64_t>& tokens, int64_t heads, bool expand_windows,
                   const AddRow& add) {
  const auto count = static_cast<int64_t>(tokens.size());
  const at::Tensor place_T = at::arange(count, at::kDouble);
  const at::Tensor distance_TT = (place_T.unsqueeze(1) - place_T).clamp_min(0);
  std::vector<Head> found;
  const at::Tensor tokens_1T = infer::to_tensor(tokens).to(infer::device_of(model));
  for (const models::RelevanceMap& map : model.relevance(tokens_1T, {.expand_windows = expand_windows})) {
    const at::Tensor all_HTT = map.relevance.to(at::kCPU, at::kDouble);
    for (int64_t head = 0; head < all_HTT.size(0); ++head) {
      const at::Tensor relevance_TT = all_HTT[head];
      const auto sum = relevance_TT.abs().sum().item<double>();
      if (sum < kLeastRelevance * static_cast<double>(count)) continue;
      const double distance = (relevance_TT.abs() * distance_TT).sum().item<double>() / sum;
      found.push_back({name_of(map, head), distance, relevance_TT});
    }
  }
  std::ranges::stable_sort(found, std::greater(), &Head::distance);
  found.resize(std::min(found.size(), static_cast<size_t>(heads)));
  for (const Head& head : found) {
    const auto relevance = head.relevance_TT.accessor<double, 2>();
    for (int64_t query = 0; query < count; ++query) {
      for (int64_t key = 0; key <= query; ++key) {
        add("relevance", relevance[query][key], {{"map", head.name}, {"query", query + 1}, {"key", key + 1}});
      }
    }
  }
}

}  // namespace tamis::study

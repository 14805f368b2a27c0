#include "tamis/study/recall.h"

#include <ATen/ATen.h>

#include <utility>

#include "tamis/data/registry.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/load.h"

namespace tamis::study {
namespace {

/// Relevance of the queries of one instance for all heads of all layers, every row divided by its sum: [N, Q, T],
/// float64. `heads` becomes their layers and numbers.
at::Tensor shares_of(const models::Model& model, const data::TokenInstance& instance, bool expand_windows,
                     std::vector<std::pair<int64_t, int64_t>>& heads) {
  const at::Tensor tokens_1T = infer::to_tensor(instance.ids).to(infer::device_of(model));
  const at::Tensor queries_Q = infer::to_tensor(instance.answer_positions).squeeze(0);
  std::vector<at::Tensor> layers;
  heads.clear();
  for (const models::RelevanceMap& map : model.relevance(tokens_1T, {.expand_windows = expand_windows})) {
    const at::Tensor rows = map.relevance.index_select(1, queries_Q.to(map.relevance.device()));
    layers.push_back(rows.to(at::kCPU, at::kDouble));
    for (int64_t head = 0; head < map.relevance.size(0); ++head) heads.emplace_back(map.layer, head);
  }
  const at::Tensor all_NQT = at::cat(layers);
  const at::Tensor sums = all_NQT.sum(-1, /*keepdim=*/true);
  return at::where(sums > 0, all_NQT / sums, at::zeros({}, at::kDouble));
}

/// 1 where a token belongs to a pair with the key of the query: [Q, T] for the newest pair, and for all older ones.
std::pair<at::Tensor, at::Tensor> pairs_of(const data::TokenInstance& instance) {
  const auto queries = static_cast<int64_t>(instance.answer_positions.size());
  const auto tokens = static_cast<int64_t>(instance.ids.size());
  const int64_t first_query = instance.answer_positions.front();
  at::Tensor newest_QT = at::zeros({queries, tokens}, at::kDouble), stale_QT = at::zeros_like(newest_QT);
  for (int64_t q = 0; q < queries; ++q) {
    const int64_t key = instance.ids[instance.answer_positions[q]];
    bool found = false;
    for (int64_t t = first_query - 2; t >= 0; --t) {
      if (instance.ids[t] != key) continue;
      (found ? stale_QT : newest_QT)[q].narrow(0, t, 2).fill_(1);
      found = true;
    }
  }
  return {newest_QT, stale_QT};
}

}  // namespace

const std::vector<std::string>& recall_tasks() {
  static const std::vector<std::string> kTasks = {"mqar", "mqrar"};
  return kTasks;
}

Recall recall_of(const models::Model& model, const eval::TaskEvalOptions& options, int64_t length) {
  const data::TaskRequest request{
      .length = length, .depth = std::nullopt, .seed = options.seed, .settings = options.settings, .haystack = nullptr};
  std::vector<std::pair<int64_t, int64_t>> heads;
  at::Tensor newest_N, stale_N, first_NQT;
  for (int64_t index = 0; index < options.instances; ++index) {
    const auto instance =
        std::get<data::TokenInstance>(data::make_instance(data::find_task(options.task), request, index));
    const at::Tensor shares_NQT = shares_of(model, instance, options.expand_windows, heads);
    const auto [newest_QT, stale_QT] = pairs_of(instance);
    const at::Tensor newest = (shares_NQT * newest_QT).sum(-1).mean(-1) / options.instances;
    const at::Tensor stale = (shares_NQT * stale_QT).sum(-1).mean(-1) / options.instances;
    newest_N = index == 0 ? newest : newest_N + newest;
    stale_N = index == 0 ? stale : stale_N + stale;
    if (index == 0) first_NQT = shares_NQT;
  }
  const auto best = (newest_N + stale_N).argmax().item<int64_t>();
  return {.layer = heads[best].first,
          .head = heads[best].second,
          .newest = newest_N[best].item<double>(),
          .stale = stale_N[best].item<double>(),
          .map_QT = first_NQT[best]};
}

void add_recall(const models::Model& model, const eval::TaskEvalOptions& options, bool map, const AddRow& add) {
  for (const int64_t length : options.lengths) {
    nlohmann::json columns = {{"task", options.task}, {"length", length}};
    const Recall recall = recall_of(model, options, length);
    add("newest_mass", recall.newest, columns);
    add("stale_mass", recall.stale, columns);
    add("stale_share", recall.stale / (recall.stale + recall.newest), columns);
    for (int64_t q = 0; map && q < recall.map_QT.size(0); ++q) {
      for (int64_t t = 0; t < recall.map_QT.size(1); ++t) {
        columns["query"] = q + 1;
        columns["key"] = t + 1;
        add("recall_map", recall.map_QT[q][t].item<double>(), columns);
      }
    }
  }
}

}  // namespace tamis::study

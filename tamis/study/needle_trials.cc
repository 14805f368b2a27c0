#include "tamis/study/needle_trials.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tamis::study {
namespace {

using nlohmann::json;

/// A score with its columns.
struct Ranked {
  double score;
  json columns;
};

void add_ranked(const char* metric, std::vector<Ranked> list, const AddRow& add) {
  std::ranges::stable_sort(list, std::ranges::greater(), &Ranked::score);
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].columns["rank"] = i + 1;
    add(metric, list[i].score, list[i].columns);
  }
}

std::vector<Ranked> heads_of(const at::Tensor& needle_LH, const eval::TaskCell& cell) {
  std::vector<Ranked> heads;
  for (int64_t layer = 0; layer < needle_LH.size(0); ++layer) {
    for (int64_t head = 0; head < needle_LH.size(1); ++head) {
      json columns = {{"length", cell.length}, {"layer", layer}, {"head", head}};
      if (cell.depth) columns["depth"] = *cell.depth;
      heads.push_back({needle_LH[layer][head].item<double>(), std::move(columns)});
    }
  }
  return heads;
}

}  // namespace

void add_needle_trials(const eval::TaskResult& result, const AddRow& add) {
  std::map<size_t, at::Tensor> sums;                 // by cell
  std::map<int64_t, std::vector<Ranked>> instances;  // by length
  for (const eval::NeedleTrial& trial : result.trials) {
    at::Tensor& sum_LH = sums[trial.cell];
    sum_LH = sum_LH.defined() ? sum_LH + trial.needle_LH : trial.needle_LH;
    const int64_t length = result.cells[trial.cell].length;
    const char* outcome = trial.right ? "right" : trial.first_right ? "first character" : "wrong";
    instances[length].push_back({trial.needle_LH.max().item<double>(), {{"length", length}, {"outcome", outcome}}});
  }
  for (const auto& [cell, sum_LH] : sums) {
    const eval::TaskCell& of = result.cells[cell];
    add_ranked("needle_score_head", heads_of(sum_LH / of.instances, of), add);
  }
  for (auto& [length, list] : instances) add_ranked("needle_score_trial", std::move(list), add);
}

}  // namespace tamis::study

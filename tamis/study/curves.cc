#include "tamis/study/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "tamis/base/json.h"

namespace tamis::study {
namespace {

using nlohmann::json;

constexpr size_t kCurvePoints = 200;

/// A loss above the median of the preceding kSpikeWindow records by kSpike nats is a spike.
constexpr size_t kSpikeWindow = 20;
constexpr double kSpike = 0.5;

struct TrainRecord {
  int64_t step;
  double loss, gradient_norm;
};

/// How many neighbouring records a point of a curve stands for.
size_t records_per_point(size_t records) {
  return std::max<size_t>(1, (records + kCurvePoints - 1) / kCurvePoints);
}

void add_means(const std::vector<TrainRecord>& records, int64_t batch_tokens, const AddRow& add) {
  const size_t each = records_per_point(records.size());
  for (size_t first = 0; first < records.size(); first += each) {
    const size_t last = std::min(first + each, records.size());
    double loss = 0, norm = 0;
    for (size_t i = first; i < last; ++i) {
      loss += records[i].loss;
      norm += records[i].gradient_norm;
    }
    const int64_t step = records[last - 1].step;
    const json columns = {{"step", step}, {"tokens", step * batch_tokens}};
    add("training_loss", loss / static_cast<double>(last - first), columns);
    add("gradient_norm", norm / static_cast<double>(last - first), columns);
  }
}

void add_heads(const std::vector<json>& records, const AddRow& add) {
  const size_t each = records_per_point(records.size());
  for (size_t i = records.empty() ? 0 : (records.size() - 1) % each; i < records.size(); i += each) {
    const json& record = records[i];
    for (const auto& [metric, key] : {std::pair{"window_curve", "windows"}, {"acceptance_curve", "accepts"}}) {
      std::vector<double> values;
      for (const json& layer : record.value(key, json::array())) {
        for (const json& value : layer) {  // null: an infinite window
          values.push_back(value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity());
        }
      }
      if (values.empty()) continue;
      std::ranges::sort(values);
      for (const auto& [name, value] :
           {std::pair{"smallest", values.front()}, {"median", values[values.size() / 2]}, {"largest", values.back()}}) {
        if (std::isfinite(value)) add(metric, value, {{"step", record["step"]}, {"head", name}});
      }
    }
  }
}

int64_t count_spikes(const std::vector<TrainRecord>& records) {
  int64_t spikes = 0;
  for (size_t i = kSpikeWindow; i < records.size(); ++i) {
    std::vector<double> before;
    for (size_t j = i - kSpikeWindow; j < i; ++j) before.push_back(records[j].loss);
    std::ranges::nth_element(before, before.begin() + kSpikeWindow / 2);
    spikes += records[i].loss > before[kSpikeWindow / 2] + kSpike ? 1 : 0;
  }
  return spikes;
}

}  // namespace

void add_curves(const std::string& log, int64_t batch_tokens, const AddRow& add) {
  std::vector<TrainRecord> records;
  std::vector<json> heads;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const json record = try_parse_json(line);
    if (record.is_object() && text_at(record, "type") == "tiles") heads.push_back(record);
    if (!record.is_object() || !record.contains("step") || !record.contains("loss") || !record["loss"].is_number()) {
      continue;
    }
    const int64_t step = record["step"];
    if (text_at(record, "type") == "validation") {
      add("validation_curve", record["loss"], {{"step", step}, {"source", text_at(record, "source")}});
    } else if (text_at(record, "type") == "train") {
      const bool has_norm = record.contains("grad_norm") && record["grad_norm"].is_number();
      records.push_back({step, record["loss"], has_norm ? record["grad_norm"].get<double>() : std::nan("")});
    }
  }
  add_means(records, batch_tokens, add);
  add_heads(heads, add);
  add("loss_spikes", static_cast<double>(count_spikes(records)), json::object());
}

}  // namespace tamis::study

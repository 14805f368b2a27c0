#include "tamis/report/run_data.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"

namespace tamis::report {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t kRanges = 1000, kGroupRanges = 200;
constexpr size_t kMostHeadValues = 40'000;
constexpr std::array kCurves = {"loss", "grad_norm", "lr", "tokens_per_second"};
constexpr std::array kLatest = {"tokens", "seconds", "mfu", "memory_bytes"};

struct Series {
  std::vector<int64_t> x;
  std::vector<double> y;

  void add(int64_t step, double value) {
    x.push_back(step);
    y.push_back(value);
  }
};

/// The points with the smallest and the largest y of each of `ranges` ranges, in order.
Series thinned(const Series& series, size_t ranges) {
  const size_t size = series.x.size();
  if (size <= 2 * ranges) return series;
  Series result;
  for (size_t s = 0; s < ranges; ++s) {
    const auto first = series.y.begin() + static_cast<std::ptrdiff_t>(s * size / ranges);
    const auto last = series.y.begin() + static_cast<std::ptrdiff_t>((s + 1) * size / ranges);
    const auto [low, high] = std::minmax_element(first, last);
    for (const auto& point : {std::min(low, high), std::max(low, high)}) {
      result.add(series.x[point - series.y.begin()], *point);
      if (low == high) break;
    }
  }
  return result;
}

json to_json(const Series& series, size_t ranges = kRanges) {
  const Series thin = thinned(series, ranges);
  return {{"x", thin.x}, {"y", thin.y}};
}

/// The records of log.jsonl, in order.
std::vector<json> parse_lines(std::string_view log, const fs::path& name) {
  std::vector<json> records;
  for (size_t line = 1, at = 0; at < log.size(); ++line) {
    const size_t end = log.find('\n', at);
    if (end == std::string_view::npos) break;  // an incomplete last line: training is still writing it
    json record = try_parse_json(log.substr(at, end - at));
    if (!record.is_object()) {
      fail(ExitCode::kInput, "{}:{}: expected a JSON object; is this the log of a run?", name.string(), line);
    }
    records.push_back(std::move(record));
    at = end + 1;
  }
  return records;
}

/// The history of windows and acceptance widths: every n-th record and the last one.
json head_history(const std::vector<const json*>& records) {
  const json& windows = (*records.front())["windows"];
  size_t heads = 0;
  for (const json& layer : windows) heads += layer.size();
  const size_t most = std::max<size_t>(kMostHeadValues / std::max<size_t>(heads, 1), 2);
  const size_t every = (records.size() + most - 1) / most;
  json history = {{"step", json::array()}, {"windows", json::array()}, {"accepts", json::array()}};
  for (size_t r = 0; r < records.size(); ++r) {
    if (r % every != 0 && r + 1 != records.size()) continue;
    for (const char* key : {"step", "windows", "accepts"}) history[key].push_back((*records[r])[key]);
  }
  return history;
}

json read_object(const fs::path& path) {
  json content = read_json(path);
  if (!content.is_object()) fail(ExitCode::kInput, "{}: expected a JSON object", path.string());
  return content;
}

/// Every eval/NAME.json, by name.
json read_evaluations(const fs::path& directory) {
  json found = json::object();
  if (!fs::is_directory(directory)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".json") found[entry.path().stem().string()] = read_object(entry.path());
  }
  return found;
}

bool is_head_record(const json& record) {
  return record.contains("windows") && record["windows"].is_array() && record.contains("accepts") &&
         record["accepts"].is_array();
}

}  // namespace

json read_log(std::string_view log_jsonl, const fs::path& name) {
  const std::vector<json> records = parse_lines(log_jsonl, name);
  std::map<std::string, Series> curves, groups, validation;
  std::vector<const json*> heads;
  json training = json::object(), samples = json::array();
  for (const json& record : records) {
    if (!record.contains("step") || !record["step"].is_number_integer()) continue;
    const auto step = record["step"].get<int64_t>();
    const std::string type = text_at(record, "type", "");
    if (type == "train") {
      training["steps"] = step;
      for (const char* field : kLatest) {
        if (record.contains(field)) training[field] = record[field];
      }
      for (const char* field : kCurves) {
        if (record.contains(field) && record[field].is_number()) curves[field].add(step, record[field]);
      }
      if (!record.contains("grad_norms") || !record["grad_norms"].is_object()) continue;
      for (const auto& [group, norm] : record["grad_norms"].items()) {
        if (norm.is_number()) groups[group].add(step, norm);
      }
    } else if (type == "validation" && record.contains("loss") && record["loss"].is_number()) {
      validation[text_at(record, "source", "validation")].add(step, record["loss"]);
    } else if (type == "tiles" && is_head_record(record)) {
      heads.push_back(&record);
    } else if (type == "sample" && record.contains("text")) {
      samples.push_back({{"step", step}, {"prompt", text_at(record, "prompt", "")}, {"text", record["text"]}});
    }
  }
  for (const auto& [field, points] : curves) training[field] = to_json(points);
  for (const auto& [group, points] : groups) training["grad_norms"][group] = to_json(points, kGroupRanges);
  for (const auto& [source, points] : validation) training["validation"][source] = to_json(points);
  if (!heads.empty()) training["tiles"] = head_history(heads);
  json result = json::object();
  if (!training.empty()) result["training"] = std::move(training);
  if (!samples.empty()) result["samples"] = std::move(samples);
  return result;
}

json read_run(const fs::path& directory) {
  const fs::path log = directory / "log.jsonl";
  if (!fs::exists(log)) {
    fail(ExitCode::kInput, "{}: expected a run directory with log.jsonl in it; name one that `tamis train` wrote",
         directory.string());
  }
  json result = read_log(read_file(log), log);
  if (const fs::path recipe = directory / "config.toml"; fs::exists(recipe)) result["recipe"] = read_file(recipe);
  if (const fs::path run = directory / "run.json"; fs::exists(run)) result["run"] = read_object(run);
  result["evals"] = read_evaluations(directory / "eval");
  return result;
}

}  // namespace tamis::report

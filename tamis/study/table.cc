#include "tamis/study/table.h"

#include <algorithm>
#include <set>

#include "tamis/base/json.h"
#include "tamis/study/functions.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// A number or a truth value that is not quoted, else null.
json plain_value(const std::string& text) {
  json value = try_parse_json(text);
  return value.is_number() || value.is_boolean() ? value : json();
}

std::string csv_field(const json& value) {
  const std::string text = plain_text(value);
  const bool ambiguous = value.is_string() && (text.empty() || !plain_value(text).is_null());
  if (!ambiguous && text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

/// A field of a line of CSV.
struct Field {
  std::string text;
  bool quoted = false;
};

/// Reads the fields of the next line and moves `at` behind it.
std::vector<Field> csv_line(const std::string& csv, size_t& at) {
  std::vector<Field> fields(1);
  for (bool inside = false; at < csv.size(); ++at) {
    const char c = csv[at];
    if (c == '"') {
      const bool doubled = inside && at + 1 < csv.size() && csv[at + 1] == '"';
      if (doubled) fields.back().text += csv[++at];
      if (!doubled) inside = !inside;
      fields.back().quoted = true;
    } else if (!inside && c == ',') {
      fields.emplace_back();
    } else if (!inside && c == '\n') {
      ++at;
      break;
    } else {
      fields.back().text += c;
    }
  }
  return fields;
}

}  // namespace

bool matches(const json& row, const json& where) {
  return agrees(row, where) &&
         std::ranges::all_of(where.items(), [&](const auto& item) { return row.contains(item.key()); });
}

bool agrees(const json& row, const json& where) {
  return std::ranges::all_of(where.items(), [&](const auto& item) {
    const auto found = row.find(item.key());
    if (found == row.end()) return true;
    if (!item.value().is_array()) return *found == item.value();
    return std::ranges::find(item.value(), *found) != item.value().end();
  });
}

std::map<json, double> seed_means(const RowList& rows) {
  std::map<json, std::pair<double, int>> sums;
  for (const json* row : rows) {
    if (!(*row)["value"].is_number()) continue;
    auto& [sum, count] = sums[row->value("seed", json())];
    sum += (*row)["value"].get<double>();
    ++count;
  }
  std::map<json, double> means;
  for (const auto& [seed, each] : sums) means[seed] = each.first / each.second;
  return means;
}

std::optional<json> best_value(const RowList& rows, const std::string& column, bool highest) {
  std::map<json, RowList> groups;
  for (const json* row : rows) groups[row->value(column, json())].push_back(row);
  std::optional<json> best;
  double best_mean = 0;
  for (const auto& [value, group] : groups) {
    const std::map<json, double> means = seed_means(group);
    if (means.empty()) continue;
    double mean = 0;
    for (const auto& [seed, each] : means) mean += each / static_cast<double>(means.size());
    if (best && (highest ? mean <= best_mean : mean >= best_mean)) continue;
    best = value;
    best_mean = mean;
  }
  return best;
}

std::vector<std::string> metrics_of(const Evaluation& evaluation) {
  const std::string& kind = evaluation.kind;
  if (kind == "task") {
    std::vector<std::string> metrics = {"score", "exact_match"};
    if (evaluation.task.needle_score) {
      metrics.insert(metrics.end(),
                     {"needle_score", "needle_score_best_head", "needle_score_head", "needle_score_trial"});
    }
    if (evaluation.checkpoint_length > 0) metrics.emplace_back("chosen_step");
    return metrics;
  }
  if (kind == "loss") {
    std::vector<std::string> metrics = {"nats_per_token", "nats_per_byte", "perplexity", "text_loss_at"};
    if (evaluation.loss.points > 0) metrics.emplace_back("text_loss_curve");
    return metrics;
  }
  if (kind == "heads") return {"window", "acceptance_width"};
  if (kind == "flops") return {"planned_flops_per_token"};
  if (kind == "costs") return {"flops_per_token", "state_bytes"};
  if (kind == "recall") return {"newest_mass", "stale_mass", "stale_share", "recall_map"};
  if (kind == "relevance") return {"relevance"};
  if (kind == "lm_eval") return {"acc", "acc_norm"};
  if (kind == "speed") return {"read_seconds", "token_seconds"};
  if (kind == "parameters") return {"parameter"};
  return function_metrics(evaluation.name);
}

std::vector<std::string> metrics(const StudyRecipe& recipe) {
  std::vector<std::string> names;
  if (recipe.model) names = {"parameters", "parameters_without_embedding"};
  if (recipe.train) {
    names.insert(names.end(), {"validation_loss", "source_loss", "loss_at", "validation_curve", "training_loss",
                               "gradient_norm", "loss_spikes", "diverged", "training_seconds", "tokens_per_second",
                               "window_curve", "acceptance_curve"});
  }
  if (recipe.choose) names.push_back("search_loss");
  for (const Evaluation& evaluation : recipe.evaluations) {
    for (const std::string& name : metrics_of(evaluation)) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> point_columns(const StudyRecipe& recipe) {
  std::set<std::string> known;
  for (const Point& point : recipe.points) {
    for (const auto& item : point.columns.items()) known.insert(item.key());
  }
  return {known.begin(), known.end()};
}

std::vector<std::string> row_columns(const StudyRecipe& recipe) {
  std::set<std::string> known = {"seed",   "source", "position",      "last_position", "step",       "tokens",
                                 "task",   "depth",  "instances",     "length",        "checkpoint", "layer",
                                 "head",   "rank",   "query",         "key",           "map",        "outcome",
                                 "tensor", "index",  "expand_windows"};
  const auto add_keys = [&](const json& table) {
    for (const auto& item : table.items()) known.insert(item.key());
  };
  if (recipe.choose) known.insert(recipe.choose->column());
  for (const Evaluation& evaluation : recipe.evaluations) {
    for (const json& change : evaluation.changes) add_keys(change);
    if (evaluation.kind != "function") continue;
    add_keys(evaluation.settings);
    known.insert({"mechanism", "part", "property"});
  }
  return {known.begin(), known.end()};
}

std::optional<bool> higher_is_better(const std::string& metric) {
  static const std::set<std::string> kHigher = {
      "score", "exact_match", "needle_score", "needle_score_best_head", "tokens_per_second", "acc", "acc_norm"};
  static const std::set<std::string> kLower = {
      "validation_loss", "source_loss",  "loss_at",        "text_loss_at",     "text_loss_curve",
      "training_loss",   "search_loss",  "nats_per_token", "nats_per_byte",    "perplexity",
      "loss_spikes",     "read_seconds", "token_seconds",  "training_seconds", "validation_curve"};
  if (kHigher.contains(metric)) return true;
  if (kLower.contains(metric)) return false;
  return std::nullopt;
}

bool is_time(const std::string& metric) {
  static const std::set<std::string> kTimes = {"training_seconds", "tokens_per_second", "read_seconds",
                                               "token_seconds"};
  return kTimes.contains(metric);
}

std::string to_csv(const Rows& rows) {
  std::set<std::string> columns;
  for (const json& row : rows) {
    for (const auto& [key, value] : row.items()) columns.insert(key);
  }
  std::vector<std::string> order = {"metric", "value"};
  for (const std::string& column : columns) {
    if (column != "metric" && column != "value") order.push_back(column);
  }
  std::string csv;
  const auto add_line = [&](const auto& field) {
    for (size_t c = 0; c < order.size(); ++c) {
      if (c > 0) csv += ',';
      csv += field(order[c]);
    }
    csv += "\n";
  };
  add_line([](const std::string& column) { return csv_field(column); });
  for (const json& row : rows) {
    add_line([&](const std::string& column) {
      const auto found = row.find(column);
      return found == row.end() || found->is_null() ? std::string() : csv_field(*found);
    });
  }
  return csv;
}

Rows from_csv(const std::string& text) {
  size_t at = 0;
  const std::vector<Field> columns = csv_line(text, at);
  Rows rows;
  while (at < text.size()) {
    const std::vector<Field> fields = csv_line(text, at);
    json row = {{"value", json()}};
    for (size_t c = 0; c < std::min(columns.size(), fields.size()); ++c) {
      const Field& field = fields[c];
      if (field.text.empty() && !field.quoted) continue;
      const json plain = field.quoted || columns[c].text == "variant" ? json() : plain_value(field.text);
      row[columns[c].text] = plain.is_null() ? json(field.text) : plain;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace tamis::study

#include "tamis/study/figures.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/report/web_files.h"
#include "tamis/study/python.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// Keys with their defaults, which also give their types, and the values that a text may have.
struct Key {
  json value;
  std::vector<std::string> choices = {};
  bool optional = false;  // left out if it is not given, and checked by the caller
};
using Keys = std::map<std::string, Key>;

bool fits(const json& value, const json& like) {
  if (like.is_array()) {
    return value.is_array() && std::ranges::all_of(value, [](const json& each) { return each.is_string(); });
  }
  if (like.is_number()) return value.is_number();
  return value.type() == like.type();
}

json complete(const json& from, const Keys& keys, const std::string& kind) {
  if (!from.is_object()) fail(ExitCode::kUsage, "{} must be a table", kind);
  std::vector<std::string> known;
  for (const auto& [key, unused] : keys) known.push_back(key);
  json result;
  for (const auto& [key, each] : keys) {
    if (!each.optional) result[key] = each.value;
  }
  for (const auto& [key, given] : from.items()) {
    const auto found = keys.find(key);
    if (found == keys.end()) throw Error(ExitCode::kUsage, unknown_name("key of " + kind, key, known));
    const json& like = found->second.value;
    if (found->second.optional) {
      result[key] = given;
      continue;
    }
    const json value = like.is_array() && given.is_string() ? json::array({given}) : given;
    if (!fits(value, like)) fail(ExitCode::kUsage, "{} must be a {}, but is {}", key, like.type_name(), shown(given));
    const auto& choices = found->second.choices;
    if (!choices.empty() && std::ranges::find(choices, value.get<std::string>()) == choices.end()) {
      throw Error(ExitCode::kUsage, unknown_name(key, value.get<std::string>(), choices));
    }
    result[key] = value;
  }
  if (result["metric"].get<std::string>().empty()) fail(ExitCode::kUsage, "expected metric = \"...\"");
  return result;
}

/// `chance`: a number, or one for each value of the column that `by` names. A heatmap has one colour scale, so one
/// number.
void check_chance(const json& checked, const std::string& by) {
  if (!checked.contains("chance")) return;
  const json& chance = checked["chance"];
  const std::string kind = text_at(checked, "kind");
  if (kind == "histogram") fail(ExitCode::kUsage, "a histogram shows no chance; leave it out");
  if (chance.is_number()) return;
  if (kind == "heatmap")
    fail(ExitCode::kUsage, "chance of a heatmap must be a number, one line in its colour scale, but is {}",
         shown(chance));
  const bool numbers =
      chance.is_object() && std::ranges::all_of(chance, [](const json& each) { return each.is_number(); });
  if (!numbers || checked[by] == "") {
    fail(ExitCode::kUsage, "chance must be a number, or with {} a table with a number for each value, but is {}", by,
         shown(chance));
  }
}

}  // namespace

json complete_figure(const json& figure, size_t index) {
  static const Keys kKeys = {{"id", {fmt::format("figure-{}", index + 1)}},
                             {"title", {""}},
                             {"metric", {""}},
                             {"where", {json::object()}},
                             {"kind", {"lines", {"lines", "scatter", "bars", "heatmap", "histogram"}}},
                             {"x", {""}},
                             {"y", {""}},
                             {"series", {json::array({"variant"})}},
                             {"panels", {""}},
                             {"x_scale", {"linear", {"linear", "log"}}},
                             {"y_scale", {"linear", {"linear", "log"}}},
                             {"band", {"sd", {"sd", "range", "none"}}},
                             {"fit", {"none", {"none", "power", "log"}}},
                             {"best_over", {""}},
                             {"best", {"highest", {"highest", "lowest"}}},
                             {"smooth", {1}},
                             {"marginals", {json(), {}, /*optional=*/true}},
                             {"chance", {json(), {}, /*optional=*/true}},
                             {"x_label", {""}},
                             {"y_label", {""}}};
  Keys keys = kKeys;
  keys["id"].value = fmt::format("figure-{}", index + 1);
  json result = complete(figure, keys, "[[figures]]");
  if (result["kind"] == "histogram") {
    if (result["x"] == "") result["x"] = result["metric"];
    if (result["x"] != result["metric"]) fail(ExitCode::kUsage, "a histogram has no x but its metric");
    if (result["y_scale"] != "linear") fail(ExitCode::kUsage, "a histogram has a linear y_scale");
  }
  if (result["x"] == "") fail(ExitCode::kUsage, "expected x = \"...\", a column");
  if (result["kind"] == "heatmap" && result["y"] == "") fail(ExitCode::kUsage, "a heatmap needs y = \"...\", a column");
  check_chance(result, "panels");
  if (const json marginals = result.value("marginals", json(false)); !marginals.is_boolean()) {
    fail(ExitCode::kUsage, "marginals must be true or false, but is {}", shown(marginals));
  } else if (marginals == true && result["kind"] != "scatter") {
    fail(ExitCode::kUsage, "marginals are of a scatter, but kind is {}", shown(result["kind"]));
  }
  if (!(result["smooth"] >= 1)) fail(ExitCode::kUsage, "smooth must be at least 1, but is {}", shown(result["smooth"]));
  return result;
}

json complete_table(const json& table, size_t index) {
  const Keys keys = {{"title", {fmt::format("Table {}", index + 1)}},
                     {"metric", {""}},
                     {"where", {json::object()}},
                     {"rows", {json::array({"variant"})}},
                     {"columns", {""}},
                     {"best_over", {""}},
                     {"best", {"highest", {"highest", "lowest"}}},
                     {"scale", {1.0}},
                     {"chance", {json(), {}, /*optional=*/true}},
                     {"digits", {3}}};
  json result = complete(table, keys, "[[tables]]");
  check_chance(result, "columns");
  if (result["rows"].empty()) fail(ExitCode::kUsage, "rows is empty; expected at least one column, such as variant");
  const json& digits = result["digits"];
  if (!digits.is_number_integer() || digits < 0 || digits > 17) {
    fail(ExitCode::kUsage, "digits must be an integer in 0..17, but is {}", shown(digits));
  }
  return result;
}

std::vector<std::string> draw(const json& figures, const Rows& rows, const std::filesystem::path& directory,
                              std::FILE* messages) {
  std::vector<std::string> drawn;
  if (figures.empty()) return drawn;
  make_directories(directory);
  const json input = {{"figures", figures}, {"rows", rows}, {"directory", directory.string()}};
  const std::filesystem::path file = directory / fmt::format(".figures-{}.json", getpid());  // others may draw, too
  write_file_atomic(file, input.dump(-1, ' ', false, json::error_handler_t::replace));
  const auto [status, output] =
      run_program({python(), "-c", std::string(report::web_file("draw_figures.py")), file.string()});
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  if (status != 0) {
    print_message(messages, fmt::format("study: no figures: {} -c ...: {}; figures need Python with matplotlib: "
                                        "pip install matplotlib, or name an interpreter that has it in TAMIS_PYTHON\n",
                                        python(), status == 127 ? "not found" : last_line(output)));
    return drawn;
  }
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("not drawn: ")) print_message(messages, fmt::format("study: {}\n", line));
  }
  for (const json& figure : figures) {
    const std::string id = figure["id"];
    if (std::filesystem::exists(directory / (id + ".svg"), ignored)) drawn.push_back(id);
  }
  return drawn;
}

}  // namespace tamis::study

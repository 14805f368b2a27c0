#include "tamis/study/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/terminal.h"
#include "tamis/report/web_files.h"
#include "tamis/study/page_table.h"
#include "tamis/study/stored.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using Cells = std::vector<std::vector<std::string>>;  // the first row is the head
using Bold = std::set<std::pair<size_t, size_t>>;     // row and column

/// Renders the parts of a page as Markdown or HTML.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual void heading(int level, const std::string& text) = 0;
  virtual void paragraph(const std::string& text) = 0;
  virtual void list(const std::vector<std::string>& items) = 0;
  virtual void table(const Cells& cells, const Bold& bold) = 0;
  void table(const Cells& cells) { table(cells, {}); }
  virtual void figure(const std::string& id, const std::string& title) = 0;
  virtual void code(const std::string& text) = 0;
};

class Markdown : public Writer {
 public:
  explicit Markdown(std::string figures) : figures_(std::move(figures)) {}
  std::string text;

  void heading(int level, const std::string& title) override {
    text += fmt::format("{} {}\n\n", std::string(level, '#'), title);
  }
  void paragraph(const std::string& line) override { text += line + "\n\n"; }
  void list(const std::vector<std::string>& items) override {
    for (const std::string& item : items) text += "- " + item + "\n";
    text += "\n";
  }
  void table(const Cells& cells, const Bold& bold) override {
    for (size_t r = 0; r < cells.size(); ++r) {
      for (size_t c = 0; c < cells[r].size(); ++c) {
        const char* mark = bold.contains({r, c}) ? "**" : "";
        text += "| " + (mark + escaped(cells[r][c])) + mark + " ";
      }
      text += "|\n";
      if (r > 0) continue;
      for (size_t c = 0; c < cells[r].size(); ++c) text += "|---";
      text += "|\n";
    }
    text += "\n";
  }
  void figure(const std::string& id, const std::string& title) override {
    text += fmt::format("![{}]({}/{}.svg)\n\n", title, figures_, id);
  }
  void code(const std::string& lines) override { text += "```toml\n" + lines + "```\n\n"; }

 private:
  static std::string escaped(const std::string& cell) {
    std::string result;
    for (const char c : cell) result += c == '|' ? "\\|" : c == '\n' ? " " : std::string(1, c);
    return result;
  }
  std::string figures_;
};

class Html : public Writer {
 public:
  explicit Html(std::filesystem::path figures) : figures_(std::move(figures)) {}
  std::string text;

  static std::string escaped(const std::string& plain) {
    static const std::map<char, std::string> kEntities = {
        {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};
    std::string result;
    for (const char c : plain) {
      const auto entity = kEntities.find(c);
      result += entity == kEntities.end() ? std::string(1, c) : entity->second;
    }
    return result;
  }

  void heading(int level, const std::string& title) override {
    text += fmt::format("<h{0}>{1}</h{0}>\n", level, escaped(title));
  }
  void paragraph(const std::string& line) override { text += "<p>" + escaped(line) + "</p>\n"; }
  void list(const std::vector<std::string>& items) override {
    text += "<ul>\n";
    for (const std::string& item : items) text += "<li>" + escaped(item) + "</li>\n";
    text += "</ul>\n";
  }
  void table(const Cells& cells, const Bold& bold) override {
    text += "<div class=\"wide\"><table>\n";
    for (size_t r = 0; r < cells.size(); ++r) {
      text += "<tr>";
      for (size_t c = 0; c < cells[r].size(); ++c) {
        const std::string& cell = cells[r][c];
        const bool verdict = cell == "holds" || cell == "does not hold" || cell == "undecided";
        const std::string attribute =
            verdict ? fmt::format(" class=\"{}\"", cell == "does not hold" ? "fails" : cell) : "";
        const std::string shown = bold.contains({r, c}) ? "<b>" + escaped(cell) + "</b>" : escaped(cell);
        text += fmt::format("<{0}{1}>{2}</{0}>", r == 0 ? "th" : "td", attribute, shown);
      }
      text += "</tr>\n";
    }
    text += "</table></div>\n";
  }
  void figure(const std::string& id, const std::string& title) override {
    const std::filesystem::path file = figures_ / (id + ".svg");
    if (!std::filesystem::exists(file)) return;
    const std::string svg = read_file(file);
    const size_t begin = svg.find("<svg");
    if (begin == std::string::npos) return;
    text += fmt::format("<figure role=\"img\" aria-label=\"{}\">{}</figure>\n", escaped(title), svg.substr(begin));
  }
  void code(const std::string& lines) override { text += "<pre>" + escaped(lines) + "</pre>\n"; }

 private:
  std::filesystem::path figures_;
};

std::string margin(const json& claim) {
  std::vector<std::string> parts;
  if (claim["at_least"].is_number()) parts.push_back("at least " + number_text(claim["at_least"]));
  if (claim["at_most"].is_number()) parts.push_back("at most " + number_text(claim["at_most"]));
  if (claim.value("paired", false)) parts.emplace_back("paired by seed");
  std::string counted;
  for (const auto& [key, what] : {std::pair{"above", "values"}, {"seeds_above", "seeds"}}) {
    if (claim.contains(key)) counted = fmt::format("share of {} above {}", what, number_text(claim[key]));
  }
  std::string statistic = claim["statistic"];
  if (claim.contains("within"))
    statistic = fmt::format("largest {} within {}", text_at(claim, "x"), number_text(claim["within"]));
  if (!counted.empty()) statistic = statistic == "value" ? counted : fmt::format("{} of the {}", statistic, counted);
  return fmt::format("{} {}", statistic, fmt::join(parts, ", "));
}

std::string measured_with_reason(const json& claim) {
  std::string text = measured(claim);
  if (!claim["reason"].get<std::string>().empty()) text += fmt::format(" ({})", claim["reason"].get<std::string>());
  return text;
}

void write_claims(Writer& out, const json& study) {
  if (study["claims"].empty()) return;
  out.heading(2, "Verdicts");
  Cells cells = {{"claim", "the paper", "holds if", "measured [95% interval]", "verdict"}};
  for (const json& claim : study["claims"]) {
    cells.push_back({claim["text"], claim["paper"], margin(claim), measured_with_reason(claim), claim["verdict"]});
  }
  out.table(cells);
  for (const json& change : study["claim_changes"]) {
    out.paragraph(fmt::format("The claims were changed on {}, when {} results existed: {}.", text_at(change, "time"),
                              change.value("results", int64_t{0}), text_at(change, "what")));
  }
}

void write_table(Writer& out, const json& table, const Rows& rows) {
  const std::optional<PageTable> shown = page_table(table, rows);
  if (!shown) return;
  out.heading(3, table["title"]);
  out.paragraph(fmt::format("{}.", fmt::join(shown->notes, "; ")));
  out.table(shown->cells, shown->bold);
}

/// `AMD EPYC (avx512_bf16)`
std::string processor_of(const json& machine) {
  const std::string set = text_at(machine, "instruction_set");
  return text_at(machine, "processor", "unknown processor") + (set.empty() ? "" : " (" + set + ")");
}

/// ` (52m of processor time, 1 thread each)`; empty for results of versions that did not store it.
std::string work_of(const json& study) {
  std::vector<std::string> parts;
  if (const json seconds = study.value("processor_seconds", json()); seconds.is_number()) {
    parts.push_back(format_duration(seconds) + " of processor time");
  }
  if (const json threads = study.value("threads", json()); threads.is_array() && !threads.empty()) {
    const bool one = threads == json{1};
    parts.push_back(
        fmt::format("{} thread{} each", fmt::join(threads.get<std::vector<int64_t>>(), " or "), one ? "" : "s"));
  }
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

/// `AMD EPYC (avx2), 2 cores, Tamis 0.1.0 (8ba0599252b1), 2026-11-25T21:00:50Z`
std::string made_by(const json& machine, const std::string& version, const std::string& commit,
                    const std::string& time) {
  return fmt::format("{}, {} cores, Tamis {} ({}), {}", processor_of(machine),
                     number_text(machine.value("cores", json())), version, commit, time);
}

void write_runs(Writer& out, const json& study) {
  out.heading(2, "What was run");
  Cells cells = {{"model", "parameters", "without embedding", "tokens", "chosen", "runs", "time"}};
  const json none = json::array();
  for (const json& point : study["has_model"] ? study["points"] : none) {
    const std::string start = text_at(point, "start_from");
    cells.push_back({point["name"].get<std::string>() + (start.empty() ? "" : " (from " + start + ")"),
                     number_text(point["parameters"]), number_text(point["parameters_without_embedding"]),
                     point["tokens"].is_number() ? format_count(point["tokens"]) : "-", point["chosen"],
                     point["status"], format_duration(point["seconds"])});
  }
  if (study["has_model"]) out.table(cells);
  constexpr std::string_view kEdge = "(edge)";
  if (std::ranges::any_of(cells, [&](const auto& row) { return row[4].ends_with(kEdge); })) {
    out.paragraph(fmt::format(
        "{}: the smallest or the largest of the values that were tried; a better one may lie beyond.", kEdge));
  }
  out.paragraph(fmt::format("{} of {} jobs are done, {} in all{}. {}.", study["done"].get<int64_t>(),
                            study["jobs"].get<int64_t>(), format_duration(study["seconds"]), work_of(study),
                            made_by(study["machine"], study["version"], study["commit"], study["time"])));
}

/// What `tamis repro --check` found.
void write_check(Writer& out, const json& study) {
  const std::optional<NotedCheck> check = noted_check(study);
  if (!check) return;
  const std::string found = check->same ? "agrees with the stored values" : "differs: " + first_of(check->differences);
  out.paragraph(fmt::format("A repetition of {} {}. {}.", check->run, found,
                            made_by(check->machine, check->version, check->commit, check->time)));
}

/// The title, or what is drawn over what: `Validation loss by variant`.
std::string caption_of(const json& figure) {
  if (figure["title"] != "") return figure["title"];
  const auto in_words = [](std::string name) {
    static const std::map<std::string, std::string> kWords = {{"text_loss_at", "loss of texts"}, {"loss_at", "loss"}};
    if (const auto found = kWords.find(name); found != kWords.end()) return found->second;
    std::ranges::replace(name, '_', ' ');
    return name;
  };
  const std::string x = text_at(figure, "x");
  std::string caption = in_words(figure["metric"]) + (x.empty() ? "" : " by " + in_words(x));
  caption[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(caption[0])));
  return caption;
}

void write(Writer& out, const json& study, const Rows& rows) {
  const auto text = [&](const char* key) { return study[key].get<std::string>(); };
  out.heading(1, text("title"));
  if (!text("paper").empty()) out.paragraph(text("paper") + ".");
  if (!text("question").empty()) out.paragraph(text("question"));
  const std::string prepare = text_at(study, "prepare");
  out.paragraph("Command: " + command_of(study) + (prepare.empty() ? "" : ", after " + prepare));
  write_claims(out, study);
  if (!study["drawn"].empty()) out.heading(2, "Figures");
  for (const json& figure : study["figures"]) {
    if (std::ranges::find(study["drawn"], figure["id"]) == study["drawn"].end()) continue;
    out.figure(figure["id"], caption_of(figure));
  }
  if (!study["tables"].empty()) out.heading(2, "Tables");
  for (const json& table : study["tables"]) write_table(out, table, rows);
  write_runs(out, study);
  write_check(out, study);
  if (!study["assumptions"].empty()) {
    out.heading(2, "Assumptions");
    out.list(study["assumptions"].get<std::vector<std::string>>());
  }
  if (!study["failed"].empty()) {
    out.heading(2, "Diverged");
    out.list(study["failed"].get<std::vector<std::string>>());
  }
}

constexpr const char* kStyle = R"(
body > * { max-width: 60rem; margin-left: auto; margin-right: auto; }
body { padding: 1rem; overflow-wrap: break-word; } h2 { margin-top: 2rem; } p, ul { margin: 0.5rem auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; margin: 0.5rem 0; }
td, th { padding: 0.3rem 0.7rem; white-space: normal; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
figure { background: #fff; padding: 0.5rem; margin: 1rem auto; } figure svg { max-width: 100%; height: auto; }
pre { overflow-x: auto; background: var(--card); padding: 1rem; font-size: 0.8rem; }
.holds { color: var(--green); font-weight: 600; } .fails { color: var(--orange); font-weight: 600; }
)";

}  // namespace

std::string to_markdown(const json& study, const Rows& rows, const std::string& figures) {
  Markdown out(figures);
  write(out, study, rows);
  return out.text;
}

std::string to_html(const json& study, const Rows& rows, const std::filesystem::path& figures) {
  Html out(figures);
  write(out, study, rows);
  out.heading(2, "Recipe");
  out.code(study["recipe"]);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
      "data:\">\n"
      "<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      Html::escaped(study["title"]), report::web_file("report.css"), kStyle, out.text);
}

std::string measured(const json& claim) {
  if (!claim.is_object()) return "";
  std::string text = number_text(claim.value("value", json()));
  const json interval = claim.value("interval_95", json());
  if (interval.is_array() && interval.size() == 2) {
    text += fmt::format(" [{}, {}]", number_text(interval[0]), number_text(interval[1]));
  }
  return text;
}

}  // namespace tamis::study

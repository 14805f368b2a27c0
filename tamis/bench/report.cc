#include "tamis/bench/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/bench/dtypes.h"
#include "tamis/train/machine.h"

namespace tamis::bench {
namespace {

using nlohmann::json;

double per_second(double amount, const Row& row) {
  return amount / row.time.median;
}

double share_of_peak(const Row& row, const Peaks& peaks) {
  return per_second(row.flops, row) / peaks.flops(row.dtype, row.threads);
}

double share_of_bandwidth(const Row& row, const Peaks& peaks) {
  return per_second(row.bytes, row) / peaks.bytes_per_second(row.threads);
}

json row_json(const Row& row, const Peaks& peaks) {
  const Measurement& time = row.time;
  json json = {{"what", row.what},
               {"dtype", dtype_name(row.dtype)},
               {"threads", row.threads},
               {"tokens", row.tokens},
               {"batch", row.batch},
               {"seconds",
                {{"median", time.median},
                 {"minimum", time.minimum},
                 {"maximum", time.maximum},
                 {"lower_quartile", time.lower_quartile},
                 {"upper_quartile", time.upper_quartile},
                 {"mean", time.mean}}},
               {"calls", time.calls},
               {"tokens_per_second", per_second(row.tokens_per_call, row)},
               {"page_faults", time.page_faults},
               {"peak_bytes", time.peak_bytes},
               {"extra_bytes", time.extra_bytes}};
  if (row.flops > 0) {
    json["flops_per_second"] = per_second(row.flops, row);
    json["share_of_peak"] = share_of_peak(row, peaks);
  }
  if (row.bytes > 0) {
    json["bytes_per_second"] = per_second(row.bytes, row);
    json["share_of_bandwidth"] = share_of_bandwidth(row, peaks);
  }
  if (row.error) json["error"] = *row.error;
  if (row.ratio) json["ratio"] = {{"to", row.ratio->to}, {"value", row.ratio->value}};
  json.update(row.details);
  return json;
}

std::string duration(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.4g} ms", 1e3 * seconds);
  return fmt::format("{:.4g} s", seconds);
}

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

/// One column: its title, and the text of a row, empty where the row has none.
struct Column {
  const char* title;
  std::string (*text)(const Row& row, const Peaks& peaks);
  double (*share)(const Row& row, const Peaks& peaks) = nullptr;  // sets the colour
};

const std::array kColumns = {
    Column{"what", [](const Row& row, const Peaks&) { return row.what; }},
    Column{"dtype", [](const Row& row, const Peaks&) { return dtype_name(row.dtype); }},
    Column{"threads", [](const Row& row, const Peaks&) { return std::to_string(row.threads); }},
    Column{"tokens", [](const Row& row, const Peaks&) { return std::to_string(row.tokens); }},
    Column{"batch", [](const Row& row, const Peaks&) { return std::to_string(row.batch); }},
    Column{"median", [](const Row& row, const Peaks&) { return duration(row.time.median); }},
    Column{"spread", [](const Row& row, const Peaks&) { return percent(row.time.spread()); }},
    Column{"tok/s",
           [](const Row& row, const Peaks&) { return fmt::format("{:.0f}", per_second(row.tokens_per_call, row)); }},
    Column{"GFLOP/s",
           [](const Row& row, const Peaks&) {
             return row.flops > 0 ? fmt::format("{:.1f}", per_second(row.flops, row) / 1e9) : "";
           }},
    Column{"of peak",
           [](const Row& row, const Peaks& peaks) { return row.flops > 0 ? percent(share_of_peak(row, peaks)) : ""; },
           share_of_peak},
    Column{"GB/s",
           [](const Row& row, const Peaks&) {
             return row.bytes > 0 ? fmt::format("{:.1f}", per_second(row.bytes, row) / 1e9) : "";
           }},
    Column{
        "of read",
        [](const Row& row, const Peaks& peaks) { return row.bytes > 0 ? percent(share_of_bandwidth(row, peaks)) : ""; },
        share_of_bandwidth},
    Column{"memory",
           [](const Row& row, const Peaks&) { return format_bytes(static_cast<double>(row.time.peak_bytes)); }},
    Column{"extra",
           [](const Row& row, const Peaks&) { return format_bytes(static_cast<double>(row.time.extra_bytes)); }},
    Column{"faults", [](const Row& row, const Peaks&) { return fmt::format("{:.0f}", row.time.page_faults); }},
    Column{"error", [](const Row& row, const Peaks&) { return row.error ? fmt::format("{:.1e}", *row.error) : ""; }},
    Column{"vs",
           [](const Row& row, const Peaks&) {
             return row.ratio ? fmt::format("{:.3g} x {}", row.ratio->value, row.ratio->to) : "";
           }},
};

/// A column's title and texts, all of one width; none when no row fills it.
std::vector<std::string> column_lines(const Column& column, const Report& report, bool colour) {
  std::vector<std::string> lines = {column.title};
  bool filled = false;
  for (const Row& row : report.rows) {
    lines.push_back(column.text(row, report.peaks));
    filled = filled || !lines.back().empty();
  }
  if (!filled) return {};
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, line.size());
  const bool words = &column < &kColumns[2] || &column == &kColumns.back();
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string padded = words ? fmt::format("{:<{}}", lines[i], width) : fmt::format("{:>{}}", lines[i], width);
    const bool paint = colour && i > 0 && column.share != nullptr && !lines[i].empty();
    lines[i] = paint ? heat(padded, column.share(report.rows[i - 1], report.peaks)) : padded;
  }
  return lines;
}

}  // namespace

json to_json(const Report& report) {
  json rows = json::array();
  for (const Row& row : report.rows) rows.push_back(row_json(row, report.peaks));
  return {{"bench", report.bench},
          {"tamis", kVersion},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"machine", train::describe_machine()},
          {"options", report.options},
          {"peaks", report.peaks.to_json()},
          {"rows", rows},
          {"notes", report.notes}};
}

std::string to_table(const Report& report, bool colour) {
  const json machine = train::describe_machine();
  std::string table =
      fmt::format("bench {}: {}, {} cores, {}\n{}\n", report.bench, machine["processor"].get<std::string>(),
                  machine["cores"].dump(), machine["instruction_set"].get<std::string>(), report.peaks.to_text());
  std::vector<std::string> lines(report.rows.size() + 1);
  for (const Column& column : kColumns) {
    const std::vector<std::string> texts = column_lines(column, report, colour);
    for (size_t i = 0; i < texts.size(); ++i) lines[i] += (lines[i].empty() ? "" : "  ") + texts[i];
  }
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  for (const std::string& note : report.notes) table += (&note == &report.notes.front() ? "\n" : "") + note + "\n";
  return table;
}

}  // namespace tamis::bench

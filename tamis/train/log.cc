#include "tamis/train/log.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "tamis/base/json.h"
#include "tamis/train/machine.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Calls `visit` with every record and its line, up to the first line that is incomplete or damaged.
template <typename Visit>
void for_each_record(std::string_view text, const Visit& visit) {
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const json record = try_parse_json(text.substr(0, end));
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer()) return;
    visit(record, text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
}

bool has_type(const json& record, const char* type) {
  return record.value("type", json()) == type;
}

/// The range of a rollback; empty (last < first) when the record is damaged.
NonFiniteSteps::Range left_out_of(const json& record) {
  const json range = record.value("left_out", json());
  const bool valid =
      range.is_array() && range.size() == 2 && range[0].is_number_integer() && range[1].is_number_integer();
  if (!valid) return {.first = 0, .last = -1};
  return {range[0], range[1]};
}

/// Whether a run that continues after `step` has come to the record already.
bool is_done(const json& record, int64_t step, const NonFiniteSteps& known) {
  const auto holds = [](const auto& list, const auto& value) { return std::ranges::find(list, value) != list.end(); };
  if (has_type(record, "non_finite")) return holds(known.steps, record["step"].get<int64_t>());
  if (has_type(record, "rollback")) return holds(known.left_out, left_out_of(record));
  return record["step"] <= step;
}

/// Removes the records that are written again; returns the path.
const fs::path& cut_back(const fs::path& path, int64_t step, const NonFiniteSteps& known) {
  if (!fs::exists(path)) return path;
  const std::string text = read_file(path);
  std::string kept;
  for_each_record(text, [&](const json& record, std::string_view line) {
    if (is_done(record, step, known)) kept += line;
  });
  if (kept.size() < text.size()) write_file_atomic(path, kept);
  return path;
}

}  // namespace

Log::Log(const fs::path& path, int64_t step, const NonFiniteSteps& known)
    : file_(cut_back(path, step, known), FileWriter::Mode::kAppend) {}

void Log::write(json record) {
  if (events_) events_->add(record);
  record["time"] = utc_now();
  file_.write(json_text(record));
}

void Log::sync() {
  file_.sync();
  if (events_) events_->sync();
}

std::vector<NonFiniteSteps::Range> read_left_out(const fs::path& log) {
  std::vector<NonFiniteSteps::Range> ranges;
  if (!fs::exists(log)) return ranges;
  for_each_record(read_file(log), [&](const json& record, std::string_view) {
    if (!has_type(record, "rollback")) return;
    // Earlier versions wrote ranges that begin before the checkpoint, whose batches were trained on.
    NonFiniteSteps::Range range = left_out_of(record);
    range.first = std::max(range.first, record["step"].get<int64_t>() + 1);
    if (range.first <= range.last) ranges.push_back(range);
  });
  return ranges;
}

}  // namespace tamis::train

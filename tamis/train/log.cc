#include "tamis/train/log.h"

#include <string>
#include <system_error>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/train/machine.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;

/// Truncates the file after its last complete record of a step up to `step`; returns its path.
const fs::path& cut_back(const fs::path& path, int64_t step) {
  if (!fs::exists(path)) return path;
  const std::string text = read_file(path);
  size_t keep = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', keep)) {
    const auto record = try_parse_json(std::string_view(text).substr(keep, end - keep));
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer()) break;
    if (record["step"] > step) break;
    keep = end + 1;
  }
  std::error_code error;
  fs::resize_file(path, keep, error);
  if (error) fail(ExitCode::kStorage, "{}: cannot cut back to step {}: {}", path.string(), step, error.message());
  return path;
}

}  // namespace

Log::Log(const fs::path& path, int64_t step) : file_(cut_back(path, step), FileWriter::Mode::kAppend) {}

void Log::write(nlohmann::json record) {
  using nlohmann::json;
  if (events_) events_->add(record);
  record["time"] = utc_now();
  file_.write(json_text(record));
}

void Log::sync() {
  file_.sync();
  if (events_) events_->sync();
}

}  // namespace tamis::train

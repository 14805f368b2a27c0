#include "tamis/data/training_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/data/text_files.h"

namespace tamis::data {

TrainingText::TrainingText(const std::vector<std::string>& inputs, std::string field)
    : field_(std::move(field)), files_(find_text_files(inputs, "auto")) {
  for (const InputFile& file : files_) total_bytes_ += file.bytes;
  reader_ =
      std::make_unique<RecordReader>(files_, RecordLimits{.batch_bytes = size_t{1} << 20}, RecordPosition{}, field_);
}

std::string_view TrainingText::next() {
  while (true) {
    if (next_ == batch_.records.size()) {
      next_ = 0;
      batch_.records.clear();
      if (!reader_->next(batch_)) break;
      continue;
    }
    Record& record = batch_.records[next_++];
    if (record.kind == Record::Kind::kCorrupt) leave_out(record, record.problem);
    if (record.kind == Record::Kind::kLine && !take_field(record)) continue;
    if (record.kind != Record::Kind::kPiece || record.text.empty()) continue;
    text_bytes_ += std::ssize(record.text);
    return record.text;
  }
  if (text_bytes_ == 0) {
    fail(ExitCode::kInput, "{}: expected text{}",
         files_.size() == 1 ? files_[0].path.string() : fmt::format("{} files", files_.size()),
         problem_.empty() ? ", but it is empty" : "; " + problem_);
  }
  return {};
}

/// Replaces a line of JSONL by the text of its field.
bool TrainingText::take_field(Record& record) {
  const nlohmann::json object = try_parse_json(record.text);
  const auto value = object.is_object() ? object.find(field_) : object.end();
  if (!object.is_object() || value == object.end() || !value->is_string()) {
    leave_out(record, fmt::format("expected a JSON object with a text at {}", quoted_name(field_)));
    return false;
  }
  record.text = value->get<std::string>();
  record.kind = Record::Kind::kPiece;
  return true;
}

void TrainingText::leave_out(const Record& record, const std::string& problem) {
  if (left_out_++ > 0) return;
  const std::string file = files_[static_cast<size_t>(record.file)].path.string();
  problem_ = fmt::format("{}{}: {}", file, record.line > 0 ? fmt::format(":{}", record.line) : "", problem);
}

}  // namespace tamis::data

#include "tamis/data/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/base/utf8.h"

namespace tamis::data {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;

/// Checks a text that comes in parts.
class Utf8Check {
 public:
  /// False when what came so far cannot be the beginning of UTF-8.
  bool add(std::string_view bytes) {
    if (!rest_.empty()) {  // the first bytes of a character
      rest_ += bytes;
      const std::string all = std::move(rest_);
      rest_.clear();
      return check(all);
    }
    return check(bytes);
  }
  bool complete() const { return rest_.empty(); }

 private:
  bool check(std::string_view bytes) {
    while (!bytes.empty()) {
      bytes.remove_prefix(ascii_prefix(bytes));
      if (bytes.empty()) break;
      const Utf8Front front = utf8_front(bytes);
      if (front.kind == Utf8Front::Kind::kInvalid) return false;
      if (front.kind == Utf8Front::Kind::kIncomplete) {
        rest_ = bytes;
        break;
      }
      bytes.remove_prefix(front.bytes);
    }
    return true;
  }

  static size_t ascii_prefix(std::string_view bytes) {
    size_t at = 0;
    for (uint64_t word = 0; at + 8 <= bytes.size(); at += 8) {
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
    }
    while (at < bytes.size() && static_cast<signed char>(bytes[at]) >= 0) ++at;
    return at;
  }

  std::string rest_;
};

}  // namespace

size_t cut_text(std::string_view text, bool complete, const RecordLimits& limits) {
  const size_t target = std::min(limits.piece_bytes, limits.document_bytes), most = limits.document_bytes;
  if (text.size() <= target) return complete ? text.size() : 0;
  const auto may_cut = [&](size_t at) {
    return (text[at] == '\n' || text[at] == '\r') && limits.cut_behind.find(text[at - 1]) != std::string::npos;
  };
  for (size_t at = target; at > std::max<size_t>(target / 2, 1); --at) {
    if (may_cut(at)) return at;
  }
  for (size_t at = target + 1; at < std::min(text.size(), most); ++at) {
    if (may_cut(at)) return at;
  }
  if (text.size() <= most) return complete ? text.size() : 0;
  size_t at = most;
  while (at > most - 4 && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80) --at;
  return at;
}

RecordReader::RecordReader(const std::vector<InputFile>& files, const RecordLimits& limits, RecordPosition from,
                           std::string column)
    : files_(files), limits_(limits), position_(from), column_(std::move(column)) {
  for (int64_t i = 0; i < from.file; ++i) earlier_bytes_ += files_[i].bytes;
}

RecordReader::~RecordReader() = default;

bool RecordReader::next(Batch& batch) {
  batch.records.clear();
  size_t bytes = 0;
  while (bytes < limits_.batch_bytes && position_.file < static_cast<int64_t>(files_.size())) {
    constexpr size_t kRecordBytes = 256;  // what a record takes without its text, roughly
    const size_t before = batch.records.size();
    const InputFile& file = files_[position_.file];
    if (!stream_ && !parquet_) {
      const std::string problem = file.format != TextFormat::kText || position_.offset > 0 ? "" : check_text(file);
      if (!problem.empty()) {
        batch.records.push_back(
            {.kind = Record::Kind::kCorrupt, .file = position_.file, .line = 0, .problem = problem});
        close_file();
        bytes += kRecordBytes;
        continue;
      }
      open_file();
    }
    if (file.format == TextFormat::kParquet) {
      read_row(batch);
    } else {
      file.format == TextFormat::kJsonl ? read_line(batch) : read_piece(batch);
    }
    for (size_t i = before; i < batch.records.size(); ++i) bytes += batch.records[i].text.size() + kRecordBytes;
  }
  batch.end = position_;
  batch.raw_bytes = earlier_bytes_ + (stream_ ? stream_->raw_bytes() : 0);
  if (parquet_) {  // the mean share of the rows
    const double share =
        static_cast<double>(position_.line) / static_cast<double>(std::max<int64_t>(parquet_->rows(), 1));
    batch.raw_bytes += static_cast<int64_t>(share * static_cast<double>(files_[position_.file].bytes));
  }
  return !batch.records.empty();
}

void RecordReader::open_file() {
  if (const InputFile& file = files_[position_.file]; file.format == TextFormat::kParquet) {
    parquet_ = std::make_unique<ParquetTexts>(file.path, column_, position_.line);
    return;
  }
  stream_ = open_stream(files_[position_.file]);
  buffer_.clear();
  used_ = 0;
  at_end_ = false;
  damage_.clear();
  try {
    if (position_.offset > 0) return stream_->skip(position_.offset);
    while (unread().size() < kByteOrderMark.size() && fill()) continue;
    if (unread().starts_with(kByteOrderMark)) consume(kByteOrderMark.size());
  } catch (const DamagedFile& error) {
    at_end_ = true;
    damage_ = error.what();
  }
}

void RecordReader::close_file() {
  stream_.reset();
  parquet_.reset();
  earlier_bytes_ += files_[position_.file].bytes;
  position_ = {position_.file + 1, 0, 0};
}

/// Why a text file cannot be used; empty when it can.
std::string RecordReader::check_text(const InputFile& file) const {
  const auto stream = open_stream(file);
  std::string bytes(kReadBytes, '\0');
  Utf8Check check;
  int64_t offset = 0;
  try {
    while (const size_t got = stream->read(bytes.data(), bytes.size())) {
      if (!check.add(std::string_view(bytes).substr(0, got))) {
        return fmt::format("is not UTF-8 between bytes {} and {}", offset, offset + static_cast<int64_t>(got));
      }
      offset += static_cast<int64_t>(got);
    }
  } catch (const DamagedFile& error) {
    return error.what();
  }
  return check.complete() ? "" : "is not UTF-8: its last character is cut off";
}

/// Reads more of the file; false at its end.
bool RecordReader::fill() {
  if (at_end_) return false;
  if (used_ > 0) {
    buffer_.erase(0, used_);
    used_ = 0;
  }
  const size_t size = buffer_.size();
  buffer_.resize(size + kReadBytes);
  size_t got = 0;
  try {
    got = stream_->read(buffer_.data() + size, kReadBytes);
  } catch (const DamagedFile& error) {
    damage_ = error.what();
  }
  buffer_.resize(size + got);
  at_end_ = got == 0;
  return !at_end_;
}

void RecordReader::consume(size_t bytes) {
  used_ += bytes;
  position_.offset += static_cast<int64_t>(bytes);
}

void RecordReader::read_piece(Batch& batch) {
  const bool is_first = position_.offset <= static_cast<int64_t>(kByteOrderMark.size());
  size_t length = 0;
  while ((length = cut_text(unread(), at_end_, limits_)) == 0 && !at_end_) fill();
  // At the end of the file the last piece must be known to be the last one.
  while (unread().size() == length && fill()) continue;
  if (!damage_.empty()) {
    fail(ExitCode::kInput, "{}: was changed while it was read: {}", files_[position_.file].path.string(), damage_);
  }
  Record record{.kind = Record::Kind::kPiece, .file = position_.file, .line = 0};
  record.text = unread().substr(0, length);
  record.ends_document = unread().size() == length;
  if (record.text.empty() && is_first) record.kind = Record::Kind::kEmpty;
  consume(length);
  const bool last = record.ends_document;
  batch.records.push_back(std::move(record));
  if (last) close_file();
}

void RecordReader::read_line(Batch& batch) {
  const int64_t file = position_.file, line = position_.line + 1;
  size_t searched = 0, length = std::string::npos, dropped = 0;
  while (true) {
    length = unread().find('\n', searched);
    if (length != std::string::npos) break;
    searched = unread().size();
    if (searched > limits_.document_bytes) {  // too long: only its end is still looked for
      dropped += searched;
      consume(searched);
      searched = 0;
    }
    if (!fill()) break;
  }
  const bool complete = length != std::string::npos;
  if (!complete) length = unread().size();
  if (dropped + length > limits_.document_bytes) {
    batch.records.push_back({.kind = Record::Kind::kCorrupt,
                             .file = file,
                             .line = line,
                             .problem = fmt::format("has more than {} bytes", limits_.document_bytes)});
  } else if (!complete && !damage_.empty()) {
    batch.records.push_back({.kind = Record::Kind::kCorrupt, .file = file, .line = line, .problem = damage_});
  } else if (const std::string_view text = unread().substr(0, length); text.find_first_not_of(" \t\r") != text.npos) {
    batch.records.push_back({.kind = Record::Kind::kLine, .file = file, .line = line, .text = std::string(text)});
  }
  consume(length + (complete ? 1 : 0));
  position_.line = line;
  if (!complete) close_file();
}

void RecordReader::read_row(Batch& batch) {
  std::string_view text;
  const ParquetTexts::Row row = parquet_->next(text);
  if (row == ParquetTexts::Row::kEnd) return close_file();
  Record record{.kind = Record::Kind::kPiece, .file = position_.file, .line = ++position_.line};
  ++position_.offset;
  const auto corrupt = [&](std::string problem) {
    record.kind = Record::Kind::kCorrupt;
    record.problem = std::move(problem);
  };
  if (row == ParquetTexts::Row::kNull) {
    corrupt(fmt::format("{} must be a text, but is null", quoted_name(column_)));
  } else if (text.size() > limits_.document_bytes) {
    corrupt(fmt::format("has more than {} bytes", limits_.document_bytes));
  } else if (!is_utf8(text)) {
    corrupt("is not UTF-8");
  } else if (text.empty()) {
    record.kind = Record::Kind::kEmpty;
  } else {
    record.text = text;
  }
  batch.records.push_back(std::move(record));
}

}  // namespace tamis::data

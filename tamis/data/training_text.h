#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/data/records.h"

namespace tamis::data {

/// The text of input files (see find_text_files) in parts that end with a line, for training a tokenizer. Reads in
/// constant memory, apart from standard input; records without text and corrupt ones are left out and counted.
class TrainingText {
 public:
  /// `field` of a JSONL record, or the column of Parquet, is the text. Throws ExitCode::kInput when an input cannot be
  /// read.
  TrainingText(const std::vector<std::string>& inputs, std::string field);

  /// The next part, empty at the end; valid until the next call. Throws ExitCode::kInput when no file has any text.
  std::string_view next();

  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  int64_t total_bytes() const { return total_bytes_; }  // of the files
  int64_t read_bytes() const { return batch_.raw_bytes; }
  int64_t text_bytes() const { return text_bytes_; }
  int64_t left_out() const { return left_out_; }                 // corrupt records
  const std::string& first_problem() const { return problem_; }  // of those left out

 private:
  bool take_field(Record& record);
  void leave_out(const Record& record, const std::string& problem);

  std::string field_;
  std::vector<InputFile> files_;
  int64_t total_bytes_ = 0;
  std::unique_ptr<RecordReader> reader_;
  RecordReader::Batch batch_;
  size_t next_ = 0;  // record of the batch
  int64_t text_bytes_ = 0;
  int64_t left_out_ = 0;
  std::string problem_;
};

}  // namespace tamis::data

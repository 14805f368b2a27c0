#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/data/byte_stream.h"
#include "tamis/data/input_files.h"
#include "tamis/data/parquet.h"
#include "tamis/text/line_cuts.h"

namespace tamis::data {

inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // left out at the start of a file

/// A place in a list of input files between two records.
struct RecordPosition {
  int64_t file = 0;
  int64_t offset = 0;  // in the decompressed content; of Parquet the rows before it
  int64_t line = 0;    // lines, or rows, of the file before it
};

/// A piece of the input, in order.
struct Record {
  enum class Kind {
    kPiece,    // part of a text file, or the text of a row of Parquet
    kLine,     // a line of JSONL, not parsed yet
    kEmpty,    // a text file or a row without content
    kCorrupt,  // what cannot be used: `problem` says why
  } kind;
  int64_t file;
  int64_t line;               // or row, from 1; 0 for text files
  std::string text = {};      // of a piece or a line
  bool ends_document = true;  // of a piece: it is the last one of its file
  std::string problem = {};
};

struct RecordLimits {
  size_t batch_bytes = size_t{8} << 20;      // a batch ends with the record that reaches this
  size_t document_bytes = size_t{16} << 20;  // longer lines are corrupt; no piece is longer
  size_t piece_bytes = size_t{1} << 20;      // longer texts are cut at a line end where possible; see cut_text
  std::string cut_behind = std::string(text::kAsciiAlphanumeric);  // see text::letters_before_cuts
};

/// The length of the first piece of `text`: all of it if it has at most `piece_bytes`, else up to the last end of a
/// line that has a character of `cut_behind` before it in the second half of these bytes, else up to the first such
/// place behind, else `document_bytes` without splitting a character. Returns 0 when `text` is not all (`complete`) and
/// more of it is needed.
size_t cut_text(std::string_view text, bool complete, const RecordLimits& limits);

/// Reads files record by record, in constant memory: at most a batch and one document of `document_bytes`.
///
/// A text file is read twice: a damaged one, or one that is not UTF-8, is one corrupt record, and no part of it is
/// used. Of JSONL that is damaged the whole lines before are used. A byte order mark at the start of a file is left
/// out. Parquet that is damaged is an error (parquet.h).
class RecordReader {
 public:
  /// `column` of Parquet holds the texts.
  RecordReader(const std::vector<InputFile>& files, const RecordLimits& limits, RecordPosition from = {},
               std::string column = "text");
  ~RecordReader();

  struct Batch {
    std::vector<Record> records;
    RecordPosition end;     // where a reader goes on after this batch
    int64_t raw_bytes = 0;  // bytes on disk read so far, of all files
  };
  /// The next batch; false at the end. Throws ExitCode::kInput when a file cannot be opened.
  bool next(Batch& batch);

 private:
  void open_file();
  void close_file();
  std::string check_text(const InputFile& file) const;
  bool fill();
  void read_piece(Batch& batch);
  void read_line(Batch& batch);
  void read_row(Batch& batch);
  void consume(size_t bytes);
  std::string_view unread() const { return std::string_view(buffer_).substr(used_); }

  const std::vector<InputFile>& files_;
  RecordLimits limits_;
  RecordPosition position_;
  std::string column_;
  std::unique_ptr<ParquetTexts> parquet_;  // of a Parquet file
  std::unique_ptr<ByteStream> stream_;     // of another
  std::string buffer_;
  size_t used_ = 0;
  bool at_end_ = false;  // of the content of the file
  std::string damage_;   // why the content ended too early
  int64_t earlier_bytes_ = 0;
};

}  // namespace tamis::data

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace tamis::data {

/// A column of texts of a Parquet file, row by row, in memory that does not depend on its size: a page, and 64 rows.
/// Row groups, dictionaries and the compressions of Parquet are read by Apache Arrow, which is optional
/// (cmake/TamisArrow.cmake).
///
/// Every failure throws ExitCode::kInput with the file: it is damaged or cut off, or has no such column, or one that
/// does not hold one text per row. Throws ExitCode::kRuntime in a build without Arrow.
class ParquetTexts {
 public:
  /// From row `first` on, counted from 0.
  ParquetTexts(const std::filesystem::path& file, const std::string& column, int64_t first);
  ~ParquetTexts();

  enum class Row { kText, kNull, kEnd };
  /// `text` is valid until the next call.
  Row next(std::string_view& text);

  int64_t rows() const;  // of the file

 private:
  struct Handle;
  std::filesystem::path path_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace tamis::data

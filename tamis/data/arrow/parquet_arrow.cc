// libtamis_parquet.so: one column of texts of a Parquet file by Arrow C++, row group by row group, some rows at a time.
// The column is read as its values are stored, not as Arrow arrays: memory does not grow with row groups.

#include <parquet/api/reader.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "tamis/data/arrow/parquet_c.h"

namespace {

constexpr int64_t kRows = 64;  // read at once; their texts share the memory of a page or two

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument(text);
}

std::string columns_of(const parquet::SchemaDescriptor& schema) {
  constexpr int kMost = 20;
  std::string names;
  for (int i = 0; i < std::min(schema.num_columns(), kMost); ++i) {
    names += (i > 0 ? ", " : "") + schema.Column(i)->path()->ToDotString();
  }
  return schema.num_columns() > kMost ? names + ", ..." : names;
}

/// The index of the column, which must hold texts, one per row.
int find_column(const parquet::SchemaDescriptor& schema, const std::string& name) {
  for (int i = 0; i < schema.num_columns(); ++i) {
    const parquet::ColumnDescriptor& column = *schema.Column(i);
    if (column.path()->ToDotString() != name) continue;
    const bool text = column.physical_type() == parquet::Type::BYTE_ARRAY &&
                      (column.logical_type()->is_string() || column.logical_type()->is_none());
    if (text && column.max_repetition_level() == 0) return i;
    refuse("the column \"" + name + "\" must hold one text per row, but is " +
           (column.max_repetition_level() > 0 ? "a list" : parquet::TypeToString(column.physical_type())));
  }
  refuse("has no column \"" + name + "\"; its columns are " + columns_of(schema));
}

}  // namespace

struct tamis_parquet {
 public:
  tamis_parquet(const std::string& path, const std::string& column, int64_t first) {
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    properties.enable_buffered_stream();
    properties.set_page_checksum_verification(true);
    file_ = parquet::ParquetFileReader::OpenFile(path, /*memory_map=*/false, properties);
    column_ = find_column(*file_->metadata()->schema(), column);
    most_level_ = file_->metadata()->schema()->Column(column_)->max_definition_level();
    skip(first);
  }

  int64_t rows() const { return file_->metadata()->num_rows(); }

  tamis_parquet_status next(const char** text, size_t* bytes) {
    if (row_ == read_ && !fill()) return TAMIS_PARQUET_END;
    if (levels_[row_++] != most_level_) return TAMIS_PARQUET_NULL;
    const parquet::ByteArray& value = values_[value_++];
    *text = reinterpret_cast<const char*>(value.ptr);
    *bytes = value.len;
    return TAMIS_PARQUET_TEXT;
  }

 private:
  void skip(int64_t rows) {
    for (; next_group_ < file_->metadata()->num_row_groups(); ++next_group_) {
      const int64_t in_group = file_->metadata()->RowGroup(next_group_)->num_rows();
      if (rows < in_group) break;
      rows -= in_group;
    }
    if (rows > 0 && open_group()) reader_->Skip(rows);
  }

  bool open_group() {
    if (next_group_ >= file_->metadata()->num_row_groups()) return false;
    group_ = file_->RowGroup(next_group_++);
    column_reader_ = group_->Column(column_);
    reader_ = static_cast<parquet::ByteArrayReader*>(column_reader_.get());
    return true;
  }

  /// Reads more rows; false at the end.
  bool fill() {
    while (reader_ == nullptr || !reader_->HasNext()) {
      if (!open_group()) return false;
    }
    int64_t values = 0;
    levels_.fill(most_level_);  // a column without nulls has no levels
    read_ = reader_->ReadBatch(kRows, levels_.data(), nullptr, values_.data(), &values);
    row_ = value_ = 0;
    if (read_ == 0) throw std::runtime_error("a row group ends before its last row");
    return true;
  }

  std::unique_ptr<parquet::ParquetFileReader> file_;
  int column_ = 0;
  int16_t most_level_ = 0;
  int next_group_ = 0;
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::shared_ptr<parquet::ColumnReader> column_reader_;
  parquet::ByteArrayReader* reader_ = nullptr;
  std::array<int16_t, kRows> levels_ = {};
  std::array<parquet::ByteArray, kRows> values_ = {};
  int64_t row_ = 0, read_ = 0, value_ = 0;
};

namespace {

/// Calls it; its exception becomes the error.
template <typename Action, typename Result>
Result guarded(tamis_parquet_error* error, Result failed, const Action& action) {
  std::string text = "unknown error";
  try {
    return action();
  } catch (const std::exception& thrown) {
    text = thrown.what();
  } catch (...) {
  }
  const size_t size = std::min(text.size(), sizeof(error->text) - 1);
  std::memcpy(error->text, text.data(), size);
  error->text[size] = '\0';
  return failed;
}

}  // namespace

tamis_parquet* tamis_parquet_open(const char* path, const char* column, int64_t first, tamis_parquet_error* error) {
  return guarded(error, static_cast<tamis_parquet*>(nullptr), [&] { return new tamis_parquet(path, column, first); });
}

void tamis_parquet_close(tamis_parquet* file) {
  delete file;
}

int64_t tamis_parquet_rows(const tamis_parquet* file) {
  return file->rows();
}

tamis_parquet_status tamis_parquet_next(tamis_parquet* file, const char** text, size_t* bytes,
                                        tamis_parquet_error* error) {
  return guarded(error, TAMIS_PARQUET_FAILED, [&] { return file->next(text, bytes); });
}

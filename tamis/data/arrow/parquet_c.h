#pragma once

#include <stddef.h>
#include <stdint.h>

// Reading the texts of a Parquet file, as C functions: what libtamis_parquet.so offers. It is a library of its own,
// loaded when the first Parquet file is read, because Apache Arrow is large and optional (cmake/TamisArrow.cmake).

#ifdef __cplusplus
extern "C" {
#endif

struct tamis_parquet;

/// What went wrong, cut to fit.
struct tamis_parquet_error {
  char text[1000];
};

enum tamis_parquet_status {
  TAMIS_PARQUET_FAILED = -1,  // the error says why
  TAMIS_PARQUET_END = 0,
  TAMIS_PARQUET_TEXT = 1,
  TAMIS_PARQUET_NULL = 2,
};

/// The column of a file, from row `first` on; null when it fails.
struct tamis_parquet* tamis_parquet_open(const char* path, const char* column, int64_t first,
                                         struct tamis_parquet_error* error);
void tamis_parquet_close(struct tamis_parquet* file);
/// Rows of the file.
int64_t tamis_parquet_rows(const struct tamis_parquet* file);
/// The text of the next row, which is valid until the next call.
enum tamis_parquet_status tamis_parquet_next(struct tamis_parquet* file, const char** text, size_t* bytes,
                                             struct tamis_parquet_error* error);

#ifdef __cplusplus
}
#endif

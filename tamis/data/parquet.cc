#include "tamis/data/parquet.h"

#include <dlfcn.h>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/data/arrow/parquet_c.h"

namespace tamis::data {
namespace {

constexpr const char* kLibrary = "libtamis_parquet.so";  // found by the program's own search path

struct Functions {
  decltype(&tamis_parquet_open) open = nullptr;
  decltype(&tamis_parquet_close) close = nullptr;
  decltype(&tamis_parquet_rows) rows = nullptr;
  decltype(&tamis_parquet_next) next = nullptr;
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fail(ExitCode::kRuntime, "{}: has no {}; run `make build` again", kLibrary, name);
}

/// Loads the library once. Throws when it is missing.
const Functions& arrow(const std::filesystem::path& file) {
  static void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(ExitCode::kRuntime,
         "{}: this build reads no Parquet, because pyarrow was missing when it was configured; run `scripts/setup.sh "
         "parquet` and then `make build`",
         file.string());
  }
  static const Functions functions = [] {
    Functions found;
    find(library, "tamis_parquet_open", found.open);
    find(library, "tamis_parquet_close", found.close);
    find(library, "tamis_parquet_rows", found.rows);
    find(library, "tamis_parquet_next", found.next);
    return found;
  }();
  return functions;
}

}  // namespace

struct ParquetTexts::Handle {
  const Functions& arrow;
  tamis_parquet* file;

  Handle(const Functions& arrow, tamis_parquet* file) : arrow(arrow), file(file) {}
  ~Handle() { arrow.close(file); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

ParquetTexts::ParquetTexts(const std::filesystem::path& file, const std::string& column, int64_t first) : path_(file) {
  const Functions& functions = arrow(file);
  tamis_parquet_error error;
  tamis_parquet* const opened = functions.open(file.c_str(), column.c_str(), first, &error);
  if (opened == nullptr) fail(ExitCode::kInput, "{}: {}", file.string(), one_line(error.text));
  handle_ = std::make_unique<Handle>(functions, opened);
}

ParquetTexts::~ParquetTexts() = default;

ParquetTexts::Row ParquetTexts::next(std::string_view& text) {
  tamis_parquet_error error;
  const char* data = nullptr;
  size_t bytes = 0;
  switch (handle_->arrow.next(handle_->file, &data, &bytes, &error)) {
    case TAMIS_PARQUET_END:
      return Row::kEnd;
    case TAMIS_PARQUET_NULL:
      return Row::kNull;
    case TAMIS_PARQUET_TEXT:
      text = {data, bytes};
      return Row::kText;
    case TAMIS_PARQUET_FAILED:
      break;
  }
  fail(ExitCode::kInput, "{}: {}", path_.string(), one_line(error.text));
}

int64_t ParquetTexts::rows() const {
  return handle_->arrow.rows(handle_->file);
}

}  // namespace tamis::data

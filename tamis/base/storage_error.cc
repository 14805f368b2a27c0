#include "tamis/base/storage_error.h"

#include <cerrno>
#include <cstring>

#include "tamis/base/error.h"

namespace tamis {

void fail_storage(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  const char* advice = error == ENOSPC || error == EDQUOT  ? "; free some space and run again"
                       : error == EROFS || error == EACCES ? "; choose a directory you may write to"
                       : error == EFBIG                    ? "; raise the limit on the size of files (ulimit -f)"
                                                           : "";
  fail(ExitCode::kStorage, "{}: {}: {}{}", path.string(), what, std::strerror(error), advice);
}

}  // namespace tamis

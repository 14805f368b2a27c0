#include "tamis/base/message.h"

#include <cerrno>
#include <cstring>

#include "tamis/base/error.h"

namespace tamis {

void print_message(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

void flush_output() {
  const bool failed = std::ferror(stdout) != 0;  // an earlier write failed; its errno is lost
  const bool flushed = std::fflush(stdout) == 0;
  if (failed || !flushed) {
    fail(ExitCode::kRuntime, "standard output: cannot write{}",
         flushed ? " all of it" : fmt::format(": {}", std::strerror(errno)));
  }
}

}  // namespace tamis

#include "tamis/base/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tamis {
namespace {

void open_missing_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() returns the lowest free descriptor, which is this one.
    if (open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor) _exit(1);
  }
}

void write_to_stderr(const char* text) noexcept {
  for (size_t left = std::strlen(text); left > 0;) {
    const ssize_t put = write(STDERR_FILENO, text, left);
    if (put <= 0) return;
    text += put;
    left -= static_cast<size_t>(put);
  }
}

[[noreturn]] void end_uncaught() noexcept {
  const std::exception_ptr error = std::current_exception();
  if (!error) std::abort();
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    end_process(kOutOfMemory);
  } catch (const std::exception& caught) {
    try {
      end_process(message_of(caught).c_str());
    } catch (...) {
      end_process(kOutOfMemory);
    }
  } catch (...) {
    end_process("ended by an unknown exception");
  }
}

}  // namespace

void protect_process() {
  open_missing_descriptors();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_uncaught);
}

std::string message_of(const std::exception& error) {
  const std::string text = error.what();
  if (dynamic_cast<const std::bad_alloc*>(&error) || text.find("DefaultCPUAllocator") != std::string::npos) {
    return kOutOfMemory;
  }
  return text.substr(0, text.find('\n'));
}

void end_process(const char* text, ExitCode code) noexcept {
  write_to_stderr("tamis: ");
  write_to_stderr(text);
  write_to_stderr("\n");
  _exit(static_cast<int>(code));
}

}  // namespace tamis

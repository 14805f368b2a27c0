#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tamis {

/// Exit codes of the `tamis` program.
enum class ExitCode : int {
  kRuntime = 1,       // any failure without a code of its own
  kUsage = 2,         // a flag, a recipe or a configuration is wrong
  kInput = 3,         // a file given as input is missing, damaged or of the wrong kind
  kDiverged = 20,     // the training loss became non-finite
  kLostProcess = 21,  // another process of a distributed run was lost, or did not come
  kStorage = 30,      // the disk is full, read-only or failing
  kHangup = 129,      // stopped by SIGHUP after a clean save
  kInterrupt = 130,   // stopped by SIGINT after a clean save
  kTerminate = 143,   // stopped by SIGTERM after a clean save
};

/// An error that the user can cause: `main` prints it as one line and exits with its code.
/// The text names the file, key or option, what was expected, what was found, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws an Error with text formatted by fmt: `fail(ExitCode::kInput, "{}: is empty", path)`.
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

/// Reports a violated internal assumption and aborts.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace tamis

/// Checks internal assumptions, never user input. Active in the dev and sanitizer builds only.
#ifdef TAMIS_ASSERTIONS
#define TAMIS_ASSERT(condition)                                                  \
  do {                                                                           \
    if (!(condition)) ::tamis::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
#else
#define TAMIS_ASSERT(condition) static_cast<void>(0)
#endif

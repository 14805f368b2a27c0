#pragma once

#include <exception>
#include <string>

#include "tamis/base/error.h"

namespace tamis {

/// Protects the process from its surroundings. The program calls it first, before its libraries are initialised.
///
/// - Closed descriptors among 0, 1 and 2 become /dev/null, so that no file opened later takes their place and receives
///   messages. They are opened the wrong way round: reading or writing fails, as on a closed descriptor.
/// - SIGPIPE and SIGXFSZ are ignored: the write fails with EPIPE or EFBIG instead.
/// - An exception that nothing can catch, such as std::bad_alloc in a thread of a library, ends the process with one
///   line and exit code 1.
void protect_process();

/// What to say of an exception that is no tamis::Error: LibTorch puts a backtrace behind the first line, and has its
/// own words for a lack of memory.
std::string message_of(const std::exception& error);

/// Ends the process at once, with `tamis: <text>` on standard error: destructors may need what is missing.
[[noreturn]] void end_process(const char* text, ExitCode code = ExitCode::kRuntime) noexcept;

inline constexpr const char* kOutOfMemory = "out of memory; try a shorter sequence, a smaller batch or fewer threads";

}  // namespace tamis

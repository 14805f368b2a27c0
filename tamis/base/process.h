#pragma once

#include <exception>
#include <string>

#include "tamis/base/error.h"

namespace tamis {

/// Protects the process from its surroundings. The program calls it first, before its libraries are initialised.
///
/// - Closed descriptors among 0, 1 and 2 are opened on /dev/null, so that no file opened later gets their number and
///   receives messages. Standard input is opened for writing and the others for reading, so that using them fails, as
///   it does on a closed descriptor.
/// - SIGPIPE and SIGXFSZ are ignored: the write fails with EPIPE or EFBIG instead.
/// - An uncaught exception, such as std::bad_alloc in a thread of a library, ends the process with one
///   line and exit code 1.
void protect_process();

/// A one-line message for an exception that is not a tamis::Error. Drops the backtrace that LibTorch appends after the
/// first line, and gives its out-of-memory errors the text of kOutOfMemory.
std::string message_of(const std::exception& error);

/// Ends the process at once, with `tamis: <text>` on standard error: destructors may need what is missing.
[[noreturn]] void end_process(const char* text, ExitCode code = ExitCode::kRuntime) noexcept;

inline constexpr const char* kOutOfMemory = "out of memory; try a shorter sequence, a smaller batch or fewer threads";

}  // namespace tamis

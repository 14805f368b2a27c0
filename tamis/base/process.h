#pragma once

#include <exception>
#include <string>

namespace tamis {

/// Sets up descriptors, signals and the terminate handler; `main` calls it first.
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

/// Prints `tamis: <text>` on standard error and ends the process at once with exit code 1. Runs no destructors: they
/// might need the resource, such as memory, that has run out.
[[noreturn]] void end_process(const char* text) noexcept;

inline constexpr const char* kOutOfMemory = "out of memory; try a shorter sequence, a smaller batch or fewer threads";

}  // namespace tamis

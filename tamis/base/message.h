#pragma once

#include <cstdio>
#include <string_view>

namespace tamis {

/// Writes a message for the user to `stream`. Failures (full disk, closed descriptor) are ignored, so that they do not
/// stop the work.
void print_message(std::FILE* stream, std::string_view text);

/// Flushes standard output. Throws ExitCode::kRuntime when this write or an earlier one failed.
void flush_output();

}  // namespace tamis

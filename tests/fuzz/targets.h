#pragma once

#include <span>
#include <string>
#include <string_view>

// A fuzzing target for every reader of untrusted files. It passes the bytes to the reader and uses the result as a
// command would. The only exception that a reader may throw is tamis::Error.

namespace tamis::fuzz {

struct Target {
  std::string name;  // also the name of its directory in tests/fuzz/corpus
  void (*read)(std::string_view bytes);
};

std::span<const Target> targets();

/// Runs one target. Catches tamis::Error and checks its text; other exceptions propagate and count as findings.
void run(const Target& target, std::string_view bytes);

}  // namespace tamis::fuzz

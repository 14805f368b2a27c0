#pragma once

#include <span>
#include <string>
#include <string_view>

// One function for every reader of files that somebody else may have written. Each gives the bytes to the reader and
// does with the result what a command would; tamis::Error is the only way out that is right.

namespace tamis::fuzz {

struct Target {
  std::string name;  // also of its folder in tests/fuzz/corpus
  void (*read)(std::string_view bytes);
};

std::span<const Target> targets();

/// Runs one target. An Error is caught and its text checked: anything else that the reader throws goes on.
void run(const Target& target, std::string_view bytes);

}  // namespace tamis::fuzz

#include "tamis/base/input.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/memory.h"

namespace tamis {
namespace {

/// Standard input has no known size, so available memory is checked each time the buffer doubles.
std::string read_standard_input() {
  std::string text;
  std::array<char, 1 << 16> part;
  while (true) {
    const ssize_t got = read(STDIN_FILENO, part.data(), part.size());
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ExitCode::kInput, "standard input: cannot be read: {}", std::strerror(errno));
    const auto bytes = static_cast<size_t>(got);
    if (text.size() + bytes > text.capacity() && std::ssize(text) > kWorthAsking) {
      require_memory(2 * static_cast<double>(text.capacity()), "standard input", "use a shorter text");
    }
    text.append(part.data(), bytes);
  }
}

}  // namespace

std::string read_input(const std::filesystem::path& file) {
  return file == "-" ? read_standard_input() : read_file(file);
}

std::string input_name(const std::filesystem::path& file) {
  return file == "-" ? "standard input" : file.string();
}

}  // namespace tamis

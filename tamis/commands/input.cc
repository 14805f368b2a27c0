#include "tamis/commands/input.h"

#include <array>
#include <iostream>

#include "tamis/base/files.h"
#include "tamis/base/memory.h"

namespace tamis::commands {

std::string read_text(const std::string& file) {
  if (file != "-") return read_file(file);
  std::string text;
  std::array<char, 1 << 16> part{};
  while (std::cin.read(part.data(), part.size()), std::cin.gcount() > 0) {
    const auto got = static_cast<size_t>(std::cin.gcount());
    if (text.size() + got > text.capacity() && std::ssize(text) > kWorthAsking) {
      require_memory(2 * static_cast<double>(text.capacity()), "standard input", "use a shorter text");
    }
    text.append(part.data(), got);
  }
  return text;
}

}  // namespace tamis::commands

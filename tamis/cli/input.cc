#include "tamis/cli/input.h"

#include <iostream>
#include <iterator>

#include "tamis/base/files.h"

namespace tamis::cli {

std::string read_text(const std::string& file) {
  if (file != "-") return read_file(file);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

}  // namespace tamis::cli

// The registry: one line for each format.

#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/models/exchange/format.h"

namespace tamis::models::exchange {

std::span<const Format* const> formats() {
  static const std::vector<const Format*> all = {&multiscreen_hf_format(), &multiscreen_pytorch_format(),
                                                 &llama_format(), &xlstm_format(), &tamis_format()};
  return all;
}

const Format& find_format(const std::string& name) {
  std::vector<std::string> known;
  for (const Format* format : formats()) {
    if (format->name() == name) return *format;
    known.push_back(format->name());
  }
  throw Error(ExitCode::kUsage, unknown_name("format", name, known));
}

}  // namespace tamis::models::exchange

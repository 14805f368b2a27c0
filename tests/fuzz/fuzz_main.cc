// The entry points of libFuzzer: tamis_fuzz --target=NAME CORPUS [-max_total_time=60 ...]

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/targets.h"

namespace {

const tamis::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kOption = "--target=";  // libFuzzer ignores options with two dashes
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (!argument.starts_with(kOption)) continue;
    for (const tamis::fuzz::Target& target : tamis::fuzz::targets()) {
      if (target.name == argument.substr(kOption.size())) chosen = &target;
    }
  }
  if (chosen != nullptr) return 0;
  std::fputs("tamis_fuzz: expected --target=NAME with a folder of tests/fuzz/corpus\n", stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tamis::fuzz::run(*chosen, {reinterpret_cast<const char*>(data), size});
  return 0;
}

#include "tamis/cli/library.h"

#include <dlfcn.h>

#include <filesystem>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/instruction_set.h"
#include "tamis/commands/run.h"

namespace tamis::cli {
namespace {

using Run = decltype(&TAMIS_RUN);

#define TAMIS_TEXT_OF(name) #name
#define TAMIS_NAME_OF(name) TAMIS_TEXT_OF(name)

/// Beside the program as in a build, else where `make install` puts it.
std::filesystem::path find_library() {
  const std::filesystem::path directory = program_directory();
  const std::filesystem::path installed = directory / TAMIS_INSTALLED_LIBRARY_DIRECTORY / TAMIS_LIBRARY;
  const bool beside = std::filesystem::exists(directory / TAMIS_LIBRARY) || !std::filesystem::exists(installed);
  return beside ? directory / TAMIS_LIBRARY : installed;
}

/// TAMIS_RUN of the library, which stays open until the process ends. Named by its whole path: a search path of the
/// program would not hold under sanitizers, whose dlopen calls from another library.
Run open_library() {
  const std::filesystem::path library = find_library();
  void* opened = dlopen(library.c_str(), RTLD_NOW);
  void* function = opened == nullptr ? nullptr : dlsym(opened, TAMIS_NAME_OF(TAMIS_RUN));
  if (function == nullptr) {
    fail(ExitCode::kRuntime, "the library of the commands, built and installed with the program, cannot be used: {}",
         dlerror());
  }
  return reinterpret_cast<Run>(function);
}

}  // namespace

void run(const commands::Command& command) {
  check_options(command);
  restrict_backends();
  open_library()(command);
}

}  // namespace tamis::cli

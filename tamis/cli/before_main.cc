// What has to be done before the constructors of LibTorch and the other libraries run. They open files, allocate memory
// and may fail, and the operators' constructor (tamis/ops/instruction_set.cc) applies TAMIS_MAX_ISA, where a wrong
// value could no longer be refused.

#include <limits.h>
#include <unistd.h>

#include <cerrno>

#include "tamis/base/error.h"
#include "tamis/base/instruction_set.h"
#include "tamis/base/process.h"

namespace {

void before_constructors(int, char**, char** variables) {
  environ = variables;  // which the C library itself sets only later
  tamis::protect_process();
  try {
    tamis::max_instruction_set();
    // Paths of files mean nothing there, and MKL would end the process with a message of its own.
    char path[PATH_MAX];
    if (getcwd(path, sizeof path) == nullptr && errno == ENOENT) {
      tamis::fail(tamis::ExitCode::kRuntime, "the working directory has been removed; change to another one");
    }
  } catch (const tamis::Error& error) {
    tamis::end_process(error.what(), error.code());
  }
}

/// The dynamic linker calls what it finds in this section of a program before it initialises any library.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeConstructors)(int, char**,
                                                                                char**) = before_constructors;

}  // namespace

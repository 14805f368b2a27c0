#pragma once

#include "tamis/commands/options.h"

/// Does the work of a command: the one function that the program looks up in the library of the commands. LibTorch
/// comes with that library, and its start takes longer than a help text may. `command` has passed check_options. Throws
/// tamis::Error and what LibTorch throws. The build names it tamis_run_ and a digest of the options' headers: a library
/// of another build, whose structs may differ, is not taken.
extern "C" void TAMIS_RUN(const tamis::commands::Command& command);

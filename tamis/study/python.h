#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tamis::study {

/// The Python interpreter: that of TAMIS_PYTHON, else .venv/bin/python of the working directory, else python3.
std::string python();

/// Runs the program `arguments`[0], which ends with this process's group, with further variables of the environment
/// such as "NAME=value". Returns its exit status, 127 if it does not exist and -1 if a signal ended it, and what it
/// wrote to standard output and standard error.
std::pair<int, std::string> run_program(const std::vector<std::string>& arguments,
                                        const std::vector<std::string>& environment = {});

/// The last line of an output.
std::string last_line(std::string text);

}  // namespace tamis::study

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "tamis/base/error.h"
#include "tamis/base/version.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"

namespace {

/// LibTorch's errors put a backtrace behind their message: keep the first line.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

int run(int argc, char** argv) {
  CLI::App app("Tamis: language models that select from their context instead of spreading attention over it.",
               "tamis");
  app.set_version_flag("--version", tamis::kVersion);
  app.require_subcommand(1);
  app.footer("Example: tamis train recipes/demo.toml && tamis eval abc_digits runs/demo");
  tamis::cli::add_commands(app);
  tamis::cli::refuse_other_names(app, "command");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(tamis::ExitCode::kUsage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tamis::Error& error) {
    fmt::print(stderr, "tamis: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tamis: out of memory; try a shorter sequence or a smaller batch\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "tamis: {}\n", first_line(error.what()));
  }
  return static_cast<int>(tamis::ExitCode::kRuntime);
}

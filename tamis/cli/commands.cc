#include "tamis/cli/commands.h"

namespace tamis::cli {

void add_commands(CLI::App& app) { static_cast<void>(app); }

}  // namespace tamis::cli

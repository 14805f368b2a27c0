#pragma once

#include <map>
#include <string>

#include "tamis/cli/synopsis.h"

namespace tamis::cli {

/// Manual pages of section 1 by the name of their file: `tamis.1`, and `tamis-eval-loss.1` for each command below it.
std::map<std::string, std::string> manual_pages(const CommandSynopsis& program);

}  // namespace tamis::cli

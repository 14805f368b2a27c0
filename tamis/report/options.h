#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tamis::report {

struct InspectOptions {
  std::filesystem::path checkpoint;             // or a run directory
  std::optional<std::string> text;              // text whose relevance maps are wanted
  int64_t most_tokens = 512;                    // of the text, from its beginning
  bool expand_windows = false;                  // SWE
  std::vector<std::string> model_changes = {};  // KEY=VALUE in the place of what config.json says
};

struct ReportOptions {
  std::filesystem::path run;                       // run directory, as `tamis train` writes it
  std::vector<std::filesystem::path> beside = {};  // other runs whose grids stand below its own
  std::filesystem::path output;                    // empty: report.html in it
  std::optional<std::string> text;  // for the relevance maps; none: an example of the run's validation data
  int64_t most_tokens = 512;        // of the text, from its beginning
};

}  // namespace tamis::report

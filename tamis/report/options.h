#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tamis::report {

/// Options for a picture of relevance maps.
struct MapOptions {
  std::filesystem::path file;           // .svg or .png; empty: none
  std::vector<std::string> heads = {};  // LAYER.HEAD, or LAYER for all its heads; empty: all
  std::string scale = "auto";           // colour scale: auto, value, row, log (MapScale)
};

struct InspectOptions {
  std::filesystem::path checkpoint;             // or a run directory
  std::optional<std::string> text;              // for relevance maps; none: no maps
  int64_t most_tokens = 512;                    // tokens used from the beginning of the text
  bool expand_windows = false;                  // SWE
  std::vector<std::string> model_changes = {};  // KEY=VALUE, each overrides a key of config.json
  MapOptions map = {};
};

struct ReportOptions {
  std::vector<std::filesystem::path> runs;  // run directories: the run to report, then runs to compare it with
  std::filesystem::path output;             // empty: report.html in the first run directory
  std::optional<std::string> text;          // for relevance maps; none: an example of the run's validation data
  int64_t most_tokens = 512;                // tokens used from the beginning of the text
};

/// A parsed entry of MapOptions::heads, which the command line calls tiles.
struct SelectedHeads {
  int64_t layer = 0;
  std::optional<int64_t> head = std::nullopt;  // none: all heads of the layer

  bool contains(int64_t of_layer, int64_t of_head) const { return layer == of_layer && (!head || *head == of_head); }
};

/// Parses `3.5` or `3`. Throws ExitCode::kUsage for anything else.
SelectedHeads read_selected_heads(const std::string& text);

/// Throws ExitCode::kUsage for a file that ends neither in .svg nor in .png, a malformed head or an unknown scale.
void check_options(const MapOptions& options);

}  // namespace tamis::report

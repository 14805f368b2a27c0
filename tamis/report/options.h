#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tamis::report {

/// Relevance maps as a picture.
struct MapOptions {
  std::filesystem::path file;           // .svg or .png; empty: none
  std::vector<std::string> tiles = {};  // LAYER.HEAD, or LAYER for all of its heads; none: all
  std::string scale = "auto";           // of the colours: auto, value, row, log (MapScale)
};

struct InspectOptions {
  std::filesystem::path checkpoint;             // or a run directory
  std::optional<std::string> text;              // text whose relevance maps are wanted
  int64_t most_tokens = 512;                    // of the text, from its beginning
  bool expand_windows = false;                  // SWE
  std::vector<std::string> model_changes = {};  // KEY=VALUE in the place of what config.json says
  MapOptions map = {};
};

struct ReportOptions {
  std::vector<std::filesystem::path> runs;  // run directories: the first one's report, with the others compared
  std::filesystem::path output;             // empty: report.html in the first
  std::optional<std::string> text;          // for the relevance maps; none: an example of the run's validation data
  int64_t most_tokens = 512;                // of the text, from its beginning
};

/// A tile as MapOptions names it.
struct MapTile {
  int64_t layer = 0;
  std::optional<int64_t> head = std::nullopt;  // none: all heads of the layer

  bool holds(int64_t of_layer, int64_t of_head) const { return layer == of_layer && (!head || *head == of_head); }
};

/// `3.5` or `3`; throws ExitCode::kUsage.
MapTile read_tile(const std::string& text);

/// Throws ExitCode::kUsage: a file that ends neither in .svg nor in .png, a tile that is none, an unknown scale.
void check_options(const MapOptions& options);

}  // namespace tamis::report

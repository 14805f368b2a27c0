#include "tamis/report/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::report {
namespace {

std::optional<int64_t> read_index(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

SelectedHeads read_selected_heads(const std::string& text) {
  const size_t dot = text.find('.');
  const auto layer = read_index(std::string_view(text).substr(0, dot));
  std::optional<int64_t> head;
  if (dot != std::string::npos) head = read_index(std::string_view(text).substr(dot + 1));
  if (!layer || (dot != std::string::npos && !head)) {
    fail(ExitCode::kUsage, "--tile: expected LAYER.HEAD or LAYER, like 3.5 or 3, but got {:?}", text);
  }
  return {.layer = *layer, .head = head};
}

void check_options(const MapOptions& options) {
  static const std::array<std::string, 4> kScales = {"auto", "value", "row", "log"};
  if (std::ranges::find(kScales, options.scale) == kScales.end()) {
    throw Error(ExitCode::kUsage, "--map-scale: " + unknown_name("scale", options.scale, kScales));
  }
  for (const std::string& heads : options.heads) read_selected_heads(heads);
  const std::string ending = options.file.extension().string();
  if (options.file.empty() || ending == ".svg" || ending == ".png") return;
  fail(ExitCode::kUsage, "--map {}: expected a name that ends in .svg or .png", options.file.string());
}

}  // namespace tamis::report

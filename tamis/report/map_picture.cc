#include "tamis/report/map_picture.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tamis/base/error.h"
#include "tamis/report/map_svg.h"

namespace tamis::report {
namespace {

constexpr double kDecades = 4;
constexpr Colour kOutsideColour = {196, 199, 204}, kZeroColour = {255, 255, 255};
// The same colours as relevanceStops of web/relevance.js.
constexpr std::array<Colour, 7> kStops = {
    {{237, 216, 120}, {127, 205, 187}, {65, 182, 196}, {29, 145, 192}, {34, 94, 168}, {37, 52, 148}, {8, 29, 88}}};

Colour ramp(double shade) {
  const double at = std::clamp(shade, 0.0, 1.0) * (kStops.size() - 1);
  const size_t low = std::min(static_cast<size_t>(at), kStops.size() - 2);
  Colour colour{};
  for (size_t c = 0; c < colour.size(); ++c) {
    const double value =
        kStops[low][c] + (at - static_cast<double>(low)) * (kStops[low + 1][c] - static_cast<double>(kStops[low][c]));
    colour[c] = static_cast<uint8_t>(std::lround(value));
  }
  return colour;
}

uint8_t colour_of(double weight, double row_largest, double top, MapScale scale) {
  if (!(weight > 0)) return kZero;
  return static_cast<uint8_t>(
      std::lround(kFirstShade + (255 - kFirstShade) * map_shade(weight, row_largest, top, scale)));
}

/// Draws `from` into `into` with its top left corner at (row, column); each pixel becomes a square of side `square`.
void paste(const Picture& from, Picture& into, int64_t row, int64_t column, int64_t square) {
  for (int64_t r = 0; r < from.height * square; ++r) {
    for (int64_t c = 0; c < from.width * square; ++c) {
      into.at(row + r, column + c) = from.pixels[static_cast<size_t>(r / square * from.width + c / square)];
    }
  }
}

std::vector<PlacedMap> chosen_maps(const Relevance& relevance, const MapOptions& options) {
  std::vector<PlacedMap> all, chosen;
  for (size_t l = 0; l < relevance.maps.size(); ++l) {
    for (int64_t head = 0; head < std::ssize(relevance.maps[l].window); ++head) {
      all.push_back({.map = &relevance.maps[l], .mechanism = &relevance.mechanisms[l], .head = head});
    }
  }
  if (options.heads.empty()) chosen = all;
  for (const std::string& text : options.heads) {
    const SelectedHeads heads = read_selected_heads(text);
    const size_t before = chosen.size();
    std::ranges::copy_if(all, std::back_inserter(chosen),
                         [&](const PlacedMap& each) { return heads.contains(each.map->layer, each.head); });
    if (chosen.size() > before) continue;
    fail(ExitCode::kUsage, "--tile {}: there is no such head; the last one is {}.{}", text, all.back().map->layer,
         all.back().head);
  }
  // Layers and heads without a chosen map take no row or column.
  std::vector<int64_t> layers, heads;
  for (const PlacedMap& placed : chosen) {
    layers.push_back(placed.map->layer);
    heads.push_back(placed.head);
  }
  const auto place = [](std::vector<int64_t>& all, int64_t value) {
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return std::ranges::lower_bound(all, value) - all.begin();
  };
  for (PlacedMap& placed : chosen) {
    placed.row = place(layers, placed.map->layer);
    placed.column = place(heads, placed.head);
  }
  return chosen;
}

std::string png_of(const std::vector<PlacedMap>& maps, MapScale scale) {
  constexpr int64_t kMostSide = 8192, kLeastCell = 128, kGap = 8;
  int64_t rows = 0, columns = 0;
  for (const PlacedMap& placed : maps) {
    rows = std::max(rows, placed.row + 1);
    columns = std::max(columns, placed.column + 1);
  }
  const int64_t most = kMostSide / std::max(rows, columns) - kGap;
  const int64_t pixels = std::min(maps.front().map->relevance.size(-1), most);
  const int64_t square = std::max<int64_t>(1, std::min(most, kLeastCell) / pixels), cell = pixels * square;
  Picture all(columns * cell + (columns - 1) * kGap, rows * cell + (rows - 1) * kGap, kZero);
  for (const PlacedMap& placed : maps) {
    paste(draw_map(*placed.map, placed.head, scale, pixels), all, placed.row * (cell + kGap),
          placed.column * (cell + kGap), square);
  }
  return encode_png(all, map_palette());
}

}  // namespace

MapScale map_scale(const std::string& name, const std::vector<Mechanism>& mechanisms) {
  if (name == "value") return MapScale::kValue;
  if (name == "row") return MapScale::kRow;
  if (name == "log") return MapScale::kLog;
  TAMIS_ASSERT(name == "auto");
  const auto screens = [](const Mechanism& mechanism) { return mechanism.name == "screening"; };
  return std::ranges::all_of(mechanisms, screens) ? MapScale::kValue : MapScale::kLog;
}

double map_shade(double weight, double row_largest, double top, MapScale scale) {
  switch (scale) {
    case MapScale::kValue:
      return std::clamp(std::sqrt(weight / top), 0.0, 1.0);
    case MapScale::kRow:
      return std::clamp(std::sqrt(weight / row_largest), 0.0, 1.0);
    case MapScale::kLog:
      return std::clamp(1 + std::log10(weight / top) / kDecades, 0.0, 1.0);
  }
  TAMIS_ASSERT(false);
  return 0;
}

const std::array<Colour, 256>& map_palette() {
  static const std::array<Colour, 256> palette = [] {
    std::array<Colour, 256> colours{};
    colours[kOutside] = kOutsideColour;
    colours[kZero] = kZeroColour;
    for (size_t i = kFirstShade; i < colours.size(); ++i) {
      colours[i] = ramp(static_cast<double>(i - kFirstShade) / (255 - kFirstShade));
    }
    return colours;
  }();
  return palette;
}

Picture draw_map(const models::RelevanceMap& map, int64_t head, MapScale scale, int64_t most_pixels) {
  const at::Tensor weights_TT = map.relevance.select(0, head).to(at::kCPU, at::kFloat).contiguous();
  const float* weights = weights_TT.const_data_ptr<float>();
  const int64_t T = weights_TT.size(0), size = std::min(T, most_pixels);
  const double top = std::max(1.0, static_cast<double>(weights_TT.max().item<float>()));
  Picture picture(size, size, kOutside);
  for (int64_t query = 0; query < T; ++query) {
    const int64_t span = keys_in_window(query, map.window.at(head)), first = query + 1 - span;
    const float* row = weights + query * T;
    const double largest = *std::max_element(row + first, row + query + 1);
    for (int64_t key = first; key <= query; ++key) {
      uint8_t& pixel = picture.at(query * size / T, key * size / T);
      pixel = std::max(pixel, colour_of(row[key], largest, top, scale));
    }
  }
  return picture;
}

std::string draw_maps(const Relevance& relevance, const MapOptions& options, const std::string& title) {
  const std::vector<PlacedMap> maps = chosen_maps(relevance, options);
  const MapScale scale = map_scale(options.scale, relevance.mechanisms);
  return options.file.extension() == ".png" ? png_of(maps, scale) : map_svg(relevance, maps, scale, title);
}

}  // namespace tamis::report

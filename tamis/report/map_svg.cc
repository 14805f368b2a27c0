#include "tamis/report/map_svg.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tamis/report/base64.h"
#include "tamis/text/utf8.h"

namespace tamis::report {
namespace {

// Sizes in pixels.
constexpr int64_t kMargin = 24, kHead = 64, kFoot = 56, kGap = 14, kLabel = 16;
constexpr int64_t kToken = 11;        // font size of the token labels
constexpr int64_t kTokensShown = 64;  // longest text whose tokens are labelled
constexpr int64_t kMostPixels = 512;  // largest side of a map when there are several

std::string xml_text(std::string_view text) {
  std::string result;
  for (const char c : text::valid_utf8(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '\n':
        result += "\u21b5";
        break;
      case '\t':
        result += "\u2192";
        break;
      default:
        // XML allows no other control characters, not even escaped.
        result +=
            static_cast<unsigned char>(c) < 0x20 ? fmt::format("\\x{:02X}", static_cast<int>(c)) : std::string(1, c);
    }
  }
  return result == " " ? "\u2423" : result;
}

std::string css(Colour colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour[0], colour[1], colour[2]);
}

struct Layout {
  int64_t rows = 1, columns = 1, cell = 0, left = kMargin, top = kHead;
  bool tokens = false;  // a single map with token labels along both sides

  Layout(const Relevance& relevance, const std::vector<PlacedMap>& maps) {
    const auto T = std::ssize(relevance.tokens);
    for (const PlacedMap& placed : maps) {
      rows = std::max(rows, placed.row + 1);
      columns = std::max(columns, placed.column + 1);
    }
    tokens = maps.size() == 1 && T <= kTokensShown;
    cell = tokens ? T * (kToken + 3) : std::max<int64_t>(640 / columns, 96);
    if (!tokens) return;
    size_t longest = 1;
    for (const std::string& token : relevance.tokens) longest = std::max(longest, token.size());
    left += std::min<int64_t>(static_cast<int64_t>(longest), 12) * kToken;
    top += left - kMargin;
  }
  int64_t x(const PlacedMap& placed) const { return left + placed.column * (cell + kGap); }
  int64_t y(const PlacedMap& placed) const { return top + kLabel + placed.row * (cell + kGap + kLabel); }
  int64_t width() const { return std::max<int64_t>(left + columns * (cell + kGap) - kGap + kMargin, 620); }
  int64_t maps_end() const { return top + rows * (cell + kGap + kLabel); }
  int64_t height() const { return maps_end() + kFoot; }
};

std::string label_of(const PlacedMap& placed) {
  const double window = placed.map->window.at(static_cast<size_t>(placed.head));
  std::string label = fmt::format("{}.{}", placed.map->layer, placed.head);
  if (std::isfinite(window)) label += fmt::format("  w {:.4g}", window);
  if (!placed.map->accept.empty()) label += fmt::format("  r {:.2f}", placed.map->accept.at(placed.head));
  return label;
}

std::string token_labels(const Relevance& relevance, const Layout& layout, const PlacedMap& placed) {
  std::string text;
  for (size_t t = 0; t < relevance.tokens.size(); ++t) {
    const int64_t middle = static_cast<int64_t>(t) * (kToken + 3) + (kToken + 3) / 2;
    const std::string token = xml_text(relevance.tokens[t]);
    text += fmt::format("<text class=\"token\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", layout.x(placed) - 4,
                        layout.y(placed) + middle + 4, token);
    text += fmt::format("<text class=\"token\" transform=\"translate({} {}) rotate(-90)\">{}</text>\n",
                        layout.x(placed) + middle + 4, layout.y(placed) - 4, token);
  }
  return text;
}

std::string image_of(const PlacedMap& placed, const Layout& layout, MapScale scale, bool alone) {
  const Picture picture = draw_map(*placed.map, placed.head, scale, alone ? 4 * kMostPixels : kMostPixels);
  return fmt::format(
      "<image x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{2}\" style=\"image-rendering:pixelated\" "
      "preserveAspectRatio=\"none\" href=\"data:image/png;base64,{3}\"/>\n"
      "<rect x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{2}\" fill=\"none\" stroke=\"#dfe3e7\"/>\n",
      layout.x(placed), layout.y(placed), layout.cell, base64(encode_png(picture, map_palette())));
}

/// The labels of the two ends of the colour ramp.
std::pair<std::string, std::string> ends_of(MapScale scale, bool above_one) {
  const std::string top = above_one ? "1, or the map's largest" : "1";
  switch (scale) {
    case MapScale::kValue:
      return {"0", top + " (by the square root)"};
    case MapScale::kRow:
      return {"0", "the largest of the row (by the square root)"};
    case MapScale::kLog:
      return {"\u2264 1/10,000", top + " (by the logarithm)"};
  }
  return {};
}

std::string legend(const std::vector<PlacedMap>& maps, const Layout& layout, MapScale scale) {
  bool selects = false, above_one = false;
  for (const PlacedMap& placed : maps) {
    above_one = above_one || placed.map->relevance.select(0, placed.head).max().item<float>() > 1;
    selects = selects || placed.mechanism->support == models::Support::kSelected;
  }
  const auto swatch = [](int64_t x, int64_t y, uint8_t colour, const std::string& name) {
    return fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"#dfe3e7\"/>\n"
        "<text x=\"{}\" y=\"{}\">{}</text>\n",
        x, y, css(map_palette()[colour]), x + 17, y + 10, name);
  };
  std::string text = "<defs><linearGradient id=\"ramp\">";
  for (int stop = 0; stop <= 20; ++stop) {
    const auto colour = static_cast<size_t>(kFirstShade + (255 - kFirstShade) * stop / 20);
    text += fmt::format("<stop offset=\"{}\" stop-color=\"{}\"/>", stop / 20.0, css(map_palette()[colour]));
  }
  text += "</linearGradient></defs>\n";
  const int64_t y = layout.maps_end() + 6;
  text += swatch(kMargin, y, kOutside, "future or outside the window");
  text += swatch(kMargin + 205, y, kZero, selects ? "rejected: exactly 0" : "exactly 0");
  const auto [low, high] = ends_of(scale, above_one);
  text += fmt::format("<text x=\"{}\" y=\"{}\">weight {}</text>\n", kMargin, y + 32, low);
  text +=
      fmt::format("<rect x=\"{}\" y=\"{}\" width=\"90\" height=\"12\" fill=\"url(#ramp)\"/>\n", kMargin + 120, y + 22);
  return text + fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", kMargin + 216, y + 32, high);
}

}  // namespace

std::string map_svg(const Relevance& relevance, const std::vector<PlacedMap>& maps, MapScale scale,
                    const std::string& title) {
  const Layout layout(relevance, maps);
  std::set<std::string> mechanisms;
  for (const PlacedMap& placed : maps) mechanisms.insert(placed.mechanism->name);
  std::string names;
  for (const std::string& name : mechanisms) names += (names.empty() ? "" : ", ") + name;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text {{ font: 12px sans-serif; fill: #1c2127 }} .title {{ font-size: 16px; font-weight: 600 }} "
      ".note {{ fill: #5d6671 }} .token {{ font: {2}px monospace }}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text class=\"title\" x=\"{3}\" y=\"28\">{4}</text>\n"
      "<text class=\"note\" x=\"{3}\" y=\"48\">{5}; {6} tokens; rows are queries, columns are keys</text>\n",
      layout.width(), layout.height(), kToken, kMargin, xml_text(title), xml_text(names), relevance.tokens.size());
  for (const PlacedMap& placed : maps) {
    if (!layout.tokens) {
      svg += fmt::format("<text class=\"note\" x=\"{}\" y=\"{}\">{}</text>\n", layout.x(placed), layout.y(placed) - 4,
                         label_of(placed));
    }
    svg += image_of(placed, layout, scale, maps.size() == 1);
    if (layout.tokens) svg += token_labels(relevance, layout, placed);
  }
  return svg + legend(maps, layout, scale) + "</svg>\n";
}

}  // namespace tamis::report

#include "tamis/base/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace tamis {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> distance(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(std::max(i, j));
        continue;
      }
      const int replaced = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known) {
  std::string text = fmt::format("unknown {} \"{}\"", kind, name);
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  if (nearest != known.end() && edit_distance(name, *nearest) <= std::max<int>(1, static_cast<int>(name.size()) / 3)) {
    text += fmt::format("; did you mean \"{}\"?", *nearest);
  } else {
    text += ".";
  }
  return text + fmt::format(" Known: {}", fmt::join(known, ", "));
}

}  // namespace tamis

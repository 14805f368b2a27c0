#pragma once

#include <string>
#include <vector>

#include "tamis/report/map_picture.h"
#include "tamis/report/relevance_data.h"

namespace tamis::report {

/// A head's map and its place in a picture of several.
struct PlacedMap {
  const models::RelevanceMap* map;
  const Mechanism* mechanism;
  int64_t head;
  int64_t row = 0, column = 0;
};

/// The maps with their labels and their scale as an SVG file; the maps themselves are PNG pictures inside it.
std::string map_svg(const Relevance& relevance, const std::vector<PlacedMap>& maps, MapScale scale,
                    const std::string& title);

}  // namespace tamis::report

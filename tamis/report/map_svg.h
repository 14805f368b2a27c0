#pragma once

#include <string>
#include <vector>

#include "tamis/report/map_picture.h"
#include "tamis/report/relevance_data.h"

namespace tamis::report {

/// The map of one head and its position in a grid of maps.
struct PlacedMap {
  const models::RelevanceMap* map;
  const Mechanism* mechanism;
  int64_t head;
  int64_t row = 0, column = 0;
};

/// An SVG file with the maps, as embedded PNG images, their labels and a legend.
std::string map_svg(const Relevance& relevance, const std::vector<PlacedMap>& maps, MapScale scale,
                    const std::string& title);

}  // namespace tamis::report

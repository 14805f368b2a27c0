#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/report/options.h"
#include "tamis/report/png.h"
#include "tamis/report/relevance_data.h"

namespace tamis::report {

/// How a weight becomes a colour; the page (web/relevance.js) has the same three and the same colours.
///
///   kValue  the square root of weight / top, where top is 1, or the map's largest weight when that is more
///   kRow    the square root of weight / the largest weight of its row
///   kLog    1 + log10(weight / top) / 4, at least 0: four decades below the top
enum class MapScale { kValue, kRow, kLog };

/// "value", "row", "log"; "auto": by value where all is screening, whose relevance lies in [0, 1], else by logarithm.
MapScale map_scale(const std::string& name, const std::vector<Mechanism>& mechanisms);

/// In [0, 1].
double map_shade(double weight, double row_largest, double top, MapScale scale);

/// Numbers in the palette of maps: 0 outside the window or in the future, 1 a weight of exactly zero, 2..255 the
/// colours of shades 0..1.
inline constexpr uint8_t kOutside = 0, kZero = 1, kFirstShade = 2;
const std::array<Colour, 256>& map_palette();

/// One head's map, a pixel for each pair, or the darkest of several pairs where T > `most_pixels`.
Picture draw_map(const models::RelevanceMap& map, int64_t head, MapScale scale, int64_t most_pixels);

/// The maps that `options.tiles` selects, as the file that `options.file` is by its ending: .svg with labels, scale
/// and, for one tile of a short text, the tokens; .png the bare maps, layers down and heads across. Throws
/// ExitCode::kUsage on a tile that the model does not have.
std::string draw_maps(const Relevance& relevance, const MapOptions& options, const std::string& title);

}  // namespace tamis::report

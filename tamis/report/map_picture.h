#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/report/options.h"
#include "tamis/report/png.h"
#include "tamis/report/relevance_data.h"

namespace tamis::report {

/// How weights map to colours. web/relevance.js has the same scales and colours.
///
///   kValue  the square root of weight / top, where top is 1, or the map's largest weight when that is more
///   kRow    the square root of weight / the largest weight of its row
///   kLog    max(0, 1 + log10(weight / top) / 4): four decades below the top
enum class MapScale { kValue, kRow, kLog };

/// The scale named "value", "row" or "log"; "auto" is kValue if all mechanisms are screening, whose relevance is in
/// [0, 1], else kLog.
MapScale map_scale(const std::string& name, const std::vector<Mechanism>& mechanisms);

/// The shade of a weight, in [0, 1].
double map_shade(double weight, double row_largest, double top, MapScale scale);

/// Palette indices: 0 for pairs outside the window or in the future, 1 for a weight of exactly zero, 2..255 for the
/// shades 0..1.
inline constexpr uint8_t kOutside = 0, kZero = 1, kFirstShade = 2;
const std::array<Colour, 256>& map_palette();

/// The map of one head with a pixel per pair of tokens; if T > `most_pixels`, a pixel shows the darkest of several
/// pairs.
Picture draw_map(const models::RelevanceMap& map, int64_t head, MapScale scale, int64_t most_pixels);

/// The maps that `options.heads` selects, in the format given by the extension of `options.file`: .svg with labels, a
/// legend and, for one head of a short text, the tokens; .png with the maps alone. Layers are rows, heads are columns.
/// Throws ExitCode::kUsage for a head that the model does not have.
std::string draw_maps(const Relevance& relevance, const MapOptions& options, const std::string& title);

}  // namespace tamis::report

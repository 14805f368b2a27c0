#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tamis::report {

using Colour = std::array<uint8_t, 3>;  // red, green, blue

/// A picture of at most 256 colours, row by row from the top: each pixel is an index into a palette.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;

  Picture(int64_t columns, int64_t rows, uint8_t background)
      : width(columns), height(rows), pixels(static_cast<size_t>(columns * rows), background) {}
  uint8_t& at(int64_t row, int64_t column) { return pixels[static_cast<size_t>(row * width + column)]; }
};

/// The picture as a PNG file.
std::string encode_png(const Picture& picture, std::span<const Colour> palette);

}  // namespace tamis::report

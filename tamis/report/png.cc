#include "tamis/report/png.h"

#include <png.h>

#include "tamis/base/error.h"

namespace tamis::report {

std::string encode_png(const Picture& picture, std::span<const Colour> palette) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = PNG_FORMAT_RGB_COLORMAP;
  image.colormap_entries = static_cast<png_uint_32>(palette.size());
  const auto write = [&](void* memory, png_alloc_size_t& size) {
    if (png_image_write_to_memory(&image, memory, &size, /*convert_to_8_bit=*/0, picture.pixels.data(),
                                  /*row_stride=*/0, palette.data()) != 0)
      return;
    fail(ExitCode::kRuntime, "a picture of {} x {} pixels cannot be encoded: {}", picture.width, picture.height,
         image.message);
  };
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(size, '\0');
  write(bytes.data(), size);
  bytes.resize(size);
  return bytes;
}

}  // namespace tamis::report

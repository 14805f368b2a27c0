#include "tamis/models/exchange/rotary_layout.h"

#include <ATen/ATen.h>

#include <array>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::models::exchange {

bool is_interleaved(const FormatOptions& options) {
  static const std::array<std::string, 2> kLayouts = {"half", "interleaved"};
  const std::string& layout = options.rotary_layout.empty() ? kLayouts[0] : options.rotary_layout;
  if (layout != kLayouts[0] && layout != kLayouts[1]) {
    throw Error(ExitCode::kUsage, unknown_name("rotary layout", layout, kLayouts));
  }
  return layout == kLayouts[1];
}

LazyTensor to_half_split(const LazyTensor& rows, int64_t head_dim) {
  return computed(rows.name, rows, rows.shape, [head_dim](const at::Tensor& x) {
    return x.unflatten(0, {-1, head_dim / 2, 2}).transpose(1, 2).flatten(0, 2);
  });
}

LazyTensor to_interleaved(const LazyTensor& rows, int64_t head_dim) {
  return computed(rows.name, rows, rows.shape, [head_dim](const at::Tensor& x) {
    return x.unflatten(0, {-1, 2, head_dim / 2}).transpose(1, 2).flatten(0, 2);
  });
}

}  // namespace tamis::models::exchange

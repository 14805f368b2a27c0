// Conversion of rows between storage and float32.

#include "tamis/kernels/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/kernels/attention_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

void PackRows(const Rows& rows, int64_t first, int64_t last, int64_t dim, float* out) {
  constexpr int64_t kAhead = 16;
  for (int64_t row = first; row < last; ++row, out += padded(dim)) {
    PrefetchRows<Access::kRead>(rows, std::min(row + kAhead, last - 1), std::min(row + kAhead + 1, last), dim);
    LoadRow(rows, row, dim, out);
  }
}

void UnpackRows(const float* in, int64_t first, int64_t last, int64_t dim, const Rows& rows) {
  for (int64_t row = first; row < last; ++row, in += padded(dim)) StoreRow(in, dim, rows, row);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(PackRows);
HWY_EXPORT(UnpackRows);

void pack_rows(const Rows& rows, int64_t first, int64_t last, int64_t dim, float* out) {
  HWY_DYNAMIC_DISPATCH(PackRows)(rows, first, last, dim, out);
}

void unpack_rows(const float* in, int64_t first, int64_t last, int64_t dim, const Rows& rows) {
  HWY_DYNAMIC_DISPATCH(UnpackRows)(in, first, last, dim, rows);
}

}  // namespace tamis::kernels
#endif

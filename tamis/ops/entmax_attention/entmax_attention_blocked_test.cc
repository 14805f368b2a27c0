// The blocked form of entmax attention, which other devices run, on the CPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/selection/testing.h"

namespace tamis::ops::testing {
namespace {

struct BlockedEntmaxSubject : BlockedSelection<EntmaxAttentionOptions, &entmax_weights> {
  static constexpr const char* kName = "entmax_attention";
  static at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return reference::entmax_attention(q, k, v, options);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(EntmaxAttention, BlockedSelectionTest, BlockedEntmaxSubject);

}  // namespace
}  // namespace tamis::ops::testing

// The blocked form of Sieve attention, which other devices run, on the CPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tamis/ops/selection/testing.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"

namespace tamis::ops::testing {
namespace {

struct BlockedSieveSubject : BlockedSelection<SieveAttentionOptions, &sieve_weights> {
  static constexpr const char* kName = "sieve_attention";
  static at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return reference::sieve_attention(q, k, v, options);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(SieveAttention, BlockedSelectionTest, BlockedSieveSubject);

}  // namespace
}  // namespace tamis::ops::testing

#include "tamis/ops/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::Tensors;

/// The same numbers head by head, one row after the other, as a decoding cache stores them, without memory beyond
/// the last row.
Tensor head_by_head(const Tensor& x_BTHD, int64_t offset) {
  const Tensor memory = at::full({x_BTHD.numel() + offset}, std::numeric_limits<float>::quiet_NaN());
  const int64_t B = x_BTHD.size(0), T = x_BTHD.size(1), H = x_BTHD.size(2), D = x_BTHD.size(3);
  const Tensor view = memory.slice(0, offset).view({B, H, T, D}).transpose(1, 2);
  view.copy_(x_BTHD);
  return view;
}

/// Keys and values that the kernels read in place, at the very end of their memory, give the same bits as packed ones.
TEST(Attention, KeysAreReadInPlaceWhereTheyLieAsPacked) {
  const std::vector<std::pair<const char*, testing::Function>> operators = {
      {"softmax", [](const Tensors& in) { return Tensors{softmax_attention(in[0], in[1], in[2])}; }},
      {"window", [](const Tensors& in) { return Tensors{softmax_attention(in[0], in[1], in[2], {.window = 70})}; }},
      {"entmax", [](const Tensors& in) { return Tensors{entmax_attention(in[0], in[1], in[2])}; }},
      {"sparse", [](const Tensors& in) { return Tensors{entmax_attention(in[0], in[1], in[2], {.alpha = 2})}; }},
      {"softest", [](const Tensors& in) { return Tensors{sieve_attention(in[0], in[1], in[2], {.alpha = 1})}; }},
      {"sieve", [](const Tensors& in) { return Tensors{sieve_attention(in[0], in[1], in[2])}; }},
      {"stick", [](const Tensors& in) { return Tensors{std::get<0>(stick_breaking_attention(in[0], in[1], in[2]))}; }}};
  for (const int64_t queries : {int64_t{1}, int64_t{30}, int64_t{131}}) {
    constexpr int64_t kKeys = 131;
    const Tensor q = testing::random_normal({2, queries, 3, 16}, 1), k = testing::random_normal({2, kKeys, 3, 16}, 2),
                 v = testing::random_normal({2, kKeys, 3, 32}, 3);
    for (const auto& [name, function] : operators) {
      testing::for_each_target([&, &function = function, &name = name] {
        const Tensors packed = testing::outputs_and_gradients(function, {q, k, v});
        for (const int64_t offset : {0, 1}) {
          const Tensors in_place =
              testing::outputs_and_gradients(function, {q, head_by_head(k, offset), head_by_head(v, offset)});
          for (size_t t = 0; t < packed.size(); ++t) {
            EXPECT_TRUE(in_place[t].equal(packed[t])) << name << ", " << queries << " queries, tensor " << t;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace tamis::ops

#include "tamis/ops/blocked.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tamis::ops {
namespace {

struct BlockedCase {
  int64_t B, T_q, T_k, H, span;
  bool strict = false, documents = false;
};

TEST(QueryBlocks, StepsHoldEveryVisiblePairOnce) {
  for (const BlockedCase& c :
       {BlockedCase{1, 1, 1, 1, 1}, BlockedCase{2, 100, 100, 3, 100}, BlockedCase{2, 100, 100, 3, 100, true},
        BlockedCase{2, 37, 200, 2, 200, false, true}, BlockedCase{2, 200, 200, 2, 5},
        BlockedCase{1, 333, 333, 2, 33, false, true}, BlockedCase{1, 30, 500, 2, 17}, BlockedCase{1, 300, 300, 1, 250},
        BlockedCase{2, 900, 900, 8, 900, true, true}}) {
    SCOPED_TRACE(::testing::Message() << "T_q " << c.T_q << ", T_k " << c.T_k << ", span " << c.span);
    AttentionRange range{.window = c.span, .strict = c.strict};
    if (c.documents) {
      range.document = at::arange(c.T_k).floor_divide(70).remainder(3).expand({c.B, c.T_k}).contiguous();
    }
    const at::Tensor q = at::ones({c.B, c.T_q, c.H, 1}), k = at::ones({c.B, c.T_k, c.H, 1});
    const QueryBlocks blocks({q, k}, c.span, range, q.options());
    const at::Tensor queries = blocks.query_rows(q), of_queries = blocks.zero_query_rows(1),
                     of_keys = blocks.zero_key_rows(1);
    for (const BlockStep& step : blocks.steps()) {
      EXPECT_LE(step.rows * step.blocks * step.queries * step.keys, 2 * pair_budget(at::kCPU));
      const at::Tensor pairs = at::ones({step.rows * step.blocks, step.queries, step.keys});
      step.hide(pairs, 0);
      pairs.mul_(step.of_queries(queries));  // 0 for the queries that fill the last block
      step.set_queries(of_queries, pairs.sum(2, /*keepdim=*/true));
      step.add_to_keys(of_keys, pairs.sum(1).unsqueeze(2));
    }
    // With `strict` the query's own key is hidden, but the window counts it.
    const at::Tensor visible = visible_pairs(c.T_q, c.T_k, {.window = c.span, .document = range.document}, at::kCPU);
    const at::Tensor strictly = visible_pairs(c.T_q, c.T_k, range, at::kCPU);
    const at::Tensor expected = (c.strict ? visible.logical_and(strictly) : visible).expand({c.B, c.H, c.T_q, c.T_k});
    EXPECT_TRUE(blocks.from_query_rows(of_queries).squeeze(3).equal(expected.sum(3).transpose(1, 2).to(at::kFloat)));
    EXPECT_TRUE(blocks.from_key_rows(of_keys).squeeze(3).equal(expected.sum(2).transpose(1, 2).to(at::kFloat)));
  }
}

TEST(DocumentOrder, KnowsStartAndRank) {
  const DocumentOrder order(at::tensor({5, 5, 2, 2, 2, 5, 1, 2}).view({1, 8}));
  EXPECT_TRUE(order.start.equal(at::tensor({0, 0, 2, 2, 2, 0, 6, 2}).view({1, 8})));
  EXPECT_TRUE(order.rank.equal(at::tensor({1, 2, 1, 2, 3, 3, 1, 4}).view({1, 8})));
}

}  // namespace
}  // namespace tamis::ops

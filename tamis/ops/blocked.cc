#include "tamis/ops/blocked.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <tuple>

namespace tamis::ops {

using at::Tensor;

DocumentOrder::DocumentOrder(const Tensor& document_BT) {
  const auto [sorted, order] = document_BT.sort(std::optional<bool>(true), /*dim=*/1, /*descending=*/false);
  const Tensor index = at::arange(document_BT.size(1), order.options()).unsqueeze(0).expand_as(order);
  Tensor begins = at::ones_like(sorted, sorted.options().dtype(at::kBool));
  if (sorted.size(1) > 1) begins.slice(1, 1).copy_(sorted.slice(1, 1) != sorted.slice(1, 0, -1));
  const Tensor begin = std::get<0>(at::where(begins, index, 0).cummax(1));
  start = at::empty_like(order).scatter_(1, order, order.gather(1, begin));
  rank = at::empty_like(order).scatter_(1, order, index - begin + 1);
}

at::ScalarType widest_dtype(at::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

int64_t pair_budget(at::Device device) {
  return device.is_cpu() ? int64_t{1} << 19 : int64_t{1} << 24;
}

BlockCut::BlockCut(const AttentionSizes& sizes, int64_t span, at::Device device) {
  constexpr int64_t kShortest = 16;
  const int64_t longest = device.is_cpu() ? 64 : 128;
  const auto whole = [](int64_t x) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(x, 1))));
  };
  block = std::clamp(whole(span), kShortest, int64_t{64});
  reach = (span - 1 + block - 1) / block * block;
  banded = reach + block < sizes.T_k - sizes.T_q / 2;
  if (banded) return;
  block = std::clamp(whole(pair_budget(device) / std::max<int64_t>(sizes.T_k, 1)), kShortest, longest);
  block = std::min(block, std::max<int64_t>(sizes.T_q, 1));  // so that tables have no more rows than there are queries
  reach = 0;
}

QueryBlocks::QueryBlocks(const AttentionSizes& sizes, int64_t span, const AttentionRange& range,
                         const at::TensorOptions& options)
    : sizes_(sizes),
      cut_(sizes, span, options.device()),
      span_(span),
      strict_(range.strict),
      keys_before_(range.keys_before),
      options_(options) {
  if (!keys_before_) {
    const Tensor distance = distances();
    hidden_ = (distance < (strict_ ? 1 : 0)).logical_or(distance >= span_);
  }
  if (!range.document) return;
  const Tensor document = range.document->to(at::kLong).unsqueeze(2).expand({-1, -1, sizes.H}).unsqueeze(3);
  query_document_ = query_rows(document.narrow(1, query_origin(), sizes.T_q));
  key_document_ = key_rows(document.narrow(1, 0, sizes.T_k));
  if (!cut_.banded) find_first_keys(*range.document);
}

void QueryBlocks::find_first_keys(const Tensor& document_BT) {
  const int64_t blocks = block_count(), whole = blocks * cut_.block;
  if (document_BT.numel() == 0) return;
  const Tensor starts = DocumentOrder(document_BT).start.narrow(1, query_origin(), sizes_.T_q).amin(0);
  const Tensor padded = at::full({whole}, sizes_.T_k, starts.options());
  padded.narrow(0, 0, sizes_.T_q).copy_(starts);
  // Every block keeps at least one key, which is masked if it belongs to another document.
  const Tensor first = padded.view({blocks, cut_.block}).amin(1).clamp_max(sizes_.T_k - 1).cpu();
  first_key_.assign(first.const_data_ptr<int64_t>(), first.const_data_ptr<int64_t>() + blocks);
}

Tensor QueryBlocks::rows_of(const Tensor& x, int64_t row_length, int64_t first, int64_t at, int64_t count) const {
  const auto dtype = x.scalar_type() == at::kLong ? at::kLong : c10::typeMetaToScalarType(options_.dtype());
  const Tensor rows = at::zeros({sizes_.B, sizes_.H, row_length, x.size(3)}, options_.dtype(dtype));
  rows.narrow(2, at, count).copy_(x.narrow(1, first, count).transpose(1, 2));
  return rows.view({row_count(), row_length, x.size(3)});
}

Tensor QueryBlocks::query_rows(const Tensor& x) const {
  return rows_of(x, query_row_length(), 0, 0, sizes_.T_q);
}

Tensor QueryBlocks::key_rows(const Tensor& x) const {
  if (!cut_.banded && block_count() <= 1 && x.scalar_type() == options_.dtype()) {
    // A single block of queries reads them: a copy would cost more than reading them where they are.
    return x.transpose(1, 2).reshape({row_count(), sizes_.T_k, x.size(3)});
  }
  const int64_t first = std::max<int64_t>(key_origin(), 0);  // keys before every window are not read
  return rows_of(x, key_row_length(), first, first - key_origin(), sizes_.T_k - first);
}

Tensor QueryBlocks::zero_query_rows(int64_t D) const {
  return at::zeros({row_count(), query_row_length(), D}, options_);
}

Tensor QueryBlocks::zero_key_rows(int64_t D) const {
  return at::zeros({row_count(), key_row_length(), D}, options_);
}

Tensor QueryBlocks::from_query_rows(const Tensor& x) const {
  return x.narrow(1, 0, sizes_.T_q).view({sizes_.B, sizes_.H, sizes_.T_q, x.size(2)}).transpose(1, 2);
}

Tensor QueryBlocks::from_key_rows(const Tensor& x) const {
  const int64_t origin = key_origin(), first = std::max<int64_t>(origin, 0);
  const Tensor known = x.narrow(1, first - origin, sizes_.T_k - first);
  const Tensor rows = first == 0 ? known : at::constant_pad_nd(known, {0, 0, first, 0});
  return rows.view({sizes_.B, sizes_.H, sizes_.T_k, x.size(2)}).transpose(1, 2);
}

Tensor QueryBlocks::distances() const {
  const auto index = [&](int64_t count) { return at::arange(count, options_.dtype(at::kLong)); };
  return index(cut_.block).unsqueeze(1) - index(most_keys()) + (most_keys() - cut_.block);
}

std::vector<QueryBlocks::RowRange> QueryBlocks::row_ranges() const {
  const int64_t pairs = cut_.block * most_keys();
  const int64_t count = std::max<int64_t>(pair_budget(options_.device()) / std::max<int64_t>(pairs, 1), 1);
  std::vector<RowRange> ranges;
  for (int64_t first = 0; first < row_count(); first += count) {
    ranges.push_back({first, std::min(count, row_count() - first)});
  }
  return ranges;
}

std::vector<BlockStep> QueryBlocks::steps(const RowRange& range) const {
  const int64_t pairs = range.count * cut_.block * most_keys();
  const int64_t together = cut_.banded ? std::max<int64_t>(pair_budget(options_.device()) / pairs, 1) : 1;
  std::vector<BlockStep> steps;
  for (int64_t first = 0; first < block_count(); first += together) {
    steps.push_back(BlockStep(*this, range.first, range.count, first, std::min(together, block_count() - first)));
  }
  return steps;
}

std::vector<BlockStep> QueryBlocks::steps() const {
  std::vector<BlockStep> all;
  for (const RowRange& range : row_ranges()) {
    for (const BlockStep& step : steps(range)) all.push_back(step);
  }
  return all;
}

BlockStep::BlockStep(const QueryBlocks& plan, int64_t first_row_in, int64_t rows_in, int64_t first_block,
                     int64_t blocks_in)
    : first_row(first_row_in), rows(rows_in), blocks(blocks_in), plan_(plan) {
  const BlockCut& cut = plan.cut_;
  first_query_ = first_block * cut.block;
  if (cut.banded) {
    queries = cut.block;
    keys = plan.most_keys();
    first_key_ = first_query_;
  } else {
    queries = std::min(cut.block, plan.sizes_.T_q - first_query_);
    first_key_ = plan.first_key_.empty() ? 0 : plan.first_key_[first_block];
    keys = std::min(plan.query_origin() + first_query_ + queries, plan.sizes_.T_k) - first_key_;
  }
}

Tensor BlockStep::of_queries(const Tensor& x) const {
  return x.narrow(0, first_row, rows)
      .narrow(1, first_query_, blocks * queries)
      .reshape({rows * blocks, queries, x.size(2)});
}

Tensor BlockStep::of_keys(const Tensor& x) const {
  const int64_t D = x.size(2);
  if (blocks == 1) return x.narrow(0, first_row, rows).narrow(1, first_key_, keys);
  const int64_t start = x.storage_offset() + first_row * x.stride(0) + first_key_ * D;
  return x.as_strided({rows, blocks, keys, D}, {x.stride(0), queries * D, D, 1}, start)
      .reshape({rows * blocks, keys, D});
}

void BlockStep::set_queries(const Tensor& x, const Tensor& value) const {
  x.narrow(0, first_row, rows).narrow(1, first_query_, blocks * queries).copy_(value.view({rows, -1, x.size(2)}));
}

void BlockStep::add_to_keys(const Tensor& x, const Tensor& value) const {
  const int64_t D = x.size(2);
  const Tensor mine = x.narrow(0, first_row, rows);
  if (blocks == 1) {
    mine.narrow(1, first_key_, keys).add_(value);
    return;
  }
  const Tensor by_block = value.view({rows, blocks, keys, D});
  for (int64_t part = 0; part < keys; part += queries) {  // keys are a multiple of queries
    mine.narrow(1, first_key_ + part, blocks * queries)
        .view({rows, blocks, queries, D})
        .add_(by_block.narrow(2, part, queries));
  }
}

void BlockStep::add_products_to_keys(const Tensor& x, const Tensor& pairs, const Tensor& of_queries) const {
  if (blocks == 1) {
    x.narrow(0, first_row, rows).narrow(1, first_key_, keys).baddbmm_(pairs.transpose(1, 2), of_queries);
  } else {
    add_to_keys(x, at::bmm(pairs.transpose(1, 2), of_queries));
  }
}

Tensor BlockStep::of_table(const Tensor& table) const {
  return table.narrow(-2, table.size(-2) - queries, queries).narrow(-1, table.size(-1) - keys, keys);
}

void BlockStep::hide(const Tensor& pairs, double value) const {
  if (plan_.keys_before_) {
    hide_documents(pairs, value);
    return;
  }
  if (keys > plan_.span_) {
    pairs.masked_fill_(of_table(plan_.hidden_), value);
  } else {  // only keys newer than a query are hidden
    pairs.narrow(2, keys - queries, queries)
        .masked_fill_(of_table(plan_.hidden_).narrow(1, keys - queries, queries), value);
  }
  const int64_t missing = -plan_.key_origin() - first_key_;  // keys before position 0
  for (int64_t block = 0; block < blocks && block * queries < missing; ++block) {
    by_row(pairs).select(1, block).narrow(2, 0, std::min(missing - block * queries, keys)).fill_(value);
  }
  hide_documents(pairs, value);
}

void BlockStep::hide_documents(const Tensor& pairs, double value) const {
  if (!plan_.key_document_.defined()) return;
  pairs.masked_fill_(of_queries(plan_.query_document_) != of_keys(plan_.key_document_).transpose(1, 2), value);
}

}  // namespace tamis::ops

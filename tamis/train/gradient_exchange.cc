#include "tamis/train/gradient_exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/nn/trace_scope.h"
#include "tamis/train/optimizer.h"

namespace tamis::train {
namespace {

using distributed::ProcessGroup;

/// The blocks of all parameters, the last parameter first: about the order of the backward pass.
std::vector<Piece> all_blocks(std::span<const int64_t> sizes) {
  std::vector<Piece> blocks;
  for (size_t p = sizes.size(); p-- > 0;) {
    for (int64_t begin = 0; begin < sizes[p]; begin += kNormBlock) {
      blocks.push_back({p, begin, std::min(begin + kNormBlock, sizes[p])});
    }
  }
  return blocks;
}

std::vector<int64_t> sizes_of(std::span<const models::Parameter> parameters) {
  std::vector<int64_t> sizes;
  for (const models::Parameter& parameter : parameters) sizes.push_back(parameter.tensor.numel());
  return sizes;
}

int64_t blocks_of(const Piece& piece) {
  return (piece.end - piece.begin + kNormBlock - 1) / kNormBlock;
}

}  // namespace

ExchangeLayout::ExchangeLayout(std::span<const int64_t> sizes, int64_t processes, int64_t bucket_elements)
    : processes_(processes) {
  const std::vector<Piece> blocks = all_blocks(sizes);
  for (size_t first = 0; first < blocks.size();) {
    size_t last = first;
    int64_t count = 0;
    while (last < blocks.size() && count < bucket_elements) {
      count += blocks[last].end - blocks[last].begin;
      ++last;
    }
    Bucket bucket;
    bucket.parts.resize(processes);
    std::vector<int64_t> filled(processes);
    int64_t start = 0;
    for (size_t b = first; b < last; ++b) {
      const Piece& block = blocks[b];
      const int64_t owner = start * processes / count;
      start += block.end - block.begin;
      std::vector<Placed>& part = bucket.parts[owner];
      if (!part.empty() && part.back().piece.parameter == block.parameter && part.back().piece.end == block.begin) {
        part.back().piece.end = block.end;
      } else {
        part.push_back({block, filled[owner]});
      }
      filled[owner] += block.end - block.begin;
      if (bucket.parameters.empty() || bucket.parameters.back() != block.parameter) {
        bucket.parameters.push_back(block.parameter);
      }
    }
    bucket.part_elements = *std::max_element(filled.begin(), filled.end());
    buckets_.push_back(std::move(bucket));
    first = last;
  }
}

int64_t ExchangeLayout::gradient_bytes(at::ScalarType dtype) const {
  int64_t elements = 0;
  for (const Bucket& bucket : buckets_) elements += bucket.part_elements;
  return elements * (processes_ - 1) * static_cast<int64_t>(c10::elementSize(dtype));
}

GradientExchange::GradientExchange(ProcessGroup& group, std::vector<models::Parameter> parameters,
                                   const Reduction& reduction)
    : group_(group),
      parameters_(std::move(parameters)),
      reduction_(reduction),
      layout_(sizes_of(parameters_), group.size(), reduction.bucket_elements),
      buckets_of_(parameters_.size()),
      has_gradient_(parameters_.size()) {
  for (const ExchangeLayout::Bucket& bucket : layout_.buckets()) {
    for (const size_t parameter : bucket.parameters) buckets_of_[parameter].push_back(buckets_.size());
    for (const auto& placed : bucket.parts[group.rank()]) owned_.push_back(placed.piece);
    Bucket& own = buckets_.emplace_back();
    own.layout = &bucket;
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    TAMIS_ASSERT(parameters_[p].tensor.is_contiguous());
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters_[p].tensor));
    hooks_.push_back(accumulators_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, p](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          on_gradient(p);
          return outputs;
        })));
  }
}

GradientExchange::~GradientExchange() {
  for (size_t p = 0; p < hooks_.size(); ++p) accumulators_[p]->del_post_hook(hooks_[p]);
}

at::Tensor GradientExchange::flat(const Piece& piece) const {
  return parameters_[piece.parameter].tensor.detach().view({-1}).slice(0, piece.begin, piece.end);
}

std::vector<models::Parameter> GradientExchange::owned_parameters() const {
  std::vector<models::Parameter> result;
  for (const Piece& piece : owned_) {
    const auto& [name, tensor] = parameters_[piece.parameter];
    const at::Tensor values = flat(piece);
    result.push_back({fmt::format("{}[{}:{}]", name, piece.begin, piece.end),
                      tensor.dim() >= 2 ? values.unsqueeze(0) : values});
  }
  return result;
}

void GradientExchange::begin(bool last) {
  sending_ = last || reduction_.ordered;
  next_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.layout->parameters.size();
}

void GradientExchange::on_gradient(size_t parameter) {
  has_gradient_[parameter] = true;
  if (!sending_) return;
  for (const size_t b : buckets_of_[parameter]) --buckets_[b].missing;
  send_ready();
}

/// In the same order on all processes, so a bucket waits for those before it.
void GradientExchange::send_ready() {
  for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_) send(buckets_[next_]);
}

void GradientExchange::end() {
  if (!sending_) return;
  for (Bucket& bucket : buckets_) bucket.missing = 0;  // what the loss does not depend on has no gradient
  send_ready();
  sending_ = false;
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
}

void GradientExchange::send(Bucket& bucket) {
  add_received(bucket);
  const nn::TraceScope traced("send gradients");
  const int64_t size = group_.size();
  const auto options = at::TensorOptions().dtype(reduction_.dtype);
  bucket.from = at::empty({size, bucket.layout->part_elements}, options);
  bucket.to = at::empty({size, bucket.layout->part_elements}, options);
  for (int64_t r = 0; r < size; ++r) {
    for (const auto& [piece, offset] : bucket.layout->parts[r]) {
      const at::Tensor place = bucket.from[r].slice(0, offset, offset + piece.end - piece.begin);
      const at::Tensor gradient = parameters_[piece.parameter].tensor.grad();
      if (gradient.defined()) {
        place.copy_(gradient.contiguous().view({-1}).slice(0, piece.begin, piece.end));
      } else {
        place.zero_();
      }
    }
  }
  bucket.pending = group_.all_to_all(bucket.to.view({-1}), bucket.from.view({-1}));
}

void GradientExchange::add_received(Bucket& bucket) {
  if (!bucket.to.defined()) return;
  bucket.pending.wait();
  for (int64_t r = 0; r < group_.size(); ++r) {
    const at::Tensor part = bucket.to[r];
    if (bucket.sum.defined()) {
      bucket.sum.add_(part);
    } else {
      bucket.sum = part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
  }
  bucket.to.reset();
  bucket.from.reset();
}

void GradientExchange::finish(std::span<const models::Parameter> owned) {
  const nn::TraceScope traced("wait for gradients");
  size_t next = 0;
  for (Bucket& bucket : buckets_) {
    add_received(bucket);
    for (const auto& [piece, offset] : bucket.layout->parts[group_.rank()]) {
      const at::Tensor& tensor = owned[next++].tensor;
      if (!has_gradient_[piece.parameter]) continue;
      tensor.mutable_grad() = bucket.sum.slice(0, offset, offset + piece.end - piece.begin).view(tensor.sizes());
    }
    bucket.sum.reset();
  }
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
}

void GradientExchange::clear() {
  for (Bucket& bucket : buckets_) bucket.sum.reset();
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
}

std::vector<std::vector<double>> GradientExchange::block_sums(std::span<const models::Parameter> owned) {
  std::vector<double> mine;
  for (size_t i = 0; i < owned.size(); ++i) {
    std::vector<double> sums = train::block_sums(owned[i].tensor.grad());
    sums.resize(blocks_of(owned_[i]));  // zeros without a gradient
    mine.insert(mine.end(), sums.begin(), sums.end());
  }
  size_t longest = 0;
  std::vector<size_t> counts(group_.size());
  for (const Bucket& bucket : buckets_) {
    for (int64_t r = 0; r < group_.size(); ++r) {
      for (const ExchangeLayout::Placed& placed : bucket.layout->parts[r]) counts[r] += blocks_of(placed.piece);
    }
  }
  longest = *std::max_element(counts.begin(), counts.end());
  mine.resize(longest);
  const std::vector<double> all = group_.gather(mine);

  std::vector<std::vector<double>> result(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    result[p].resize((parameters_[p].tensor.numel() + kNormBlock - 1) / kNormBlock);
  }
  for (int64_t r = 0; r < group_.size(); ++r) {
    auto next = all.begin() + static_cast<int64_t>(longest) * r;
    for (const Bucket& bucket : buckets_) {
      for (const ExchangeLayout::Placed& placed : bucket.layout->parts[r]) {
        const int64_t first = placed.piece.begin / kNormBlock;
        for (int64_t block = 0; block < blocks_of(placed.piece); ++block) {
          result[placed.piece.parameter][first + block] = *next++;
        }
      }
    }
  }
  return result;
}

void GradientExchange::gather_parameters() {
  const nn::TraceScope traced("gather parameters");
  const int64_t size = group_.size(), rank = group_.rank();
  const auto copy_parts = [&](Bucket& bucket) {
    bucket.pending.wait();
    for (int64_t r = 0; r < size; ++r) {
      if (r == rank) continue;
      for (const auto& [piece, offset] : bucket.layout->parts[r]) {
        flat(piece).copy_(bucket.to[r].slice(0, offset, offset + piece.end - piece.begin));
      }
    }
    bucket.to.reset();
    bucket.from.reset();
  };
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    bucket.from = at::zeros({bucket.layout->part_elements}, at::kFloat);
    bucket.to = at::empty({size, bucket.layout->part_elements}, at::kFloat);
    for (const auto& [piece, offset] : bucket.layout->parts[rank]) {
      bucket.from.slice(0, offset, offset + piece.end - piece.begin).copy_(flat(piece));
    }
    bucket.pending = group_.all_gather(bucket.to.view({-1}), bucket.from);
    if (b > 0) copy_parts(buckets_[b - 1]);
  }
  copy_parts(buckets_.back());
}

}  // namespace tamis::train

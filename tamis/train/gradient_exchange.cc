#include "tamis/train/gradient_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/nn/trace_scope.h"
#include "tamis/train/optimizer.h"

namespace tamis::train {
namespace {

using distributed::ProcessGroup;

/// The blocks of all parameters, the last parameter first: about the order of the backward pass. What is kept whole
/// besides sharded parameters comes last, because it belongs to all layers.
std::vector<Piece> all_blocks(std::span<const int64_t> sizes, std::span<const int64_t> units) {
  std::vector<Piece> blocks;
  for (const bool whole : {false, true}) {
    for (size_t p = sizes.size(); p-- > 0;) {
      if ((units[p] == kWhole) != whole) continue;
      for (int64_t begin = 0; begin < sizes[p]; begin += kNormBlock) {
        blocks.push_back({p, begin, std::min(begin + kNormBlock, sizes[p])});
      }
    }
  }
  return blocks;
}

std::vector<int64_t> sizes_of(std::span<const models::Parameter> parameters) {
  std::vector<int64_t> sizes;
  for (const models::Parameter& parameter : parameters) sizes.push_back(parameter.tensor.numel());
  return sizes;
}

/// 4M elements, and for more than 32 processes as many as give each of them eight blocks: with fewer, parts of whole
/// blocks differ so much that a good part of what is sent would be padding.
int64_t default_bucket(int64_t processes) {
  return std::max<int64_t>(int64_t{1} << 22, 8 * processes * kNormBlock);
}

/// Makes the storage of a tensor hold so many bytes, whose values it does not set.
void resize_storage(const at::Tensor& tensor, size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == bytes) return;
  const c10::OptionalDeviceGuard guard(tensor.is_cpu() ? std::nullopt : std::optional(tensor.device()));
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

int64_t blocks_of(const Piece& piece) {
  return (piece.end - piece.begin + kNormBlock - 1) / kNormBlock;
}

}  // namespace

std::vector<int64_t> units_of(std::span<const models::Parameter> parameters, bool sharded) {
  constexpr std::string_view kLayers = "layers.";
  std::vector<int64_t> units;
  for (const auto& [name, tensor] : parameters) {
    if (!sharded || tensor.dim() < 2) {
      units.push_back(kWhole);
    } else {
      units.push_back(name.starts_with(kLayers) ? std::stoll(name.substr(kLayers.size())) : kOutside);
    }
  }
  return units;
}

ExchangeLayout::ExchangeLayout(std::span<const int64_t> sizes, std::span<const int64_t> units, int64_t processes,
                               int64_t bucket_elements)
    : processes_(processes) {
  if (bucket_elements == 0) bucket_elements = default_bucket(processes);
  const std::vector<Piece> blocks = all_blocks(sizes, units);
  const auto unit_of = [&](size_t block) { return units[blocks[block].parameter]; };
  std::vector<int64_t> left(blocks.size());  // elements of the unit from each block on
  for (size_t b = blocks.size(); b-- > 0;) {
    left[b] = blocks[b].end - blocks[b].begin;
    if (b + 1 < blocks.size() && unit_of(b) == unit_of(b + 1)) left[b] += left[b + 1];
  }
  for (size_t first = 0; first < blocks.size();) {
    size_t last = first;
    int64_t count = 0;
    const int64_t unit = unit_of(first);
    // The last bucket takes up to half as much again, instead of leaving less than half to another.
    const int64_t most = left[first] < bucket_elements + bucket_elements / 2 ? left[first] : bucket_elements;
    while (last < blocks.size() && count < most && unit_of(last) == unit) {
      count += blocks[last].end - blocks[last].begin;
      ++last;
    }
    Bucket bucket;
    bucket.unit = unit;
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

int64_t ExchangeLayout::parameter_bytes(int64_t passes) const {
  int64_t elements = 0;
  for (const Bucket& bucket : buckets_) {
    const int64_t times = bucket.unit == kWhole ? 1 : bucket.unit == kOutside ? passes : 2 * passes;
    elements += times * bucket.part_elements;
  }
  return elements * (processes_ - 1) * static_cast<int64_t>(sizeof(float));
}

int64_t ExchangeLayout::gathers(int64_t passes) const {
  int64_t count = 0;
  for (const Bucket& bucket : buckets_)
    count += bucket.unit == kWhole ? 1 : bucket.unit == kOutside ? passes : 2 * passes;
  return count;
}

GradientExchange::GradientExchange(ProcessGroup& group, std::vector<models::Parameter> parameters,
                                   const Reduction& reduction)
    : group_(group),
      parameters_(std::move(parameters)),
      reduction_(reduction),
      layout_(sizes_of(parameters_), units_of(parameters_, reduction.sharded), group.size(), reduction.bucket_elements),
      buckets_of_(parameters_.size()),
      has_gradient_(parameters_.size()) {
  for (const ExchangeLayout::Bucket& bucket : layout_.buckets()) {
    for (const size_t parameter : bucket.parameters) buckets_of_[parameter].push_back(buckets_.size());
    for (const auto& placed : bucket.parts[group.rank()]) owned_.push_back(placed.piece);
    Bucket& own = buckets_.emplace_back();
    own.layout = &bucket;
    if (bucket.unit == kWhole) continue;
    gathered_.insert(bucket.unit);
    own.values = zeros(bucket.part_elements);
    for (const auto& [piece, offset] : bucket.parts[group.rank()]) {
      own.values.slice(0, offset, offset + piece.end - piece.begin).copy_(flat(piece));
    }
  }
  release_all();
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

at::Tensor GradientExchange::zeros(int64_t elements) const {
  return at::zeros({elements}, parameters_[0].tensor.options().dtype(at::kFloat).requires_grad(false));
}

std::vector<models::Parameter> GradientExchange::owned_parameters() const {
  std::vector<models::Parameter> result;
  for (const Bucket& bucket : buckets_) {
    for (const auto& [piece, offset] : bucket.layout->parts[group_.rank()]) {
      const auto& [name, tensor] = parameters_[piece.parameter];
      const at::Tensor values =
          bucket.values.defined() ? bucket.values.slice(0, offset, offset + piece.end - piece.begin) : flat(piece);
      result.push_back(
          {fmt::format("{}[{}:{}]", name, piece.begin, piece.end), tensor.dim() >= 2 ? values.unsqueeze(0) : values});
    }
  }
  return result;
}

void GradientExchange::begin(bool last) {
  sending_ = last || reduction_.ordered || reduction_.sharded;
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
  for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_) {
    Bucket& bucket = buckets_[next_];
    if (next_ >= 2) add_received(buckets_[next_ - 2]);  // at most two buckets in memory
    send(bucket);
    const int64_t unit = bucket.layout->unit;
    if (unit == kWhole || (next_ + 1 < buckets_.size() && buckets_[next_ + 1].layout->unit == unit)) continue;
    if (unit != kOutside) release(unit);
  }
}

void GradientExchange::end() {
  if (!sending_) return;
  for (Bucket& bucket : buckets_) bucket.missing = 0;  // what the loss does not depend on has no gradient
  send_ready();
  sending_ = false;
}

void GradientExchange::send(Bucket& bucket) {
  add_received(bucket);
  const nn::TraceScope traced("send gradients");
  const int64_t size = group_.size();
  const auto options = at::TensorOptions(parameters_[0].tensor.device()).dtype(reduction_.dtype);
  bucket.gradients.from = at::empty({size, bucket.layout->part_elements}, options);
  bucket.gradients.to = at::empty({size, bucket.layout->part_elements}, options);
  for (int64_t r = 0; r < size; ++r) {
    for (const auto& [piece, offset] : bucket.layout->parts[r]) {
      const at::Tensor place = bucket.gradients.from[r].slice(0, offset, offset + piece.end - piece.begin);
      const at::Tensor gradient = parameters_[piece.parameter].tensor.grad();
      if (gradient.defined()) {
        place.copy_(gradient.contiguous().view({-1}).slice(0, piece.begin, piece.end));
      } else {
        place.zero_();
      }
    }
  }
  for (const size_t parameter : bucket.layout->parameters) {  // a parameter's buckets are adjacent
    if (&buckets_[buckets_of_[parameter].back()] == &bucket) parameters_[parameter].tensor.mutable_grad().reset();
  }
  bucket.gradients.pending = group_.all_to_all(bucket.gradients.to.view({-1}), bucket.gradients.from.view({-1}));
}

void GradientExchange::add_received(Bucket& bucket) {
  if (!bucket.gradients.to.defined()) return;
  bucket.gradients.pending.wait();
  for (int64_t r = 0; r < group_.size(); ++r) {
    const at::Tensor part = bucket.gradients.to[r];
    if (bucket.sum.defined()) {
      bucket.sum.add_(part);
    } else {
      bucket.sum = part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
  }
  bucket.gradients.to.reset();
  bucket.gradients.from.reset();
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
  std::vector<std::vector<double>> own = gradient_block_sums(owned);
  for (size_t i = 0; i < owned.size(); ++i) {
    own[i].resize(blocks_of(owned_[i]));  // zeros without a gradient
    mine.insert(mine.end(), own[i].begin(), own[i].end());
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

void GradientExchange::start_gather(Bucket& bucket) {
  const ExchangeLayout::Bucket& layout = *bucket.layout;
  if (bucket.values.defined()) {
    bucket.parameters.from = bucket.values;
  } else {
    bucket.parameters.from = zeros(layout.part_elements);
    for (const auto& [piece, offset] : layout.parts[group_.rank()]) {
      bucket.parameters.from.slice(0, offset, offset + piece.end - piece.begin).copy_(flat(piece));
    }
  }
  bucket.parameters.to = at::empty({group_.size(), layout.part_elements}, bucket.parameters.from.options());
  bucket.parameters.pending = group_.all_gather(bucket.parameters.to.view({-1}), bucket.parameters.from);
}

void GradientExchange::finish_gather(Bucket& bucket) {
  bucket.parameters.pending.wait();
  for (int64_t r = 0; r < group_.size(); ++r) {
    if (r == group_.rank() && !bucket.values.defined()) continue;
    for (const auto& [piece, offset] : bucket.layout->parts[r]) {
      // Not a write in the sense of autograd: the backward pass needs the same values as the forward pass.
      const at::Tensor whole = parameters_[piece.parameter].tensor.variable_data().view({-1});
      whole.slice(0, piece.begin, piece.end)
          .copy_(bucket.parameters.to[r].slice(0, offset, offset + piece.end - piece.begin));
    }
  }
  bucket.parameters.to.reset();
  bucket.parameters.from.reset();
}

void GradientExchange::gather_parameters() {
  const nn::TraceScope traced("gather parameters");
  Bucket* previous = nullptr;
  for (Bucket& bucket : buckets_) {
    if (bucket.values.defined()) continue;
    start_gather(bucket);
    if (previous) finish_gather(*previous);
    previous = &bucket;
  }
  if (previous) finish_gather(*previous);
}

void GradientExchange::gather(int64_t unit) {
  if (!sharded() || !gathered_.insert(unit).second) return;
  const nn::TraceScope traced("gather parameters");
  for (Bucket& bucket : buckets_) {
    if (bucket.layout->unit != unit) continue;
    for (const size_t p : bucket.layout->parameters) {
      const at::Tensor& tensor = parameters_[p].tensor;
      resize_storage(tensor, tensor.numel() * tensor.element_size());
    }
    start_gather(bucket);
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.layout->unit == unit) finish_gather(bucket);
  }
}

void GradientExchange::release(int64_t unit) {
  if (!sharded() || gathered_.erase(unit) == 0) return;
  for (const Bucket& bucket : buckets_) {
    if (bucket.layout->unit != unit) continue;
    for (const size_t p : bucket.layout->parameters) resize_storage(parameters_[p].tensor, 0);
  }
}

void GradientExchange::for_each_unit(const std::function<void(const std::vector<size_t>& parameters)>& work) {
  std::map<int64_t, std::vector<size_t>> units;  // the same in all processes
  const std::vector<int64_t> unit_of = units_of(parameters_, sharded());
  for (size_t p = 0; p < parameters_.size(); ++p) units[unit_of[p]].push_back(p);
  for (const auto& [unit, parameters] : units) {
    if (unit != kWhole) gather(unit);
    work(parameters);
    if (unit != kWhole) release(unit);
  }
}

void GradientExchange::gather_all() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.layout->unit != kWhole) gather(bucket.layout->unit);
  }
}

void GradientExchange::take_part() {
  std::set<int64_t> layers;
  for (const Bucket& bucket : buckets_) {
    if (bucket.layout->unit >= 0) layers.insert(bucket.layout->unit);
  }
  for (const int64_t layer : layers) {
    gather(layer);
    release(layer);
  }
}

void GradientExchange::release_all() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.layout->unit != kWhole) release(bucket.layout->unit);
  }
}

}  // namespace tamis::train

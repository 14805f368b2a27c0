#include "tamis/models/exchange/tensor_table.h"

#include <ATen/ATen.h>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::models::exchange {

TensorTable::TensorTable(std::string where, std::vector<LazyTensor> tensors) : where_(std::move(where)) {
  for (LazyTensor& tensor : tensors) {
    const std::string name = tensor.name;
    tensors_.emplace(name, Entry{std::move(tensor)});
  }
}

bool TensorTable::has_name_with(const std::string& part) const {
  for (const auto& [name, entry] : tensors_) {
    if (name.find(part) != name.npos) return true;
  }
  return false;
}

const TensorTable::Entry& TensorTable::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(ExitCode::kInput, "{}: has no tensor {}, which its configuration requires", where_, quoted_name(name));
  }
  return found->second;
}

LazyTensor TensorTable::take(const std::string& name, const Shape& shape) {
  const LazyTensor& found = find(name).tensor;
  const bool scalar = shape.empty() && found.shape == Shape{1};  // some frameworks have no 0-d parameters
  if (found.shape != shape && !scalar) {
    fail(ExitCode::kInput, "{}: {} must be {} by its configuration, but is {}", where_, quoted_name(name),
         c10::str(at::IntArrayRef(shape)), c10::str(at::IntArrayRef(found.shape)));
  }
  if (!at::isFloatingType(found.dtype) || found.dtype == at::kDouble) {
    fail(ExitCode::kInput, "{}: {} must be F32, F16 or BF16, but is {}", where_, quoted_name(name),
         c10::toString(found.dtype));
  }
  tensors_.at(name).used = true;
  if (!scalar) return found;
  return computed(name, found, {}, [](const at::Tensor& one) { return one.view({}); });
}

void TensorTable::take_copy(const std::string& copy, const std::string& original, const Shape& shape) {
  if (!contains(copy)) return;
  const at::Tensor stored = take(copy, shape).make(), tied = take(original, shape).make();
  if (stored.to(at::kFloat).equal(tied.to(at::kFloat))) return;
  fail(ExitCode::kInput, "{}: \"tie_word_embeddings\" is true, but {} differs from {}", where_, copy, original);
}

void TensorTable::skip(const std::function<bool(const std::string& name)>& skipped) {
  for (auto& [name, entry] : tensors_) entry.used = entry.used || skipped(name);
}

void TensorTable::refuse_others() const {
  size_t others = 0;
  std::string first;
  for (const auto& [name, entry] : tensors_) {
    if (!entry.used && others++ == 0) first = name;
  }
  if (others == 0) return;
  fail(ExitCode::kInput, "{}: holds {}{}, which the model in its configuration does not have", where_,
       quoted_name(first), others == 1 ? "" : fmt::format(" and {} more", others - 1));
}

LazyTensor renamed(const std::string& name, LazyTensor tensor) {
  tensor.name = name;
  return tensor;
}

LazyTensor computed(const std::string& name, const LazyTensor& from, const Shape& shape,
                    std::function<at::Tensor(const at::Tensor&)> compute) {
  return {name, from.dtype, shape,
          [make = from.make, compute = std::move(compute)] { return compute(make()).contiguous(); }};
}

LazyTensor stacked(const std::string& name, const std::vector<LazyTensor>& parts) {
  Shape shape = parts.front().shape;
  shape[0] = 0;
  for (const LazyTensor& part : parts) shape[0] += part.shape[0];
  return {name, parts.front().dtype, shape, [parts] {
            std::vector<at::Tensor> made;
            for (const LazyTensor& part : parts) made.push_back(part.make().to(parts.front().dtype));
            return at::cat(made);
          }};
}

LazyTensor rows(const std::string& name, const LazyTensor& from, int64_t first, int64_t count) {
  Shape shape = from.shape;
  shape[0] = count;
  return computed(name, from, shape, [=](const at::Tensor& whole) { return whole.narrow(0, first, count); });
}

LazyTensor filled(const std::string& name, const Shape& shape, double value) {
  return {name, at::kFloat, shape, [=] { return at::full(shape, value, at::kFloat); }};
}

}  // namespace tamis::models::exchange

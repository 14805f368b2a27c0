#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tamis/nn/safetensors.h"

namespace tamis::models::exchange {

using Shape = std::vector<int64_t>;
using nn::LazyTensor;

/// The tensors of a model by name. A conversion takes every one of them once; none is read before it is written.
class TensorTable {
 public:
  /// `where` names the model in messages, "DIR: model.safetensors".
  TensorTable(std::string where, std::vector<LazyTensor> tensors);

  bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// Any tensor's name has this in it.
  bool has_name_with(const std::string& part) const;
  /// Throws ExitCode::kInput when there is no such tensor.
  const Shape& shape(const std::string& name) const { return find(name).tensor.shape; }

  /// The tensor, which must have this shape (or hold one number where `shape` is empty) and a floating dtype. Throws
  /// ExitCode::kInput.
  LazyTensor take(const std::string& name, const Shape& shape);
  /// For tied weights, of which files may hold both: takes `copy` where there is one. Throws ExitCode::kInput unless it
  /// equals `original`.
  void take_copy(const std::string& copy, const std::string& original, const Shape& shape);
  /// Leaves out tensors that are no parameters, such as buffers.
  void skip(const std::function<bool(const std::string& name)>& skipped);
  /// Throws ExitCode::kInput when a tensor is left that was neither taken nor skipped.
  void refuse_others() const;

 private:
  struct Entry {
    LazyTensor tensor;
    bool used = false;
  };
  const Entry& find(const std::string& name) const;

  std::string where_;
  std::map<std::string, Entry> tensors_;
};

/// The tensor under another name.
LazyTensor renamed(const std::string& name, LazyTensor tensor);
/// A tensor computed from another, of this shape and the same dtype.
LazyTensor computed(const std::string& name, const LazyTensor& from, const Shape& shape,
                    std::function<at::Tensor(const at::Tensor&)> compute);
/// Rows below each other; dtype of the first.
LazyTensor stacked(const std::string& name, const std::vector<LazyTensor>& parts);
/// `count` rows of a tensor from row `first` on.
LazyTensor rows(const std::string& name, const LazyTensor& from, int64_t first, int64_t count);
/// A tensor of one value, float32.
LazyTensor filled(const std::string& name, const Shape& shape, double value);

}  // namespace tamis::models::exchange

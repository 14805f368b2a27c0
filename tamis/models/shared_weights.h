#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/models/model.h"

namespace tamis::models {

/// The weights that a model's living states share, one for each format. Thread-safe.
template <typename Weights>
class SharedWeights {
 public:
  /// The weights of living states if the parameters have not changed since; otherwise those that `make()` returns.
  template <typename Make>
  std::shared_ptr<const Weights> get(std::span<const Parameter> parameters, const ForwardOptions& options,
                                     const Make& make) {
    std::vector<std::pair<const void*, int64_t>> source;
    for (const Parameter& parameter : parameters) {
      source.emplace_back(parameter.tensor.const_data_ptr(), parameter.tensor._version());
    }
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[{options.compute_dtype, options.int8_weights}];
    if (auto alive = entry.weights.lock(); alive && entry.source == source) return alive;
    const auto made = std::make_shared<const Weights>(make());
    entry = {std::move(source), made};
    return made;
  }

 private:
  struct Entry {
    std::vector<std::pair<const void*, int64_t>> source;  // storage and version of every parameter
    std::weak_ptr<const Weights> weights;
  };
  std::mutex mutex_;
  std::map<std::pair<at::ScalarType, bool>, Entry> entries_;
};

}  // namespace tamis::models

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

// What the decoding of every architecture shares.

namespace tamis::models {

/// The weights that a model's living states share, one for each format. Several threads may ask at once.
template <typename Weights>
class SharedWeights {
 public:
  /// Those of states that live, if the parameters are where and as they were; else what `make()` returns.
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

/// The states of one call of Model::decode: of this model, each once, one per row of tokens. Throws ExitCode::kRuntime.
template <typename State>
std::vector<State*> sequences_of(const Model& model, const at::Tensor& tokens_BC,
                                 std::span<DecodingState* const> states) {
  std::vector<State*> sequences;
  for (DecodingState* state : states) {
    auto* const own = dynamic_cast<State*>(state);
    if (own == nullptr || (!sequences.empty() && own->weights() != sequences.front()->weights())) {
      fail(ExitCode::kRuntime,
           "decode: the states of one call must come from one model, format of weights and training step");
    }
    if (own->weights()->owner != &model) {
      fail(ExitCode::kRuntime, "decode: state {} belongs to another model than the one that decodes", sequences.size());
    }
    if (std::find(sequences.begin(), sequences.end(), own) != sequences.end()) {
      fail(ExitCode::kRuntime, "decode: a state may stand only once in a call, but state {} came before",
           sequences.size());
    }
    sequences.push_back(own);
  }
  if (sequences.empty() || tokens_BC.dim() != 2 || tokens_BC.size(0) != static_cast<int64_t>(sequences.size())) {
    fail(ExitCode::kRuntime, "decode: tokens must have one row per state, but have shape {} for {} states",
         c10::str(tokens_BC.sizes()), sequences.size());
  }
  return sequences;
}

}  // namespace tamis::models

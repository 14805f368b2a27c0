#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tamis/models/mixer.h"
#include "tamis/models/model.h"
#include "tamis/models/stack_token.h"

namespace tamis::models {

/// All layers in one format, read only, shared by the states that use them.
struct StackWeights {
  const Model* owner = nullptr;               // whose mixers these are
  at::ScalarType compute_dtype = at::kFloat;  // of products with many vectors
  std::optional<at::Tensor> position_scale;   // of Scalable-Softmax, shared by all layers
  std::vector<DecodingLayer> layers;

  /// Tokens go through decode_token.
  bool token_by_token() const;
};

/// One sequence in a Stack: what the mixer of every layer remembers.
class StackState final : public DecodingState {
 public:
  /// `config` names the model in what is saved.
  StackState(std::string config, std::shared_ptr<const StackWeights> weights,
             std::vector<std::unique_ptr<MixerState>> layers);

  int64_t position() const override { return position_; }
  int64_t bytes() const override;
  int64_t bytes_after(int64_t tokens) const override;
  void reserve(int64_t tokens) override;
  std::unique_ptr<DecodingState> fork() const override;
  void save(std::ostream& out) const override;
  void load(std::istream& in) override;

  const std::shared_ptr<const StackWeights>& weights() const { return weights_; }
  MixerState& layer(size_t l) { return *layers_[l]; }
  void advance(int64_t tokens) { position_ += tokens; }
  /// The next tokens may come: room for them in every layer, or throws and nothing has come.
  void begin(int64_t tokens);
  void end_token();
  /// Memory of that many numbers, kept from call to call; what it holds is not part of the state.
  float* scratch(int64_t numbers);

 private:
  std::string header() const;

  std::string config_;
  std::shared_ptr<const StackWeights> weights_;
  std::vector<std::unique_ptr<MixerState>> layers_;
  int64_t position_ = 0;
  at::Tensor scratch_;
};

}  // namespace tamis::models

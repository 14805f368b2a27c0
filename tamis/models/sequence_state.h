#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tamis/models/layer.h"
#include "tamis/models/model.h"
#include "tamis/nn/streamed_matrix.h"

namespace tamis::models {

/// A layer as decoding keeps it: its matrices in one format, which is read once for all sequences of a call.
struct DecodingLayer {
  struct Mlp {
    nn::StreamedMatrix gate_up, down;
  };

  const Layer* layer;
  int64_t heads;                 // H
  nn::StreamedMatrix head_rows;  // [H R, D], as HeadMatrices
  nn::StreamedMatrix output;     // [D, H V]
  std::optional<Mlp> mlp;
  LayerWeights vectors;          // the norms and the mixer's vectors; matrices are undefined
  std::optional<HeadStep> step;  // set when single tokens can go through token_pass.h

  int64_t rows_of_head() const { return head_rows.row_count() / heads; }  // R
  int64_t mixed_width() const { return output.column_count(); }           // H V
  /// All weights for products with many vectors.
  LayerWeights dense() const;
};

/// All layers in one format, read only, shared by the states that use them.
struct DecodingWeights {
  const Model* owner = nullptr;
  int64_t hidden_size = 0;
  double norm_eps = 0;
  std::vector<DecodingLayer> layers;

  /// Single tokens go through token_pass.h.
  bool token_by_token() const;
};

/// One sequence in a PatternModel: the state of every layer's mixer.
class SequenceState final : public DecodingState {
 public:
  /// `config` is the complete configuration, which save() writes and load() compares.
  SequenceState(nlohmann::json config, std::optional<double> expand_beyond,
                std::shared_ptr<const DecodingWeights> weights);

  int64_t position() const override { return position_; }
  int64_t bytes() const override;
  int64_t bytes_after(int64_t tokens) const override;
  void reserve(int64_t tokens) override;
  std::unique_ptr<DecodingState> fork() const override;
  void save(std::ostream& out) const override;
  /// Reads states of earlier versions too. When it throws, the state is as before.
  void load(std::istream& in) override;

  const std::shared_ptr<const DecodingWeights>& weights() const { return weights_; }
  MixerState& layer(size_t l) { return *layers_[l]; }
  const MixerState& layer(size_t l) const { return *layers_[l]; }
  /// Before every decoding call: makes room for the tokens in every layer, or throws and changes nothing.
  void begin(int64_t tokens);
  /// After a chunk, which has advanced the layers already.
  void advance(int64_t tokens) { position_ += tokens; }
  /// After a single token, of which every head has taken its part.
  void end_token();
  /// Scratch memory for that many numbers, kept from call to call. It is not part of the state.
  float* scratch(int64_t numbers);

 private:
  SequenceState(const SequenceState& other);  // for fork()
  std::vector<std::unique_ptr<MixerState>> new_layers() const;
  std::string header() const;

  nlohmann::json config_;
  std::optional<double> expand_beyond_;
  std::shared_ptr<const DecodingWeights> weights_;
  std::vector<std::unique_ptr<MixerState>> layers_;
  int64_t position_ = 0;
  at::Tensor scratch_;
};

}  // namespace tamis::models

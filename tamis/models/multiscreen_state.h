#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/models/multiscreen_config.h"
#include "tamis/models/multiscreen_layer.h"
#include "tamis/nn/streamed_matrix.h"
#include "tamis/ops/screening/screening_state.h"

namespace tamis::models {

/// The tiles of one layer as decoding wants them: W_Q, W_K, W_V and W_G head by head, so that what a head projects is
/// one stretch of memory, and W_O with exp(s_O) folded in.
struct DecodingTile {
  nn::StreamedMatrix projection;  // [H (2 K + 2 V), D], or without the gate's V rows
  nn::StreamedMatrix output;      // [D, H V]
  at::Tensor s_w;                 // [H], on the CPU
  at::Tensor s_r;                 // [H], on the CPU
};

/// All layers' tiles in one format, read only, shared by the states that use them.
struct MultiscreenWeights {
  const Model* owner = nullptr;               // whose layers these are
  at::ScalarType compute_dtype = at::kFloat;  // of products with many vectors
  std::vector<DecodingTile> layers;
};

/// One sequence in a Multiscreen: for every layer the keys and values that its tiles can still see.
class MultiscreenState final : public DecodingState {
 public:
  MultiscreenState(const MultiscreenConfig& config, const ForwardOptions& options,
                   std::shared_ptr<const MultiscreenWeights> weights);

  int64_t position() const override { return layers_.back().position(); }  // of a step, the last to advance
  int64_t bytes() const override;
  int64_t bytes_after(int64_t tokens) const override;
  void reserve(int64_t tokens) override;
  std::unique_ptr<DecodingState> fork() const override;
  void save(std::ostream& out) const override;
  /// When it throws, the state is as before.
  void load(std::istream& in) override;

  const std::shared_ptr<const MultiscreenWeights>& weights() const { return weights_; }
  ops::ScreeningState& layer(size_t l) { return layers_[l]; }

  /// After every head of every layer had its token.
  void advance();
  /// Memory of that many numbers, kept from call to call; what it holds is not part of the state.
  float* scratch(int64_t numbers);

 private:
  std::vector<ops::ScreeningState> new_layers() const;
  std::string header() const;

  MultiscreenConfig config_;
  ForwardOptions options_;
  std::shared_ptr<const MultiscreenWeights> weights_;
  std::vector<ops::ScreeningState> layers_;
  at::Tensor scratch_;
};

}  // namespace tamis::models

#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/models/multiscreen_config.h"
#include "tamis/models/multiscreen_layer.h"
#include "tamis/ops/screening/screening_state.h"

namespace tamis::models {

/// All layers' tiles in one compute dtype, read only, shared by the states that use them.
using MultiscreenWeights = std::vector<TileWeights>;

/// One sequence in a Multiscreen: for every layer the keys and values that its tiles can still see.
class MultiscreenState final : public DecodingState {
 public:
  MultiscreenState(const MultiscreenConfig& config, const ForwardOptions& options,
                   std::shared_ptr<const MultiscreenWeights> weights);

  int64_t position() const override { return layers_.front().position(); }
  int64_t bytes() const override;
  int64_t bytes_after(int64_t tokens) const override;
  void reserve(int64_t tokens) override;
  std::unique_ptr<DecodingState> fork() const override;
  void save(std::ostream& out) const override;
  /// When it throws, the state is as before.
  void load(std::istream& in) override;

  const std::shared_ptr<const MultiscreenWeights>& weights() const { return weights_; }
  ops::ScreeningState& layer(size_t l) { return layers_[l]; }

 private:
  std::vector<ops::ScreeningState> new_layers() const;
  std::string header() const;

  MultiscreenConfig config_;
  ForwardOptions options_;
  std::shared_ptr<const MultiscreenWeights> weights_;
  std::vector<ops::ScreeningState> layers_;
};

}  // namespace tamis::models

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tamis/models/mixer.h"
#include "tamis/models/model_config.h"

namespace tamis::models {

/// What a pass over a model sets for its layers; as in MixerCall and ForwardOptions.
struct LayerSettings {
  std::optional<int64_t> window;
  std::optional<double> expand_beyond;
  bool recompute = false;
  std::optional<nn::Dropout> dropout;
  at::Tensor document_BT;
  Observer observe;
  distributed::ContextGroup* context = nullptr;
};

/// A layer's weights in one pass. Tensors that the configuration lacks are undefined.
struct LayerWeights {
  at::ScalarType dtype = at::kFloat;  // of the matrices; all else is float32
  at::Tensor mixer_norm, mlp_norm;    // [D]
  at::Tensor gate_up;                 // [2 F, D]: W_gate, W_up; without a gate [F, D]
  at::Tensor down;                    // [D, F]
  at::Tensor position_scale;          // of Scalable-Softmax, shared by all layers
  std::vector<at::Tensor> mixer;      // as Mixer::weights

  /// The defined tensors as a list, and this struct with the tensors of such a list: for nn::recompute.
  std::vector<at::Tensor> list() const;
  LayerWeights with(const std::vector<at::Tensor>& list) const;
};

/// A mixer and, if the configuration has one, an MLP, each preceded by an RMSNorm or by none:
///
///   y = x + mixer(norm(x));   x <- y + W_down (SiLU(W_gate n) * W_up n),  n = norm(y)
///
/// Training may have dropout of both terms that are added to x.
class Layer {
 public:
  Layer(const ModelConfig& config, int64_t index, at::Device device);

  std::vector<LayerParameter> parameters() const;
  void initialise(Initialiser& initialiser) const;
  const Mixer& mixer() const { return *mixer_; }
  bool has_mlp() const { return gate_up_.defined(); }
  /// forward() with `recompute` keeps only the layer's input; otherwise the caller recomputes the whole layer.
  bool recomputes() const { return mixer_->recomputes() && !has_mlp() && !mixer_norm_.defined(); }

  /// Matrices in `dtype`. Differentiable.
  LayerWeights weights(at::ScalarType dtype, const at::Tensor& position_scale) const;

  /// x_BTD, float32, through the whole layer. Differentiable.
  at::Tensor forward(const at::Tensor& x_BTD, const LayerWeights& weights, const LayerSettings& settings) const;

  // The parts of forward().
  MixerCall call(const LayerWeights& weights, const LayerSettings& settings) const;
  /// norm(x) in the dtype of the matrices.
  at::Tensor mixer_input(const at::Tensor& x_BTD, const LayerWeights& weights) const;
  /// y + MLP(norm(y)).
  at::Tensor add_mlp(const at::Tensor& y_BTD, const LayerWeights& weights,
                     const std::optional<nn::Dropout>& dropout = std::nullopt) const;

 private:
  at::Tensor normalised(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) const;
  at::Tensor mlp(const at::Tensor& y_BTD, const LayerWeights& weights) const;
  enum class Part { kMixer, kMlp };
  /// x + term, the latter after dropout if there is one.
  at::Tensor sum(const at::Tensor& x_BTD, const at::Tensor& term_BTD, std::optional<nn::Dropout> dropout,
                 Part part) const;

  int64_t index_;
  const MixerKind* kind_;
  std::unique_ptr<Mixer> mixer_;
  double norm_eps_;
  bool gated_;  // the MLP has a gate
  at::Tensor mixer_norm_, mlp_norm_, gate_up_, down_;
};

}  // namespace tamis::models

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// Learning rate of step n = 0, 1, ...: lr min((n + 1) / warmup_steps, 1); under "cosine" the last decay_share
/// of the steps after the warm-up follow half a cosine to min_lr at the last step.
double learning_rate(const TrainRecipe& train, int64_t step);

/// |x|_2 over all tensors (float32, contiguous; undefined ones count nothing). Sums in float64 over blocks of fixed
/// size, added in fixed order: the same bits for any number of threads.
double global_norm(std::span<const at::Tensor> tensors);

/// No NaN, no infinity; an undefined tensor has none.
bool all_finite(const at::Tensor& tensor);

/// "parameter layers.0.s_w": the first that is not finite; empty when all are.
std::string first_non_finite_parameter(std::span<const models::Parameter> parameters);

/// "gradient of layers.0.s_w": the last of `parameters` whose gradient is not finite; layers stand in the order of the
/// forward pass, so the layer nearest to the loss. Empty when all are finite.
std::string first_non_finite_gradient(std::span<const models::Parameter> parameters);

/// AdamW (decoupled weight decay) through ATen's fused kernel. The moments belong to this object; they can be saved and
/// restored through first_moments and second_moments, which with the number of the next step are its whole state.
class AdamW {
 public:
  AdamW(std::vector<models::Parameter> parameters, const TrainRecipe& train);

  /// Applies the gradients, each multiplied by `gradient_scale`, as step n = 0, 1, ... with learning rate `lr`, and
  /// drops them. Parameters without a gradient stay as they are.
  void step(int64_t step, double lr, double gradient_scale = 1.0);

  std::span<const models::Parameter> parameters() const { return parameters_; }
  std::span<const at::Tensor> first_moments() const { return first_moments_; }
  std::span<const at::Tensor> second_moments() const { return second_moments_; }

 private:
  std::vector<models::Parameter> parameters_;
  std::vector<at::Tensor> first_moments_, second_moments_;
  double beta1_, beta2_, eps_, weight_decay_;
};

}  // namespace tamis::train

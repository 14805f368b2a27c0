#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// Learning rate of step n = 0, 1, ...: lr min((n + 1) / warmup_steps, 1); under "cosine" the last decay_share
/// of the steps after the warm-up follow half a cosine to min_lr at the last step.
double learning_rate(const TrainRecipe& train, int64_t step);

/// The 2-norm over all elements of all tensors (float32; undefined tensors are skipped). Sums in float64 over blocks of
/// fixed size in a fixed order, so the bits do not depend on the number of threads.
double global_norm(std::span<const at::Tensor> tensors);

/// Elements per block of the sums in norms.
inline constexpr int64_t kNormBlock = 1 << 14;

/// The sums of squares of the blocks of each float32 tensor; none for an undefined tensor. Those of tensors on a device
/// are computed there and copied to the CPU together.
std::vector<std::vector<double>> block_sums(std::span<const at::Tensor> tensors);
/// The same of one defined tensor by operators of any device, where the result stays: float64, or the widest that the
/// device has.
at::Tensor block_sums_on_device(const at::Tensor& tensor);

/// The block_sums of the gradients.
std::vector<std::vector<double>> gradient_block_sums(std::span<const models::Parameter> parameters);

/// The norm of all gradients as global_norm, and of each group: the parameters whose names differ only in the number of
/// their layer, such as "layers.s_w".
struct GradientNorms {
  double all = 0.0;
  std::map<std::string, double> groups = {};
};
GradientNorms gradient_norms(std::span<const models::Parameter> parameters);
/// The norms from the gradient_block_sums.
GradientNorms gradient_norms(std::span<const models::Parameter> parameters,
                             std::span<const std::vector<double>> block_sums);

/// True when the tensor contains no NaN and no infinity, or is undefined.
bool all_finite(const at::Tensor& tensor);

/// The first parameter that is not finite, such as "parameter layers.0.s_w"; empty when all are finite.
std::string first_non_finite_parameter(std::span<const models::Parameter> parameters);

/// The last of `parameters` whose gradient is not finite according to its block_sums, such as "gradient of
/// layers.0.s_w"; empty when all are finite. Parameters have the order of the forward pass, so this is where the
/// backward pass first became non-finite.
std::string first_non_finite_gradient(std::span<const models::Parameter> parameters,
                                      std::span<const std::vector<double>> block_sums);

/// AdamW (decoupled weight decay) with ATen's fused kernel. Weight decay applies to matrices only. Its state consists
/// of the moments, which can be saved and restored through first_moments and second_moments, and the step number, which
/// the caller passes.
class AdamW {
 public:
  AdamW(std::vector<models::Parameter> parameters, const TrainRecipe& train);

  /// Updates the parameters in step n = 0, 1, ... with their gradients times `gradient_scale`, then frees the
  /// gradients. Parameters without a gradient are unchanged.
  void step(int64_t step, double lr, double gradient_scale = 1.0);

  /// Frees the gradients without an update.
  void clear_gradients();

  std::span<const models::Parameter> parameters() const { return parameters_; }
  std::span<const at::Tensor> first_moments() const { return first_moments_; }
  std::span<const at::Tensor> second_moments() const { return second_moments_; }

 private:
  std::vector<models::Parameter> parameters_;
  std::vector<at::Tensor> first_moments_, second_moments_;
  double beta1_, beta2_, eps_, weight_decay_;
};

}  // namespace tamis::train

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/models/model_config.h"

namespace tamis::bench {

/// A tensor with its name, to be compared.
struct Named {
  std::string name;
  at::Tensor tensor;
};

/// The largest relative error, over all tensors: max|found - exact| / max|exact|. Throws ExitCode::kRuntime when it is
/// not within `tolerance`; the text names `what` and the tensor. Both lists hold the same names in the same order.
double check(const std::string& what, const std::vector<Named>& found, const std::vector<Named>& exact,
             double tolerance);

/// The largest relative error allowed when computing in `dtype`, or with weights in it: of an operator, and of a whole
/// model. The latter is wide, as the layers at first add little to a residual stream whose rounding they share, and
/// gradients of learned scalars are sums with much cancellation.
double operator_tolerance(at::ScalarType dtype);
double model_tolerance(at::ScalarType dtype);

/// The configuration of a Multiscreen without variants, which exact_hidden defines. Throws ExitCode::kUsage
/// when the model is another one, or has a variant (position, gate, ...) of its own.
models::ModelConfig plain_config(const models::Model& model);

/// A model's definition in plain torch and float64, for Multiscreen: `hidden` and `head_weight` as models::Model has
/// them, from its parameters, through ops::reference::screening. Differentiable; memory O(T^2). `expand_windows` is
/// SWE. Throws as plain_config.
at::Tensor exact_hidden(const models::Model& model, const at::Tensor& tokens_BT, bool expand_windows = false);
at::Tensor exact_head(const models::Model& model);

/// x_BTD, as `hidden` returns it, less the embedding's part, float64: what the layers add. At initialisation that is
/// little, and errors in it would not show in the whole.
Named added_by_layers(const models::Model& model, const at::Tensor& tokens_BT, const at::Tensor& x_BTD);

}  // namespace tamis::bench

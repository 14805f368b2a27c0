#include "tamis/train/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tamis/ops/blocked.h"
#include "tamis/ops/parallel.h"

namespace tamis::train {
namespace {

double sum_of_squares(const float* x, int64_t count) {
  constexpr int64_t kLanes = 16;  // independent sums, which the compiler can vectorise
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(x[i + lane]) * x[i + lane];
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(x[i]) * x[i];
  double sum = 0.0;
  for (const double lane : sums) sum += lane;
  return sum;
}

/// "layers.3.s_w" -> "layers.s_w".
std::string without_layer(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t dot = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : std::string::npos;
  return dot == std::string::npos ? name : std::string(kLayers) + name.substr(dot + 1);
}

}  // namespace

double learning_rate(const TrainRecipe& train, int64_t step) {
  if (step < train.warmup_steps)
    return train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup_steps);
  if (train.schedule == "constant") return train.lr;
  const int64_t after_warmup = train.steps - train.warmup_steps;
  const int64_t first = train.steps - static_cast<int64_t>(train.decay_share * static_cast<double>(after_warmup));
  const auto left = static_cast<double>(std::max<int64_t>(train.steps - 1 - first, 1));
  const double done = std::clamp(static_cast<double>(step - first) / left, 0.0, 1.0);
  return train.min_lr + (train.lr - train.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

namespace {

/// Of a tensor on the CPU.
std::vector<double> sums_of_blocks(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  const float* x = flat.const_data_ptr<float>();
  const int64_t count = flat.numel();
  std::vector<double> blocks((count + kNormBlock - 1) / kNormBlock);
  ops::parallel_items(static_cast<int64_t>(blocks.size()), [&](int64_t block) {
    blocks[block] = sum_of_squares(x + block * kNormBlock, std::min(kNormBlock, count - block * kNormBlock));
  });
  return blocks;
}

}  // namespace

at::Tensor block_sums_on_device(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().view({-1});
  const int64_t whole = flat.numel() / kNormBlock * kNormBlock;
  const auto squares = [&](const at::Tensor& rows) {  // a norm converts its numbers without a copy of all in float64
    return at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, /*keepdim=*/false, ops::widest_dtype(flat.device()))
        .square();
  };
  const at::Tensor sums = squares(flat.narrow(0, 0, whole).view({-1, kNormBlock}));
  if (whole == flat.numel()) return sums;
  return at::cat({sums, squares(flat.narrow(0, whole, flat.numel() - whole).view({1, -1}))});
}

std::vector<std::vector<double>> block_sums(std::span<const at::Tensor> tensors) {
  std::vector<std::vector<double>> result(tensors.size());
  std::vector<at::Tensor> on_device;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    if (tensors[i].is_cpu()) {
      result[i] = sums_of_blocks(tensors[i]);
    } else {
      on_device.push_back(block_sums_on_device(tensors[i]));
      result[i].resize(on_device.back().numel());
    }
  }
  if (on_device.empty()) return result;
  const at::Tensor copied = at::cat(on_device).cpu().to(at::kDouble);
  const double* next = copied.const_data_ptr<double>();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].is_cpu()) continue;
    std::copy_n(next, result[i].size(), result[i].begin());
    next += result[i].size();
  }
  return result;
}

std::vector<std::vector<double>> gradient_block_sums(std::span<const models::Parameter> parameters) {
  std::vector<at::Tensor> gradients;
  for (const models::Parameter& parameter : parameters) gradients.push_back(parameter.tensor.grad());
  return block_sums(gradients);
}

double global_norm(std::span<const at::Tensor> tensors) {
  double total = 0.0;
  for (const std::vector<double>& blocks : block_sums(tensors)) {
    for (const double block : blocks) total += block;
  }
  return std::sqrt(total);
}

GradientNorms gradient_norms(std::span<const models::Parameter> parameters) {
  return gradient_norms(parameters, gradient_block_sums(parameters));
}

GradientNorms gradient_norms(std::span<const models::Parameter> parameters,
                             std::span<const std::vector<double>> block_sums) {
  GradientNorms norms;
  for (size_t p = 0; p < parameters.size(); ++p) {
    double& group = norms.groups[without_layer(parameters[p].name)];
    for (const double block : block_sums[p]) {
      norms.all += block;
      group += block;
    }
  }
  norms.all = std::sqrt(norms.all);
  for (auto& [name, group] : norms.groups) group = std::sqrt(group);
  return norms;
}

bool all_finite(const at::Tensor& tensor) {
  return !tensor.defined() || at::isfinite(tensor.detach()).all().item<bool>();
}

std::string first_non_finite_parameter(std::span<const models::Parameter> parameters) {
  for (const auto& [name, tensor] : parameters) {
    if (!all_finite(tensor)) return "parameter " + name;
  }
  return "";
}

std::string first_non_finite_gradient(std::span<const models::Parameter> parameters,
                                      std::span<const std::vector<double>> block_sums) {
  for (size_t p = parameters.size(); p-- > 0;) {
    const bool finite = std::ranges::all_of(block_sums[p], [](double sum) { return std::isfinite(sum); });
    if (!finite) return "gradient of " + parameters[p].name;
  }
  return "";
}

AdamW::AdamW(std::vector<models::Parameter> parameters, const TrainRecipe& train)
    : parameters_(std::move(parameters)),
      beta1_(train.betas[0]),
      beta2_(train.betas[1]),
      eps_(train.eps),
      weight_decay_(train.weight_decay) {
  for (const auto& [name, tensor] : parameters_) {
    first_moments_.push_back(at::zeros_like(tensor, at::MemoryFormat::Contiguous).detach());
    second_moments_.push_back(at::zeros_like(tensor, at::MemoryFormat::Contiguous).detach());
  }
}

void AdamW::step(int64_t step, double lr, double gradient_scale) {
  if (parameters_.empty()) return;  // one of many processes may own nothing of a small model
  // The kernel divides gradients by its grad_scale and counts steps from 1.
  std::optional<at::Tensor> divisor;
  const at::TensorOptions scalar = at::TensorOptions(parameters_.front().tensor.device()).dtype(at::kFloat);
  if (gradient_scale != 1.0) divisor = at::full({}, 1.0 / gradient_scale, scalar);
  const at::Tensor count = at::full({}, static_cast<double>(step + 1), scalar);
  for (const bool matrices : {false, true}) {
    std::vector<at::Tensor> values, gradients, first, second, counts;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& tensor = parameters_[i].tensor;
      if (!tensor.grad().defined() || (tensor.dim() >= 2) != matrices) continue;
      values.push_back(tensor.detach());
      gradients.push_back(tensor.grad().contiguous());
      first.push_back(first_moments_[i]);
      second.push_back(second_moments_[i]);
      counts.push_back(count);
    }
    if (values.empty()) continue;
    at::_fused_adamw_(values, gradients, first, second, {}, counts, lr, beta1_, beta2_, matrices ? weight_decay_ : 0.0,
                      eps_, /*amsgrad=*/false, /*maximize=*/false, divisor);
  }
  clear_gradients();
}

void AdamW::clear_gradients() {
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
}

}  // namespace tamis::train

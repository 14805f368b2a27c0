// tamis::linear_cross_entropy as a torch operator: checks, schema, derivative, registrations. The work is in
// linear_cross_entropy_cpu.cc and, for other devices and dtypes, in linear_cross_entropy_blocked.cc.

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_blocked.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_cpu.h"
#include "tamis/ops/registration.h"

namespace tamis::ops {

template <>
struct SchemaOptions<LinearCrossEntropyOptions> {
  using Options = LinearCrossEntropyOptions;
  static constexpr std::tuple kFields{&Options::reduction, &Options::ignore_index, &Options::soft_cap};
};

template <>
struct SchemaOptions<HeadPassOptions> {
  using Options = HeadPassOptions;
  // The types are named because the first three are members of the base.
  static constexpr std::tuple<std::string Options::*, int64_t Options::*, std::optional<double> Options::*,
                              bool Options::*, bool Options::*>
      kFields{&Options::reduction, &Options::ignore_index, &Options::soft_cap, &Options::x_gradient,
              &Options::weight_gradient};
};

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Gradients = std::tuple<Tensor, Tensor>;                 // of x and weight; empty [0] if not requested
using LossAndGradients = std::tuple<Tensor, Tensor, Tensor>;  // loss, then the same

// ---- checks

void check(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight, const Tensor& target) {
  TORCH_CHECK_VALUE(x.dim() >= 1, "linear_cross_entropy: x must have the shape [..., D], but is a scalar");
  TORCH_CHECK_VALUE(at::isFloatingType(x.scalar_type()), "linear_cross_entropy: x must be floating point, but is ",
                    x.scalar_type());
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.sym_size(1) == x.sym_size(-1) && weight.sym_size(0) >= 1,
                    "linear_cross_entropy: weight must have the shape [N, ", x.sym_size(-1), "] with D of x ",
                    x.sym_sizes(), " and N >= 1, but has ", weight.sym_sizes());
  TORCH_CHECK_VALUE(weight.scalar_type() == x.scalar_type(), "linear_cross_entropy: weight must have the dtype of x, ",
                    x.scalar_type(), ", but has ", weight.scalar_type());
  TORCH_CHECK_VALUE(weight.device() == x.device(), "linear_cross_entropy: weight must be on the device of x, ",
                    x.device(), ", but is on ", weight.device());
  const c10::SymIntArrayRef tokens = x.sym_sizes().slice(0, x.dim() - 1);
  TORCH_CHECK_VALUE(target.sym_sizes() == tokens, "linear_cross_entropy: target must have the leading shape of x, ",
                    tokens, ", but has ", target.sym_sizes());
  TORCH_CHECK_VALUE(target.scalar_type() == at::kLong, "linear_cross_entropy: target must be int64, but is ",
                    target.scalar_type());
  TORCH_CHECK_VALUE(target.device() == x.device(), "linear_cross_entropy: target must be on the device of x, ",
                    x.device(), ", but is on ", target.device());
  const std::string& reduction = options.reduction;
  TORCH_CHECK_VALUE(reduction == "mean" || reduction == "sum" || reduction == "none",
                    "linear_cross_entropy: reduction must be \"mean\", \"sum\" or \"none\", but is \"", reduction,
                    "\"");
  const double soft_cap = options.soft_cap.value_or(1);
  TORCH_CHECK_VALUE(soft_cap > 0 && std::isfinite(soft_cap),
                    "linear_cross_entropy: soft_cap must be a number above 0, but is ", soft_cap);
}

/// The forward pass computes gradients of a single number only.
void check_reduces(const LinearCrossEntropyOptions& options) {
  TORCH_CHECK_VALUE(options.reduction != "none",
                    "linear_cross_entropy: gradients are formed in the forward pass for the "
                    "reductions \"mean\" and \"sum\" only, but it is \"none\"");
}

c10::SymIntArrayRef loss_shape(const LinearCrossEntropyOptions& options, const Tensor& target) {
  return options.reduction == "none" ? target.sym_sizes() : c10::SymIntArrayRef();
}

void check_gradient(const LinearCrossEntropyOptions& options, const Tensor& grad, const Tensor& target) {
  const c10::SymIntArrayRef expected = loss_shape(options, target);
  TORCH_CHECK_VALUE(grad.sym_sizes() == expected,
                    "linear_cross_entropy_backward: grad must have the shape of the loss, ", expected, ", but has ",
                    grad.sym_sizes());
}

at::ScalarType loss_dtype(const Tensor& x) {
  return at::promote_types(x.scalar_type(), at::kFloat);
}

// ---- shapes and dtypes only

Tensor loss_meta(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight,
                 const Tensor& target) {
  check(options, x, weight, target);
  return at::empty_symint(loss_shape(options, target), x.options().dtype(loss_dtype(x)));
}

Gradients gradients_meta(const HeadPassOptions& options, const Tensor& x, const Tensor& weight) {
  const auto gradient = [](const Tensor& input, bool wanted) {
    return wanted ? empty_contiguous_like(input) : at::empty({0}, input.options());
  };
  return {gradient(x, options.x_gradient), gradient(weight, options.weight_gradient)};
}

LossAndGradients loss_with_gradients_meta(const HeadPassOptions& options, const Tensor& x, const Tensor& weight,
                                          const Tensor& target) {
  check_reduces(options);
  return std::tuple_cat(std::tuple(loss_meta(options, x, weight, target)), gradients_meta(options, x, weight));
}

Gradients backward_meta(const HeadPassOptions& options, const Tensor& grad, const Tensor& x, const Tensor& weight,
                        const Tensor& target) {
  check(options, x, weight, target);
  check_gradient(options, grad, target);
  return gradients_meta(options, x, weight);
}

// ---- any device and dtype

HeadPass head_pass(const HeadPassOptions& options, const Tensor& x, const Tensor& weight, const Tensor& target,
                   const Tensor& loss_gradient_T = {}) {
  return {.x_TD = x.reshape({-1, x.size(-1)}),
          .weight_ND = weight,
          .target_T = target.reshape({-1}),
          .loss_gradient_T = loss_gradient_T,
          .options = options};
}

/// The pass that computes losses alone.
HeadPass loss_pass(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight,
                   const Tensor& target) {
  return head_pass({options, /*x_gradient=*/false, /*weight_gradient=*/false}, x, weight, target);
}

Gradients shaped(const HeadPassResult& result, const Tensor& x, const Tensor& weight) {
  return {result.x_TD.defined() ? result.x_TD.view(x.sizes()) : at::empty({0}, x.options()),
          result.weight_ND.defined() ? result.weight_ND : at::empty({0}, weight.options())};
}

/// The weight of each token's loss in the result, without reading a value from the device.
Tensor token_shares(const LinearCrossEntropyOptions& options, const Tensor& target, at::ScalarType dtype) {
  const Tensor one = at::ones({}, target.options().dtype(dtype));
  const Tensor share = options.reduction == "mean" ? one / (target != options.ignore_index).sum().clamp_min(1) : one;
  return share.expand({target.numel()});
}

Tensor reduced_anywhere(const LinearCrossEntropyOptions& options, const Tensor& loss_T, const Tensor& target) {
  if (options.reduction == "none") return loss_T.view(target.sizes());
  return (loss_T * token_shares(options, target, loss_T.scalar_type())).sum();
}

Tensor loss_anywhere(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight,
                     const Tensor& target) {
  check(options, x, weight, target);
  const HeadPassResult result = linear_cross_entropy_blocked(loss_pass(options, x, weight, target));
  return reduced_anywhere(options, result.loss_T, target);
}

LossAndGradients loss_with_gradients_anywhere(const HeadPassOptions& options, const Tensor& x, const Tensor& weight,
                                              const Tensor& target) {
  check(options, x, weight, target);
  check_reduces(options);
  const Tensor shares_T = token_shares(options, target, loss_dtype(x));
  const HeadPassResult result = linear_cross_entropy_blocked(head_pass(options, x, weight, target, shares_T));
  auto [dx, dweight] = shaped(result, x, weight);
  return {reduced_anywhere(options, result.loss_T, target), dx, dweight};
}

Gradients backward_anywhere(const HeadPassOptions& options, const Tensor& grad, const Tensor& x, const Tensor& weight,
                            const Tensor& target) {
  check(options, x, weight, target);
  check_gradient(options, grad, target);
  const Tensor gradient_T =
      grad.to(loss_dtype(x)).expand(target.sizes()).reshape({-1}) * token_shares(options, target, loss_dtype(x));
  return shaped(linear_cross_entropy_blocked(head_pass(options, x, weight, target, gradient_T)), x, weight);
}

// ---- CPU: the fused pass, for the dtypes that it supports

bool fused(const Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble || x.scalar_type() == at::kBFloat16;
}

/// The weight of a token's loss in the result: 1, or 1 / (number of counted tokens) for the mean.
double token_share(const LinearCrossEntropyOptions& options, const Tensor& target) {
  if (options.reduction != "mean") return 1;
  const Tensor flat = target.contiguous();
  const int64_t* targets = flat.data_ptr<int64_t>();
  const int64_t ignored = std::count(targets, targets + flat.numel(), options.ignore_index);
  return 1.0 / static_cast<double>(std::max<int64_t>(flat.numel() - ignored, 1));
}

Tensor reduced(const LinearCrossEntropyOptions& options, const Tensor& loss_T, const Tensor& x, const Tensor& target) {
  const auto dtype = loss_dtype(x);
  if (options.reduction == "none") return loss_T.to(dtype).view(target.sizes());
  double sum = 0;  // in order, whatever the number of threads
  for (int64_t t = 0; t < loss_T.numel(); ++t) sum += loss_T.data_ptr<double>()[t];
  return at::scalar_tensor(sum * token_share(options, target), x.options().dtype(dtype));
}

Tensor loss_on_cpu(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight,
                   const Tensor& target) {
  if (!fused(x)) return loss_anywhere(options, x, weight, target);
  check(options, x, weight, target);
  const HeadPassResult result = run_head_pass(loss_pass(options, x, weight, target));
  return reduced(options, result.loss_T, x, target);
}

LossAndGradients loss_with_gradients_on_cpu(const HeadPassOptions& options, const Tensor& x, const Tensor& weight,
                                            const Tensor& target) {
  if (!fused(x)) return loss_with_gradients_anywhere(options, x, weight, target);
  check(options, x, weight, target);
  check_reduces(options);
  const Tensor shares_T = at::full({target.numel()}, token_share(options, target), at::kDouble);
  const HeadPassResult result = run_head_pass(head_pass(options, x, weight, target, shares_T));
  auto [dx, dweight] = shaped(result, x, weight);
  return {reduced(options, result.loss_T, x, target), dx, dweight};
}

Gradients backward_on_cpu(const HeadPassOptions& options, const Tensor& grad, const Tensor& x, const Tensor& weight,
                          const Tensor& target) {
  if (!fused(x)) return backward_anywhere(options, grad, x, weight, target);
  check(options, x, weight, target);
  check_gradient(options, grad, target);
  const Tensor gradient_T =
      grad.to(at::kDouble).expand(target.sizes()).reshape({-1}).contiguous() * token_share(options, target);
  return shaped(run_head_pass(head_pass(options, x, weight, target, gradient_T)), x, weight);
}

// ---- the derivative

Tensor call_loss(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight,
                 const Tensor& target) {
  return call_operator<&loss_meta>("tamis::linear_cross_entropy", options, x, weight, target);
}

HeadPassOptions with_gradients(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight) {
  return {options, x.requires_grad(), weight.requires_grad()};
}

/// An empty tensor stands for a gradient that is not needed.
Tensor if_wanted(const Tensor& gradient, bool wanted) {
  return wanted ? gradient : Tensor();
}

/// Reductions "mean" and "sum": the forward pass computes the gradients, the backward pass scales them.
struct ReducedLoss : torch::autograd::Function<ReducedLoss> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& target,
                        const LinearCrossEntropyOptions& options) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [loss, dx, dweight] = call_operator<&loss_with_gradients_meta>(
        "tamis::_linear_cross_entropy_with_gradients", with_gradients(options, x, weight), x, weight, target);
    ctx->save_for_backward({if_wanted(dx, x.requires_grad()), if_wanted(dweight, weight.requires_grad())});
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "linear_cross_entropy: has a first derivative only; call backward without create_graph");
    // If the graph is not kept the unscaled gradients are not needed again: no second copy of [N, D].
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](const Tensor& gradient) {
      if (!gradient.defined()) return gradient;
      return keep ? gradient * grads[0] : gradient.mul_(grads[0]);
    };
    const variable_list unscaled = ctx->get_saved_variables();
    return {scaled(unscaled[0]), scaled(unscaled[1]), {}, {}};
  }
};

/// Reduction "none": the gradient of every token's loss is known only now, so the backward pass computes the logits
/// again.
struct TokenLosses : torch::autograd::Function<TokenLosses> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& target,
                        const LinearCrossEntropyOptions& options) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    save_for_backward(ctx, options, {x, weight, target});
    return call_loss(options, x, weight, target);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const HeadPassOptions options = with_gradients(saved_options<LinearCrossEntropyOptions>(ctx, in), in[0], in[1]);
    auto [dx, dweight] =
        call_operator<&backward_meta>("tamis::linear_cross_entropy_backward", options, grads[0], in[0], in[1], in[2]);
    return {if_wanted(dx, options.x_gradient), if_wanted(dweight, options.weight_gradient), {}, {}};
  }
};

Tensor loss_autograd(const LinearCrossEntropyOptions& options, const Tensor& x, const Tensor& weight,
                     const Tensor& target) {
  if (!at::GradMode::is_enabled() || !(x.requires_grad() || weight.requires_grad())) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_loss(options, x, weight, target);
  }
  return options.reduction == "none" ? TokenLosses::apply(x, weight, target, options)
                                     : ReducedLoss::apply(x, weight, target, options);
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x_TD, const Tensor& weight_ND, const Tensor& target_T,
                            const LinearCrossEntropyOptions& options) {
  return call_loss(options, x_TD, weight_ND, target_T);
}

TORCH_LIBRARY_FRAGMENT(tamis, m) {
  m.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor target, *, str reduction=\"mean\", "
      "int ignore_index=-100, float? soft_cap=None) -> Tensor");
  m.def(
      "_linear_cross_entropy_with_gradients(Tensor x, Tensor weight, Tensor target, *, str reduction=\"mean\", "
      "int ignore_index=-100, float? soft_cap=None, bool x_gradient=True, bool weight_gradient=True) -> (Tensor, "
      "Tensor, Tensor)");
  m.def(
      "linear_cross_entropy_backward(Tensor grad, Tensor x, Tensor weight, Tensor target, *, str reduction=\"mean\", "
      "int ignore_index=-100, float? soft_cap=None, bool x_gradient=True, bool weight_gradient=True) -> (Tensor, "
      "Tensor)");
}

TORCH_LIBRARY_IMPL(tamis, CPU, m) {
  m.impl("linear_cross_entropy", schema_form<&loss_on_cpu>);
  m.impl("_linear_cross_entropy_with_gradients", schema_form<&loss_with_gradients_on_cpu>);
  m.impl("linear_cross_entropy_backward", schema_form<&backward_on_cpu>);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("linear_cross_entropy", schema_form<&loss_meta>);
  m.impl("_linear_cross_entropy_with_gradients", schema_form<&loss_with_gradients_meta>);
  m.impl("linear_cross_entropy_backward", schema_form<&backward_meta>);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("linear_cross_entropy", schema_form<&loss_anywhere>);
  m.impl("_linear_cross_entropy_with_gradients", schema_form<&loss_with_gradients_anywhere>);
  m.impl("linear_cross_entropy_backward", schema_form<&backward_anywhere>);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("linear_cross_entropy", schema_form<&loss_autograd>);
  m.impl("_linear_cross_entropy_with_gradients", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_cross_entropy_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

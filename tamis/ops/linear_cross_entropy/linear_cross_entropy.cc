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
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Gradients = std::tuple<Tensor, Tensor>;                 // of x and weight; empty [0] if not requested
using LossAndGradients = std::tuple<Tensor, Tensor, Tensor>;  // loss, then the same
using SoftCap = std::optional<double>;

// ---- checks

void check(const Tensor& x, const Tensor& weight, const Tensor& target, c10::string_view reduction,
           const SoftCap& soft_cap) {
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
  TORCH_CHECK_VALUE(reduction == "mean" || reduction == "sum" || reduction == "none",
                    "linear_cross_entropy: reduction must be \"mean\", \"sum\" or \"none\", but is \"", reduction,
                    "\"");
  TORCH_CHECK_VALUE(!soft_cap || (*soft_cap > 0 && std::isfinite(*soft_cap)),
                    "linear_cross_entropy: soft_cap must be a number above 0, but is ", *soft_cap);
}

/// The forward pass computes gradients of a single number only.
void check_reduces(c10::string_view reduction) {
  TORCH_CHECK_VALUE(reduction != "none",
                    "linear_cross_entropy: gradients are formed in the forward pass for the "
                    "reductions \"mean\" and \"sum\" only, but it is \"none\"");
}

void check_gradient(const Tensor& grad, const Tensor& target, c10::string_view reduction) {
  const c10::SymIntArrayRef expected = reduction == "none" ? target.sym_sizes() : c10::SymIntArrayRef();
  TORCH_CHECK_VALUE(grad.sym_sizes() == expected,
                    "linear_cross_entropy_backward: grad must have the shape of the loss, ", expected, ", but has ",
                    grad.sym_sizes());
}

at::ScalarType loss_dtype(const Tensor& x) {
  return at::promote_types(x.scalar_type(), at::kFloat);
}

// ---- shapes and dtypes only

Tensor loss_meta(const Tensor& x, const Tensor& weight, const Tensor& target, c10::string_view reduction, int64_t,
                 const SoftCap& soft_cap) {
  check(x, weight, target, reduction, soft_cap);
  const c10::SymIntArrayRef shape = reduction == "none" ? target.sym_sizes() : c10::SymIntArrayRef();
  return at::empty_symint(shape, x.options().dtype(loss_dtype(x)));
}

Tensor gradient_meta(const Tensor& input, bool wanted) {
  return wanted ? at::empty_symint(input.sym_sizes(), input.options()) : at::empty({0}, input.options());
}

LossAndGradients loss_with_gradients_meta(const Tensor& x, const Tensor& weight, const Tensor& target,
                                          c10::string_view reduction, int64_t ignore_index, const SoftCap& soft_cap,
                                          bool x_gradient, bool weight_gradient) {
  check_reduces(reduction);
  return {loss_meta(x, weight, target, reduction, ignore_index, soft_cap), gradient_meta(x, x_gradient),
          gradient_meta(weight, weight_gradient)};
}

Gradients backward_meta(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& target,
                        c10::string_view reduction, int64_t, const SoftCap& soft_cap, bool x_gradient,
                        bool weight_gradient) {
  check(x, weight, target, reduction, soft_cap);
  check_gradient(grad, target, reduction);
  return {gradient_meta(x, x_gradient), gradient_meta(weight, weight_gradient)};
}

// ---- any device and dtype

HeadPass head_pass(const Tensor& x, const Tensor& weight, const Tensor& target, int64_t ignore_index,
                   const SoftCap& soft_cap) {
  return {.x_TD = x.reshape({-1, x.size(-1)}),
          .weight_ND = weight,
          .target_T = target.reshape({-1}),
          .ignore_index = ignore_index,
          .soft_cap = soft_cap};
}

Gradients shaped(const HeadPassResult& result, const Tensor& x, const Tensor& weight) {
  return {result.x_TD.defined() ? result.x_TD.view(x.sizes()) : at::empty({0}, x.options()),
          result.weight_ND.defined() ? result.weight_ND : at::empty({0}, weight.options())};
}

/// The weight of each token's loss in the result, without reading a value from the device.
Tensor token_shares(const Tensor& target, c10::string_view reduction, int64_t ignore_index, at::ScalarType dtype) {
  const Tensor one = at::ones({}, target.options().dtype(dtype));
  const Tensor share = reduction == "mean" ? one / (target != ignore_index).sum().clamp_min(1) : one;
  return share.expand({target.numel()});
}

Tensor reduced_anywhere(const Tensor& loss_T, const Tensor& target, c10::string_view reduction, int64_t ignore_index) {
  if (reduction == "none") return loss_T.view(target.sizes());
  return (loss_T * token_shares(target, reduction, ignore_index, loss_T.scalar_type())).sum();
}

Tensor loss_anywhere(const Tensor& x, const Tensor& weight, const Tensor& target, c10::string_view reduction,
                     int64_t ignore_index, const SoftCap& soft_cap) {
  check(x, weight, target, reduction, soft_cap);
  const HeadPassResult result = linear_cross_entropy_blocked(head_pass(x, weight, target, ignore_index, soft_cap));
  return reduced_anywhere(result.loss_T, target, reduction, ignore_index);
}

LossAndGradients loss_with_gradients_anywhere(const Tensor& x, const Tensor& weight, const Tensor& target,
                                              c10::string_view reduction, int64_t ignore_index, const SoftCap& soft_cap,
                                              bool x_gradient, bool weight_gradient) {
  check(x, weight, target, reduction, soft_cap);
  check_reduces(reduction);
  HeadPass pass = head_pass(x, weight, target, ignore_index, soft_cap);
  pass.loss_gradient_T = token_shares(target, reduction, ignore_index, loss_dtype(x));
  pass.x_gradient = x_gradient;
  pass.weight_gradient = weight_gradient;
  const HeadPassResult result = linear_cross_entropy_blocked(pass);
  auto [dx, dweight] = shaped(result, x, weight);
  return {reduced_anywhere(result.loss_T, target, reduction, ignore_index), dx, dweight};
}

Gradients backward_anywhere(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& target,
                            c10::string_view reduction, int64_t ignore_index, const SoftCap& soft_cap, bool x_gradient,
                            bool weight_gradient) {
  check(x, weight, target, reduction, soft_cap);
  check_gradient(grad, target, reduction);
  HeadPass pass = head_pass(x, weight, target, ignore_index, soft_cap);
  pass.loss_gradient_T = grad.to(loss_dtype(x)).expand(target.sizes()).reshape({-1}) *
                         token_shares(target, reduction, ignore_index, loss_dtype(x));
  pass.x_gradient = x_gradient;
  pass.weight_gradient = weight_gradient;
  return shaped(linear_cross_entropy_blocked(pass), x, weight);
}

// ---- CPU: the fused pass, for the dtypes it knows

bool fused(const Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble || x.scalar_type() == at::kBFloat16;
}

/// The weight of a token's loss in the result: 1, or 1 / (number of counted tokens) for the mean.
double token_share(const Tensor& target, c10::string_view reduction, int64_t ignore_index) {
  if (reduction != "mean") return 1;
  const Tensor flat = target.contiguous();
  const int64_t* words = flat.data_ptr<int64_t>();
  const int64_t ignored = std::count(words, words + flat.numel(), ignore_index);
  return 1.0 / static_cast<double>(std::max<int64_t>(flat.numel() - ignored, 1));
}

Tensor reduced(const Tensor& loss_T, const Tensor& x, const Tensor& target, c10::string_view reduction,
               int64_t ignore_index) {
  const auto dtype = loss_dtype(x);
  if (reduction == "none") return loss_T.to(dtype).view(target.sizes());
  double sum = 0;  // in order, whatever the number of threads
  for (int64_t t = 0; t < loss_T.numel(); ++t) sum += loss_T.data_ptr<double>()[t];
  return at::scalar_tensor(sum * token_share(target, reduction, ignore_index), x.options().dtype(dtype));
}

Tensor loss_on_cpu(const Tensor& x, const Tensor& weight, const Tensor& target, c10::string_view reduction,
                   int64_t ignore_index, const SoftCap& soft_cap) {
  if (!fused(x)) return loss_anywhere(x, weight, target, reduction, ignore_index, soft_cap);
  check(x, weight, target, reduction, soft_cap);
  const HeadPassResult result = run_head_pass(head_pass(x, weight, target, ignore_index, soft_cap));
  return reduced(result.loss_T, x, target, reduction, ignore_index);
}

LossAndGradients loss_with_gradients_on_cpu(const Tensor& x, const Tensor& weight, const Tensor& target,
                                            c10::string_view reduction, int64_t ignore_index, const SoftCap& soft_cap,
                                            bool x_gradient, bool weight_gradient) {
  if (!fused(x)) {
    return loss_with_gradients_anywhere(x, weight, target, reduction, ignore_index, soft_cap, x_gradient,
                                        weight_gradient);
  }
  check(x, weight, target, reduction, soft_cap);
  check_reduces(reduction);
  HeadPass pass = head_pass(x, weight, target, ignore_index, soft_cap);
  pass.loss_gradient_T = at::full({target.numel()}, token_share(target, reduction, ignore_index), at::kDouble);
  pass.x_gradient = x_gradient;
  pass.weight_gradient = weight_gradient;
  const HeadPassResult result = run_head_pass(pass);
  auto [dx, dweight] = shaped(result, x, weight);
  return {reduced(result.loss_T, x, target, reduction, ignore_index), dx, dweight};
}

Gradients backward_on_cpu(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& target,
                          c10::string_view reduction, int64_t ignore_index, const SoftCap& soft_cap, bool x_gradient,
                          bool weight_gradient) {
  if (!fused(x)) {
    return backward_anywhere(grad, x, weight, target, reduction, ignore_index, soft_cap, x_gradient, weight_gradient);
  }
  check(x, weight, target, reduction, soft_cap);
  check_gradient(grad, target, reduction);
  HeadPass pass = head_pass(x, weight, target, ignore_index, soft_cap);
  pass.loss_gradient_T = grad.to(at::kDouble).expand(target.sizes()).reshape({-1}).contiguous() *
                         token_share(target, reduction, ignore_index);
  pass.x_gradient = x_gradient;
  pass.weight_gradient = weight_gradient;
  return shaped(run_head_pass(pass), x, weight);
}

// ---- the derivative

Tensor call_loss(const Tensor& x, const Tensor& weight, const Tensor& target, c10::string_view reduction,
                 int64_t ignore_index, const SoftCap& soft_cap) {
  static const auto op = find_operator<decltype(loss_meta)>("tamis::linear_cross_entropy");
  return op.call(x, weight, target, reduction, ignore_index, soft_cap);
}

LossAndGradients call_loss_with_gradients(const Tensor& x, const Tensor& weight, const Tensor& target,
                                          c10::string_view reduction, int64_t ignore_index, const SoftCap& soft_cap) {
  static const auto op =
      find_operator<decltype(loss_with_gradients_meta)>("tamis::_linear_cross_entropy_with_gradients");
  return op.call(x, weight, target, reduction, ignore_index, soft_cap, x.requires_grad(), weight.requires_grad());
}

Gradients call_backward(const Tensor& grad, const variable_list& in, c10::string_view reduction, int64_t ignore_index,
                        const SoftCap& soft_cap) {
  static const auto op = find_operator<decltype(backward_meta)>("tamis::linear_cross_entropy_backward");
  return op.call(grad, in[0], in[1], in[2], reduction, ignore_index, soft_cap, in[0].requires_grad(),
                 in[1].requires_grad());
}

/// An empty tensor stands for a gradient that is not needed.
Tensor if_wanted(const Tensor& gradient, bool wanted) {
  return wanted ? gradient : Tensor();
}

/// Reductions "mean" and "sum": the forward pass computes the gradients, the backward pass scales them.
struct ReducedLoss : torch::autograd::Function<ReducedLoss> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& target,
                        std::string reduction, int64_t ignore_index, SoftCap soft_cap) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [loss, dx, dweight] = call_loss_with_gradients(x, weight, target, reduction, ignore_index, soft_cap);
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
    return {scaled(unscaled[0]), scaled(unscaled[1]), {}, {}, {}, {}};
  }
};

/// Reduction "none": the gradient of every token's loss is known only now, so the backward pass computes the logits
/// again.
struct TokenLosses : torch::autograd::Function<TokenLosses> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& target,
                        std::string reduction, int64_t ignore_index, SoftCap soft_cap) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({x, weight, target});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["soft_cap"] = soft_cap;
    return call_loss(x, weight, target, reduction, ignore_index, soft_cap);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    auto [dx, dweight] = call_backward(grads[0], in, "none", ctx->saved_data["ignore_index"].toInt(),
                                       ctx->saved_data["soft_cap"].toOptional<double>());
    return {if_wanted(dx, in[0].requires_grad()), if_wanted(dweight, in[1].requires_grad()), {}, {}, {}, {}};
  }
};

Tensor loss_autograd(const Tensor& x, const Tensor& weight, const Tensor& target, c10::string_view reduction,
                     int64_t ignore_index, const SoftCap& soft_cap) {
  if (!at::GradMode::is_enabled() || !(x.requires_grad() || weight.requires_grad())) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_loss(x, weight, target, reduction, ignore_index, soft_cap);
  }
  const std::string kind(reduction);
  return kind == "none" ? TokenLosses::apply(x, weight, target, kind, ignore_index, soft_cap)
                        : ReducedLoss::apply(x, weight, target, kind, ignore_index, soft_cap);
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x_TD, const Tensor& weight_ND, const Tensor& target_T,
                            const LinearCrossEntropyOptions& options) {
  return call_loss(x_TD, weight_ND, target_T, options.reduction, options.ignore_index, options.soft_cap);
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
  m.impl("linear_cross_entropy", &loss_on_cpu);
  m.impl("_linear_cross_entropy_with_gradients", &loss_with_gradients_on_cpu);
  m.impl("linear_cross_entropy_backward", &backward_on_cpu);
}

TORCH_LIBRARY_IMPL(tamis, Meta, m) {
  m.impl("linear_cross_entropy", &loss_meta);
  m.impl("_linear_cross_entropy_with_gradients", &loss_with_gradients_meta);
  m.impl("linear_cross_entropy_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(tamis, CompositeExplicitAutograd, m) {
  m.impl("linear_cross_entropy", &loss_anywhere);
  m.impl("_linear_cross_entropy_with_gradients", &loss_with_gradients_anywhere);
  m.impl("linear_cross_entropy_backward", &backward_anywhere);
}

TORCH_LIBRARY_IMPL(tamis, Autograd, m) {
  m.impl("linear_cross_entropy", &loss_autograd);
  m.impl("_linear_cross_entropy_with_gradients", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_cross_entropy_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace tamis::ops

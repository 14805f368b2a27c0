#include "tamis/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tamis::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FunctionHolder : torch::CustomClassHolder {
  explicit FunctionHolder(TensorFunction f) : function(std::move(f)) {}
  TensorFunction function;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* ctx, const TensorFunction& function, at::TensorList inputs) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["function"] = at::IValue::make_capsule(c10::make_intrusive<FunctionHolder>(function));
    return function(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto holder = ctx->saved_data["function"].toCapsule();
    variable_list inputs, wanted;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
      if (saved.requires_grad()) wanted.push_back(inputs.back());
    }
    const at::AutoGradMode enable_grad(true);
    const at::Tensor output = static_cast<const FunctionHolder&>(*holder).function(inputs);
    const variable_list found = torch::autograd::grad({output}, wanted, {grads[0]}, /*retain_graph=*/std::nullopt,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result = {at::Tensor()};  // of the function itself
    auto next = found.begin();
    for (const at::Tensor& input : inputs) result.push_back(input.requires_grad() ? *next++ : at::Tensor());
    return result;
  }
};

}  // namespace

at::Tensor recompute(const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
  return Recompute::apply(function, at::TensorList(inputs));
}

}  // namespace tamis::nn

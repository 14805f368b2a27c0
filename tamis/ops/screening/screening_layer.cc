#include "tamis/ops/screening/screening_layer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <vector>

#include "tamis/ops/linear.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Arguments other than tensors, kept for the backward pass.
struct Arguments : torch::CustomClassHolder {
  Arguments(const ProjectionLayout& l, const ScreeningOptions& o) : layout(l), options(o) {
    options.gate.reset();
    options.document.reset();
  }
  ProjectionLayout layout;
  ScreeningOptions options;
};

/// W: the numbers of a token's projections.
int64_t width_of(const ProjectionLayout& layout) {
  const auto& [heads, key_dim, value_dim, gate] = layout;
  TORCH_CHECK_VALUE(heads >= 1 && key_dim >= 2 && value_dim >= 1, "screening: expected 1 head, K 2 and V 1 or more, ",
                    "but got ", heads, ", ", key_dim, " and ", value_dim);
  return 2 * heads * key_dim + (gate ? 2 : 1) * heads * value_dim;
}

void check_matrix(const char* name, const Tensor& matrix, const Tensor& x, int64_t rows, int64_t columns) {
  TORCH_CHECK_VALUE(matrix.sizes() == at::IntArrayRef({rows, columns}), "screening_layer: ", name,
                    " must have the shape [", rows, ", ", columns, "], but has ", matrix.sizes());
  TORCH_CHECK_VALUE(matrix.scalar_type() == x.scalar_type() && matrix.device() == x.device(), "screening_layer: ", name,
                    " must have the dtype and device of x, ", x.scalar_type(), " on ", x.device(), ", but has ",
                    matrix.scalar_type(), " on ", matrix.device());
}

struct ScreeningLayer : torch::autograd::Function<ScreeningLayer> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& projection, const Tensor& output,
                        const Tensor& s_w, const Tensor& s_r, const ProjectionLayout& layout,
                        const ScreeningOptions& options, Keep keep) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor projected = ops::linear(x, projection);
    const Tensor kept = keep == Keep::kInput ? Tensor() : projected;
    ctx->save_for_backward({x, projection, output, s_w, s_r, kept, options.document.value_or(Tensor())});
    ctx->saved_data["arguments"] = at::IValue::make_capsule(c10::make_intrusive<Arguments>(layout, options));
    return ops::linear(screening(split_projections(projected, layout), s_w, s_r, options).flatten(2), output);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "screening: has a first derivative only; call backward without create_graph");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &projection = saved[1], &output = saved[2], &dy = grads[0];
    const auto holder = ctx->saved_data["arguments"].toCapsule();
    const auto& arguments = static_cast<const Arguments&>(*holder);
    const ProjectionLayout& layout = arguments.layout;
    ScreeningOptions options = arguments.options;
    if (saved[6].defined()) options.document = saved[6];
    const auto wanted = [&](size_t input) { return ctx->needs_input_grad(input); };

    variable_list gradients(8);
    Tensor dprojected;
    {
      const Tensor projected = saved[5].defined() ? saved[5] : ops::linear(x, projection);
      const Tensor u = linear_input_gradient(dy, output);  // du, overwritten by u if that is wanted
      const Tensor u_BTHV = u.unflatten(-1, {layout.heads, layout.value_dim});
      dprojected = at::empty_like(projected);
      std::tie(gradients[3], gradients[4]) =
          screening_backward_into(u_BTHV, split_projections(projected, layout), saved[3], saved[4], options,
                                  split_projections(dprojected, layout), wanted(2) ? u_BTHV : Tensor());
      if (wanted(2)) gradients[2] = linear_weight_gradient(dy, u);
    }
    if (wanted(0) && wanted(1)) {
      const auto [dx, dw] = linear_gradients(dprojected, x, projection);
      gradients[0] = dx;
      gradients[1] = dw;
    } else if (wanted(1)) {
      gradients[1] = linear_weight_gradient(dprojected, x);
    } else if (wanted(0)) {
      gradients[0] = linear_input_gradient(dprojected, projection);
    }
    return gradients;
  }
};

}  // namespace

ScreeningProjections split_projections(const Tensor& projected_BTW, const ProjectionLayout& layout) {
  const auto& [heads, key_dim, value_dim, gate] = layout;
  const int64_t keys = heads * key_dim, values = heads * value_dim, width = width_of(layout);
  TORCH_CHECK_VALUE(projected_BTW.dim() == 3 && projected_BTW.size(2) == width,
                    "split_projections: projected must have the shape [B, T, ", width, "] (", heads, " heads of K ",
                    key_dim, " and V ", value_dim, gate ? ", with a gate" : ", without a gate", "), but has ",
                    projected_BTW.sizes());
  std::vector<int64_t> widths = {keys, keys, values};
  if (gate) widths.push_back(values);
  const auto parts = projected_BTW.split_with_sizes(widths, -1);
  const auto by_head = [&](const Tensor& part) { return part.unflatten(-1, {layout.heads, -1}); };
  ScreeningProjections result = {by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), std::nullopt};
  if (gate) result.gate_BTHV = by_head(parts[3]);
  return result;
}

Tensor screening_layer(const Tensor& x_BTD, const ScreeningWeights& weights, const ProjectionLayout& layout,
                       const ScreeningOptions& options, Keep keep) {
  TORCH_CHECK_VALUE(x_BTD.dim() == 3, "screening_layer: x must have the shape [B, T, D], but has ", x_BTD.sizes());
  check_matrix("projection", weights.projection, x_BTD, width_of(layout), x_BTD.size(2));
  TORCH_CHECK_VALUE(weights.output.dim() == 2, "screening_layer: output must have the shape [E, H V], but has ",
                    weights.output.sizes());
  check_matrix("output", weights.output, x_BTD, weights.output.size(0), layout.heads * layout.value_dim);
  return ScreeningLayer::apply(x_BTD, weights.projection, weights.output, weights.s_w, weights.s_r, layout, options,
                               keep);
}

}  // namespace tamis::ops

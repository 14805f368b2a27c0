#include "tamis/ops/screening/screening_projected.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace tamis::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The arguments that are no tensors, kept for the backward pass.
struct Arguments : torch::CustomClassHolder {
  Arguments(const ProjectionLayout& l, const ScreeningOptions& o) : layout(l), options(o) {
    options.gate.reset();
    options.document.reset();
  }
  ProjectionLayout layout;
  ScreeningOptions options;
};

struct ProjectedScreening : torch::autograd::Function<ProjectedScreening> {
  static Tensor forward(AutogradContext* ctx, const Tensor& projected, const Tensor& s_w, const Tensor& s_r,
                        const ProjectionLayout& layout, ScreeningOptions options) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({projected, s_w, s_r, options.document.value_or(Tensor())});
    ctx->saved_data["arguments"] = at::IValue::make_capsule(c10::make_intrusive<Arguments>(layout, options));
    const ScreeningProjections in = split_projections(projected, layout);
    options.gate = in.gate_BTHV;
    return screening(in.q_BTHK, in.k_BTHK, in.v_BTHV, s_w, s_r, options);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "screening: has a first derivative only; call backward without create_graph");
    const variable_list saved = ctx->get_saved_variables();
    const auto holder = ctx->saved_data["arguments"].toCapsule();
    const auto& arguments = static_cast<const Arguments&>(*holder);
    ScreeningOptions options = arguments.options;
    if (saved[3].defined()) options.document = saved[3];
    const Tensor gradient = at::empty(saved[0].sizes(), saved[0].options());
    const auto [ds_w, ds_r] = screening_backward_into(grads[0], split_projections(saved[0], arguments.layout), saved[1],
                                                      saved[2], options, split_projections(gradient, arguments.layout));
    return {gradient, ds_w, ds_r, Tensor(), Tensor()};
  }
};

}  // namespace

ScreeningProjections split_projections(const Tensor& projected_BTW, const ProjectionLayout& layout) {
  const auto& [heads, key_dim, value_dim, gate] = layout;
  TORCH_CHECK_VALUE(heads >= 1 && key_dim >= 2 && value_dim >= 1,
                    "projected_screening: expected 1 head, K 2 and V 1 or ", "more, but got ", heads, ", ", key_dim,
                    " and ", value_dim);
  const int64_t keys = heads * key_dim, values = heads * value_dim, width = 2 * keys + (gate ? 2 : 1) * values;
  TORCH_CHECK_VALUE(projected_BTW.dim() == 3 && projected_BTW.size(2) == width,
                    "projected_screening: projected must have the shape [B, T, ", width, "] (", heads, " heads of K ",
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

Tensor projected_screening(const Tensor& projected_BTW, const ProjectionLayout& layout, const Tensor& s_w_H,
                           const Tensor& s_r_H, const ScreeningOptions& options) {
  return ProjectedScreening::apply(projected_BTW, s_w_H, s_r_H, layout, options);
}

}  // namespace tamis::ops

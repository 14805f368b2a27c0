#include "tamis/ops/screening/screening_projected.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <utility>
#include <vector>

#include "tamis/ops/registration.h"
#include "tamis/ops/screening/screening_cpu.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The arguments that are no tensors, kept for the backward pass.
struct Arguments : torch::CustomClassHolder {
  Arguments(const ProjectionLayout& l, const ScreeningOptions& o) : layout(l), options(o) {}
  ProjectionLayout layout;
  ScreeningOptions options;
};

/// The gradients of q, k, v and gate into `d`, and those of s_w and s_r.
std::pair<Tensor, Tensor> differentiate(const Tensor& grad, const ScreeningProjections& in, const Tensor& s_w,
                                        const Tensor& s_r, const ScreeningOptions& options,
                                        const ScreeningProjections& d) {
  const auto& [q, k, v, gate] = in;
  if (q.device().is_cpu() && screening_has_fused(q.scalar_type())) {
    return screening_backward_cpu(grad, q, k, v, s_w, s_r, options, d);
  }
  using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
  using Signature = Gradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const std::optional<Tensor>&, double, int64_t, std::optional<double>, bool,
                              c10::string_view, const std::optional<Tensor>&);
  static const auto op = find_operator<Signature>("tamis::screening_backward");
  const auto [dq, dk, dv, ds_w, ds_r, dgate] =
      op.call(grad, q, k, v, s_w, s_r, gate, options.mipe_threshold, options.key_start, options.expand_beyond,
              options.tanh_norm, options.position, options.document);
  d.q_BTHK.copy_(dq);
  d.k_BTHK.copy_(dk);
  d.v_BTHV.copy_(dv);
  if (gate) d.gate_BTHV->copy_(dgate);
  return {ds_w, ds_r};
}

struct ProjectedScreening : torch::autograd::Function<ProjectedScreening> {
  static Tensor forward(AutogradContext* ctx, const Tensor& projected, const Tensor& s_w, const Tensor& s_r,
                        const ProjectionLayout& layout, ScreeningOptions options) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({projected, s_w, s_r});
    ctx->saved_data["arguments"] = at::IValue::make_capsule(c10::make_intrusive<Arguments>(layout, options));
    const ScreeningProjections in = split_projections(projected, layout);
    options.gate = in.gate_BTHV;
    return screening(in.q_BTHK, in.k_BTHK, in.v_BTHV, s_w, s_r, options);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto holder = ctx->saved_data["arguments"].toCapsule();
    const auto& arguments = static_cast<const Arguments&>(*holder);
    const ScreeningProjections in = split_projections(saved[0], arguments.layout);
    ScreeningOptions options = arguments.options;
    options.gate = in.gate_BTHV;
    Tensor gradient = at::empty(saved[0].sizes(), saved[0].options());
    const ScreeningProjections d = split_projections(gradient, arguments.layout);
    const auto [ds_w, ds_r] = differentiate(grads[0], in, saved[1], saved[2], options, d);
    return {gradient, ds_w, ds_r, Tensor(), Tensor()};
  }
};

}  // namespace

ScreeningProjections split_projections(const Tensor& projected_BTW, const ProjectionLayout& layout) {
  const int64_t keys = layout.heads * layout.key_dim, values = layout.heads * layout.value_dim;
  std::vector<int64_t> widths = {keys, keys, values};
  if (layout.gate) widths.push_back(values);
  const auto parts = projected_BTW.split_with_sizes(widths, -1);
  const auto by_head = [&](const Tensor& part) { return part.unflatten(-1, {layout.heads, -1}); };
  ScreeningProjections result = {by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), std::nullopt};
  if (layout.gate) result.gate_BTHV = by_head(parts[3]);
  return result;
}

Tensor projected_screening(const Tensor& projected_BTW, const ProjectionLayout& layout, const Tensor& s_w_H,
                           const Tensor& s_r_H, const ScreeningOptions& options) {
  return ProjectedScreening::apply(projected_BTW, s_w_H, s_r_H, layout, options);
}

}  // namespace tamis::ops

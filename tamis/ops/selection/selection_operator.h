#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "tamis/ops/registration.h"
#include "tamis/ops/selection/selection.h"

// Checks, derivative and forms of an operator that selects its keys by alpha-entmax, once for both. The operator checks
// its arguments, fills in the scale and calls an inner one, tamis::_<name>, that also returns the statistics of the
// selection.
//
// A Mechanism gives
//   Options                       of the operator
//   kName                         of the operator
//   kForward, kBackward           "tamis::_<name>", "tamis::_<name>_backward"
//   kKernels                      SelectionKernels
//   weights()                     SelectedWeights

namespace tamis::ops {

template <typename Options>
struct SelectionFields {
  static constexpr std::tuple kFields{&Options::alpha, &Options::scale, &Options::strict, &Options::document};
};

template <>
struct SchemaOptions<Selection> : SelectionFields<Selection> {};

template <class Mechanism>
struct SelectionOperator {
  using Tensor = at::Tensor;
  using Options = typename Mechanism::Options;
  using Forward = std::tuple<Tensor, Tensor>;            // result, statistics
  using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

  static void check(const Selection& selection, const Tensor& q, const Tensor& k, const Tensor& v) {
    check_attention(Mechanism::kName, q, k, v, selection.range());
    TORCH_CHECK_VALUE(selection.alpha >= 1 && selection.alpha <= 2, Mechanism::kName,
                      ": alpha must be between 1 (softmax) and 2 (sparsemax), but is ", selection.alpha);
  }

  /// The operator itself.
  static Tensor apply(const Options& options, const Tensor& q, const Tensor& k, const Tensor& v) {
    check({.alpha = options.alpha, .strict = options.strict, .document = options.document}, q, k, v);
    return std::get<0>(call(selection_of(options, q.size(3)), q, k, v));
  }

  // ---- shapes and dtypes only

  static Tensor empty_statistics(const Tensor& q) {
    return at::empty_symint({q.sym_size(0), q.sym_size(2), q.sym_size(1), 2}, q.options().dtype(at::kFloat));
  }

  static Forward meta(const Selection& selection, const Tensor& q, const Tensor& k, const Tensor& v) {
    check(selection, q, k, v);
    return {at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options()),
            empty_statistics(q)};
  }

  static Gradients backward_meta(const Selection&, const Tensor&, const Tensor&, const Tensor& q, const Tensor& k,
                                 const Tensor& v) {
    return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v)};
  }

  // ---- any device and dtype

  static Forward anywhere(const Selection& selection, const Tensor& q, const Tensor& k, const Tensor& v) {
    // The backward pass computes the statistics again.
    return {selection_blocked(Mechanism::weights(), selection, q, k, v).contiguous(), empty_statistics(q).zero_()};
  }

  static Gradients backward_anywhere(const Selection& selection, const Tensor& grad, const Tensor&, const Tensor& q,
                                     const Tensor& k, const Tensor& v) {
    const auto [dq, dk, dv] = selection_backward_blocked(Mechanism::weights(), selection, grad, q, k, v);
    return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
  }

  // ---- CPU

  static Forward cpu(const Selection& selection, const Tensor& q, const Tensor& k, const Tensor& v) {
    if (!attention_has_fused(q.scalar_type())) return anywhere(selection, q, k, v);
    return selection_cpu(Mechanism::kKernels, selection, q, k, v);
  }

  static Gradients backward_cpu(const Selection& selection, const Tensor& grad, const Tensor& statistics,
                                const Tensor& q, const Tensor& k, const Tensor& v) {
    if (!attention_has_fused(q.scalar_type())) return backward_anywhere(selection, grad, statistics, q, k, v);
    return selection_backward_cpu(Mechanism::kKernels, selection, grad, statistics, q, k, v);
  }

  // ---- the derivative

  static Forward call(const Selection& selection, const Tensor& q, const Tensor& k, const Tensor& v) {
    return call_operator<&SelectionOperator::meta>(Mechanism::kForward, selection, q, k, v);
  }

  struct Function : torch::autograd::Function<Function> {
    using Context = torch::autograd::AutogradContext;
    using Variables = torch::autograd::variable_list;

    static Variables forward(Context* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Selection& selection) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      auto [out, statistics] = call(selection, q, k, v);
      save_for_backward(ctx, selection, {q, k, v, statistics});
      ctx->mark_non_differentiable({statistics});
      return {out, statistics};
    }

    static Variables backward(Context* ctx, const Variables& grads) {
      const Variables in = ctx->get_saved_variables();
      const auto [dq, dk, dv] = call_operator<&SelectionOperator::backward_meta>(
          Mechanism::kBackward, saved_options<Selection>(ctx, in), grads[0], in[3], in[0], in[1], in[2]);
      return {dq, dk, dv, {}};
    }
  };

  static Forward autograd(const Selection& selection, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto out = Function::apply(q, k, v, selection);
    return {out[0], out[1]};
  }

  // ---- registrations of the inner operator and its backward pass

  static void implement_cpu(torch::Library& m) {
    m.impl(Mechanism::kForward, schema_form<&SelectionOperator::cpu>);
    m.impl(Mechanism::kBackward, schema_form<&SelectionOperator::backward_cpu>);
  }

  static void implement_meta(torch::Library& m) {
    m.impl(Mechanism::kForward, schema_form<&SelectionOperator::meta>);
    m.impl(Mechanism::kBackward, schema_form<&SelectionOperator::backward_meta>);
  }

  static void implement_anywhere(torch::Library& m) {
    m.impl(Mechanism::kForward, schema_form<&SelectionOperator::anywhere>);
    m.impl(Mechanism::kBackward, schema_form<&SelectionOperator::backward_anywhere>);
  }

  static void implement_autograd(torch::Library& m) {
    m.impl(Mechanism::kForward, schema_form<&SelectionOperator::autograd>);
    m.impl(Mechanism::kBackward, torch::autograd::autogradNotImplementedFallback());
  }
};

}  // namespace tamis::ops

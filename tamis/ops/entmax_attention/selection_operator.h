#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "tamis/ops/entmax_attention/selection.h"
#include "tamis/ops/registration.h"

// Checks, derivative and implementations of an operator that selects its keys by alpha-entmax, once for both. The
// operator checks its arguments, fills in the scale and calls an inner one, tamis::_<name>, that also returns the
// statistics of the selection.
//
// A Mechanism gives
//   kName                               of the operator
//   kForward, kBackward                 "tamis::_<name>", "tamis::_<name>_backward"
//   kKernels                            SelectionKernels
//   reference(q, k, v, selection)       the definition in plain torch

namespace tamis::ops {

template <class Mechanism>
struct SelectionOperator {
  using Tensor = at::Tensor;
  using Forward = std::tuple<Tensor, Tensor>;            // result, statistics
  using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v
  using Document = std::optional<Tensor>;

  static void check(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, const AttentionRange& range) {
    check_attention(Mechanism::kName, q, k, v, range);
    TORCH_CHECK_VALUE(alpha >= 1 && alpha <= 2, Mechanism::kName,
                      ": alpha must be between 1 (softmax) and 2 (sparsemax), but is ", alpha);
  }

  // ---- shapes and dtypes only

  static Tensor empty_statistics(const Tensor& q) {
    return at::empty_symint({q.sym_size(0), q.sym_size(2), q.sym_size(1), 2}, q.options().dtype(at::kFloat));
  }

  static Forward meta(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, double scale, bool strict,
                      const Document& document) {
    check(q, k, v, alpha, Selection(alpha, scale, strict, document).range());
    return {at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)}, v.options()),
            empty_statistics(q)};
  }

  static Gradients backward_meta(const Tensor&, const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                 double, double, bool, const Document&) {
    return {empty_contiguous_like(q), empty_contiguous_like(k), empty_contiguous_like(v)};
  }

  // ---- the definition, on any device and dtype

  static Forward fallback(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, double scale, bool strict,
                          const Document& document) {
    return {Mechanism::reference(q, k, v, {alpha, scale, strict, document}).contiguous(), empty_statistics(q)};
  }

  static Gradients backward_fallback(const Tensor& grad, const Tensor&, const Tensor& q, const Tensor& k,
                                     const Tensor& v, double alpha, double scale, bool strict,
                                     const Document& document) {
    const Selection selection(alpha, scale, strict, document);
    const auto function = [&](const std::vector<Tensor>& in) {
      return Mechanism::reference(in[0], in[1], in[2], selection);
    };
    const std::vector<Tensor> gradients = gradients_below_autograd(function, {q, k, v}, grad);
    return {gradients[0], gradients[1], gradients[2]};
  }

  // ---- CPU

  static Forward cpu(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, double scale, bool strict,
                     const Document& document) {
    if (!attention_has_fused(q.scalar_type())) return fallback(q, k, v, alpha, scale, strict, document);
    return selection_cpu(Mechanism::kKernels, q, k, v, {alpha, scale, strict, document});
  }

  static Gradients backward_cpu(const Tensor& grad, const Tensor& statistics, const Tensor& q, const Tensor& k,
                                const Tensor& v, double alpha, double scale, bool strict, const Document& document) {
    if (!attention_has_fused(q.scalar_type())) {
      return backward_fallback(grad, statistics, q, k, v, alpha, scale, strict, document);
    }
    return selection_backward_cpu(Mechanism::kKernels, grad, statistics, q, k, v, {alpha, scale, strict, document});
  }

  // ---- the derivative

  static Forward call(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, double scale, bool strict,
                      const Document& document) {
    static const auto op = find_operator<decltype(meta)>(Mechanism::kForward);
    return op.call(q, k, v, alpha, scale, strict, document);
  }

  struct Function : torch::autograd::Function<Function> {
    using Context = torch::autograd::AutogradContext;
    using Variables = torch::autograd::variable_list;

    static Variables forward(Context* ctx, const Tensor& q, const Tensor& k, const Tensor& v, double alpha,
                             double scale, bool strict, const Document& document) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      auto [out, statistics] = call(q, k, v, alpha, scale, strict, document);
      ctx->save_for_backward({q, k, v, statistics, document.value_or(Tensor())});
      ctx->saved_data["alpha"] = alpha;
      ctx->saved_data["scale"] = scale;
      ctx->saved_data["strict"] = strict;
      ctx->mark_non_differentiable({statistics});
      return {out, statistics};
    }

    static Variables backward(Context* ctx, const Variables& grads) {
      static const auto op = find_operator<decltype(backward_meta)>(Mechanism::kBackward);
      const Variables in = ctx->get_saved_variables();
      auto& data = ctx->saved_data;
      auto [dq, dk, dv] = op.call(grads[0], in[3], in[0], in[1], in[2], data["alpha"].toDouble(),
                                  data["scale"].toDouble(), data["strict"].toBool(), given(in[4]));
      return {dq, dk, dv, {}, {}, {}, {}};
    }
  };

  static Forward autograd(const Tensor& q, const Tensor& k, const Tensor& v, double alpha, double scale, bool strict,
                          const Document& document) {
    const auto out = Function::apply(q, k, v, alpha, scale, strict, document);
    return {out[0], out[1]};
  }

  /// The operator itself, for its options.
  template <typename Options>
  static Tensor apply(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
    check(q, k, v, options.alpha,
          {.strict = options.strict, .key_start = options.key_start, .document = options.document});
    const Selection selection(options, q.size(3));
    return std::get<0>(call(q, k, v, selection.alpha, selection.scale, selection.strict, selection.document));
  }

  // ---- registrations

  static void implement(torch::Library& m,
                        Forward (*forward)(const Tensor&, const Tensor&, const Tensor&, double, double, bool,
                                           const Document&),
                        Gradients (*backward)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                              double, double, bool, const Document&)) {
    m.impl(Mechanism::kForward, forward);
    m.impl(Mechanism::kBackward, backward);
  }
};

}  // namespace tamis::ops

// tamis::screening as a torch operator: checks, schema, derivative, registrations.

#include "tamis/ops/screening/screening.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

namespace tamis::ops {
namespace {

using at::Tensor;
using std::optional;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, s_w, s_r, gate

ScreeningOptions make_options(const optional<Tensor>& gate, double mipe_threshold, int64_t key_start,
                              optional<double> expand_beyond, bool tanh_norm, std::string_view position,
                              const optional<Tensor>& document) {
  return {.gate = gate,
          .mipe_threshold = mipe_threshold,
          .key_start = key_start,
          .expand_beyond = expand_beyond,
          .tanh_norm = tanh_norm,
          .position = std::string(position),
          .document = document};
}

// ---- the definition on any device and dtype

Tensor screening_fallback(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                          const optional<Tensor>& gate, double mipe_threshold, int64_t key_start,
                          optional<double> expand_beyond, bool tanh_norm, std::string_view position,
                          const optional<Tensor>& document) {
  return reference::screening(
      q, k, v, s_w, s_r, make_options(gate, mipe_threshold, key_start, expand_beyond, tanh_norm, position, document));
}

}  // namespace

Tensor screening(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                 const ScreeningOptions& options) {
  return reference::screening(q, k, v, s_w, s_r, options);
}

}  // namespace tamis::ops

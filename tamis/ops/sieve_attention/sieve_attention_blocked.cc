// The weights of Sieve attention in plain torch, for the blocked form. Equation numbers: README.md.

#include <ATen/ATen.h>

#include "tamis/ops/selection/selection.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"

namespace tamis::ops {

using at::Tensor;

namespace {

Sticks::Hide where_rejected(const Tensor& u) {
  return [rejected = u == 0](const Tensor& pairs, double value) { pairs.masked_fill_(rejected, value); };
}

Tensor sieve_weights_of(const Tensor& z, const Tensor& u, double /*alpha*/) {  // (3)
  return Sticks(z, where_rejected(u)).weight;
}

std::tuple<Tensor, Tensor> sieve_gradient_of(const Tensor& z, const Tensor& u, double /*alpha*/, const Tensor& da) {
  const Sticks::Hide hide = where_rejected(u);
  const Sticks sticks(z, hide);
  return {sticks.weight, sticks.gradient(z, da, /*remainder_part=*/{}, hide)};
}

}  // namespace

const SelectedWeights& sieve_weights() {
  static constexpr SelectedWeights kWeights{&sieve_weights_of, &sieve_gradient_of};
  return kWeights;
}

}  // namespace tamis::ops

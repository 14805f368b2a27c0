#include "tamis/models/mixers/mipe_wrap.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numbers>
#include <sstream>

#include "tamis/models/testing.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kBoundary = 9;
constexpr double kThreshold = 32;

/// q or k of unit length, rotated by pi phi(w) p / w with p = i before the boundary, else i mod w.
Tensor rotated_by_definition(const Tensor& x_BTHK, const Tensor& s_w_H) {
  const double pi = std::numbers::pi;
  const Tensor w_H = s_w_H.exp() + 1;
  const Tensor phi_H = at::where(w_H < kThreshold, (at::cos(pi * w_H / kThreshold) + 1) / 2, 0.0);
  const Tensor i_T1 = at::arange(x_BTHK.size(1), at::kDouble).unsqueeze(1);
  const Tensor p_TH = at::where(i_T1 < kBoundary, i_T1, at::remainder(i_T1, w_H));
  const Tensor angle_TH = pi * phi_H * p_TH / w_H;
  const Tensor x = x_BTHK / x_BTHK.norm(2, {-1}, /*keepdim=*/true), a = x.select(3, 0), b = x.select(3, 1);
  const Tensor c = angle_TH.cos(), s = angle_TH.sin();
  return at::cat({at::stack({a * c - b * s, a * s + b * c}, 3), x.slice(3, 2)}, 3);
}

Tensors with_gradients(const Tensors& in, const std::function<Tensor(const Tensors&)>& function) {
  Tensors leaves;
  for (const Tensor& each : in) leaves.push_back(each.detach().clone().requires_grad_());
  const Tensor out = function(leaves);
  Tensors result =
      torch::autograd::grad({(out * ops::testing::random_normal(out.sizes(), 8).to(at::kDouble)).sum()}, leaves);
  result.push_back(out.detach());
  return result;
}

TEST(MipeWrap, IsTheRotationByThePositionModuloTheWindow) {
  const Tensor s_w = at::tensor({0.3, 1.7, 2.6, 5.0}, at::kDouble);  // the last window is above the threshold
  const Tensor s_r = at::tensor({2.0, 1.0, 3.0, 0.5}, at::kDouble);
  const auto random = [](int64_t width, uint64_t seed) {
    return ops::testing::random_normal({2, 40, 4, width}, seed).to(at::kDouble);
  };
  const Tensors in = {random(5, 1), random(5, 2), random(3, 3), s_w, s_r};
  const auto wrapped = [](const Tensors& t) {
    const MipeWrap options{.boundary = kBoundary, .mipe_threshold = kThreshold, .expand_beyond = {}};
    return ops::screening(mipe_wrapped(t[0], t[3], 0, options), mipe_wrapped(t[1], t[3], 0, options), t[2], t[3], t[4],
                          {{.mipe_threshold = kThreshold}});
  };
  const auto defined = [](const Tensors& t) {
    return ops::reference::screening(rotated_by_definition(t[0], t[3]), rotated_by_definition(t[1], t[3]), t[2], t[3],
                                     t[4], {{.position = "none"}});
  };
  const Tensors found = with_gradients(in, wrapped), expected = with_gradients(in, defined);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LT((found[i] - expected[i]).abs().max().item<double>(), 1e-9) << i;
  }
  const Tensor plain = ops::screening(in[0], in[1], in[2], s_w, s_r, {{.mipe_threshold = kThreshold}});
  EXPECT_TRUE(plain.narrow(1, 0, kBoundary).allclose(expected.back().narrow(1, 0, kBoundary), 0, 1e-9));
  EXPECT_GT((plain - expected.back()).abs().max().item<double>(), 1e-3) << "the wrap matters";
}

TEST(MipeWrap, ExpandedWindowsAreNotRotated) {
  const Tensor x = ops::testing::random_normal({1, 40, 2, 5}, 1), s_w = at::tensor({1.0, 2.0});
  const Tensor found = mipe_wrapped(x, s_w, 0, {.boundary = 9, .mipe_threshold = 256, .expand_beyond = 5.0});
  EXPECT_TRUE(found.select(2, 1).equal(x.select(2, 1)));
  EXPECT_FALSE(found.select(2, 0).equal(x.select(2, 0)));
}

TEST(MipeWrap, DecodesInChunksAndTokenByToken) {
  const auto make = [](const nlohmann::json& change) {
    auto model = make_model(testing::small_config(change), 3);
    testing::disturb(*model);
    return model;
  };
  const auto model = make({{"mipe_wrap_boundary", 11}});
  const at::NoGradGuard no_grad;
  const Tensor tokens = testing::random_tokens(1, 60, 37, 1), whole = model->hidden(tokens, {});
  const Tensor straight = make(nlohmann::json::object())->hidden(tokens, {});
  EXPECT_TRUE(whole.narrow(1, 0, 11).allclose(straight.narrow(1, 0, 11), 0, 1e-5));
  EXPECT_GT((whole - straight).abs().max().item<double>(), 1e-4);
  for (const int64_t chunk : {1, 7, 60}) {
    auto state = model->new_state({});
    Tensors parts;
    for (int64_t first = 0; first < 60; first += chunk) {
      if (first == 35) {  // goes on as a copy that was stored
        std::stringstream stored;
        state->fork()->save(stored);
        state = model->new_state({});
        state->load(stored);
      }
      DecodingState* const one = state.get();
      parts.push_back(model->decode(tokens.narrow(1, first, std::min(chunk, 60 - first)), std::span(&one, 1)));
    }
    const double error = (at::cat(parts, 1) - whole).abs().max().item<double>();
    EXPECT_LT(error, 1e-5 * whole.abs().max().item<double>()) << chunk;
  }
}

TEST(MipeWrap, ShowsInTheRelevanceMaps) {
  const auto model = make_model(testing::small_config({{"mipe_wrap_boundary", 11}}), 3);
  EXPECT_LT(testing::mass_error(*model, testing::random_tokens(1, 30, 37, 1)), 1e-5);
}

}  // namespace
}  // namespace tamis::models

#include "tamis/bench/check.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/testing.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/options.h"

namespace tamis::bench {
namespace {

using ::testing::HasSubstr;

TEST(Check, ReturnsTheLargestErrorAndRefusesMore) {
  const at::Tensor exact = at::tensor({1.0, -4.0, 2.0}, at::kDouble), small = at::tensor({1e-3}, at::kDouble);
  const std::vector<Named> found = {{"a", (exact + 0.04).to(at::kFloat)}, {"b", small * 1.02}};
  EXPECT_NEAR(check("forward", found, {{"a", exact}, {"b", small}}, 0.05), 0.02, 1e-6);
  const auto [code, text] = tamis::testing::error_of([&] {
    check("forward", found, {{"a", exact}, {"b", small}}, 0.015);
  });
  EXPECT_EQ(code, ExitCode::kRuntime);
  EXPECT_THAT(text, HasSubstr("bench: forward: b differs from its definition by 0.02 of its largest value"));
  const auto not_a_number = at::full_like(exact, std::nan(""));
  EXPECT_EQ(tamis::testing::error_of([&] {
              check("x", {{"a", not_a_number}}, {{"a", exact}}, 1);
            }).first,
            ExitCode::kRuntime);
}

TEST(Check, TheDefinitionIsTheModel) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  for (const std::string windows : {"initial", "infinite"}) {
    const auto model = make_model(/*psi=*/3, /*vocab=*/50, windows);
    const at::Tensor tokens = random_tokens(2, 90, 50);
    const at::Tensor exact = exact_hidden(*model, tokens);
    EXPECT_EQ(exact.scalar_type(), at::kDouble);
    EXPECT_LT(check("x", {{"x", model->hidden(tokens, {})}}, {{"x", exact}}, 1e-4), 1e-5);
    const auto added = [&](const at::Tensor& x) { return std::vector{added_by_layers(*model, tokens, x)}; };
    EXPECT_LT(check("layers", added(model->hidden(tokens, {})), added(exact), 1e-3), 1e-3);
    EXPECT_LT(added(exact)[0].tensor.abs().max().item<double>(), exact.abs().max().item<double>());
    EXPECT_LT(check("head", {{"head", model->head_weight()}}, {{"head", exact_head(*model)}}, 1e-4), 1e-6);
  }
}

TEST(ModelInputs, WindowsAndWeights) {
  const auto model = make_model(3, 50, "infinite");
  for (const auto& head : model->screening_heads()) EXPECT_GT(head.window, 1e30);
  const CountedWeights weights = count_weights(*model);
  EXPECT_EQ(weights.head, 50 * 9);
  EXPECT_EQ(weights.layers, 3 * 9 * (2 * 3 * 16 + 3 * 3 * 64));
  ForwardBench bench;
  bench.windows = {"initial", "infinit"};
  const auto [code, text] = tamis::testing::error_of([&] { check_options(bench); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(text, HasSubstr("did you mean \"infinite\"?"));
}

}  // namespace
}  // namespace tamis::bench

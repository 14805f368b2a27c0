#include "tamis/infer/decode.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"
#include "tamis/models/testing.h"
#include "tamis/ops/testing.h"

namespace tamis::infer {
namespace {

using at::Tensor;

TEST(Decoder, LogitsAreTheProductWithTheHeadInEveryFormat) {
  const auto model = models::make_model(models::testing::small_config({{"vocab_size", 5003}}), 3);
  const at::NoGradGuard no_gradients;
  for (const auto& [name, format] : weight_formats()) {
    SCOPED_TRACE(name);
    for (const int64_t B : {1, 3, 9}) {
      const Tensor tokens = models::testing::random_tokens(B, 30, 5003, 1);
      const auto options = forward_options(format, /*expand_windows=*/false);
      Decoder reader(*model, B, options), decoder(*model, B, options);
      Tensor last;
      reader.read(tokens, 1000, [&](const Tensor& x_BCD, int64_t) { last = x_BCD.select(1, -1); });
      const Tensor exact = last.matmul(model->head_weight().t());
      const Tensor logits = decoder.logits_after(tokens, 1000);
      const double tolerance = format == WeightFormat::kFloat32 ? 1e-6 : 0.01;
      EXPECT_EQ(logits.sizes(), exact.sizes());
      EXPECT_LT((logits - exact).abs().max().item<double>(), tolerance * exact.abs().max().item<double>()) << B;
    }
  }
}

TEST(Decoder, RefusesInt8OnOtherDevices) {
  const auto model = models::make_model(models::testing::small_config(), {.seed = std::nullopt, .device = at::kMeta});
  const auto [code, text] = tamis::testing::error_of([&] { Decoder(*model, 1, {.int8_weights = true}); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_EQ(text,
            "--weights int8: products with int8 weights need the CPU, but the model is on meta; use float32 or "
            "bfloat16, or --device cpu");
  check_weights({.int8_weights = true}, at::kCPU);
  check_weights({.compute_dtype = at::kBFloat16}, at::kMeta);
}

TEST(Decoder, ASoftCapOfTheLogitsIsApplied) {
  const auto config = models::testing::small_model({{"pattern", "ma"}, {"logit_soft_cap", 0.4}});
  const auto model = models::make_model(config, 3);
  const at::NoGradGuard no_gradients;
  for (const int64_t B : {1, 20}) {  // by rows, by a matrix product
    const Tensor tokens = models::testing::random_tokens(B, 12, 37, 1);
    Decoder decoder(*model, B, {});
    const Tensor plain = model->hidden(tokens, {}).select(1, -1).matmul(model->head_weight().t()).to(at::kDouble);
    const Tensor exact = at::tanh(plain / 0.4) * 0.4;
    EXPECT_GT((plain - exact).abs().max().item<double>(), 0.1) << "the cap matters";
    const Tensor logits = decoder.logits_after(tokens, 1000);
    EXPECT_LT((logits - exact).abs().max().item<double>(), 1e-5) << B;
  }
}

TEST(Decoder, LogitsHaveTheSameBitsForAnyNumberOfThreads) {
  const auto model = models::make_model(models::testing::small_config({{"vocab_size", 20'011}}), 3);
  const Tensor tokens = models::testing::random_tokens(1, 9, 20'011, 1);
  for (const auto& [name, format] : weight_formats()) {
    std::vector<Tensor> found;
    for (const int threads : {1, 2, 5}) {
      const ops::testing::Threads set(threads);
      Decoder decoder(*model, 1, forward_options(format, false));
      found.push_back(decoder.logits_after(tokens, 4));
      EXPECT_TRUE(found.back().equal(found.front())) << name << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace tamis::infer

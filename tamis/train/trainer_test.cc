#include "tamis/train/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tamis/base/random.h"
#include "tamis/base/testing.h"
#include "tamis/train/testing.h"

namespace tamis::train {
namespace {

using tamis::testing::error_of;
using ::testing::HasSubstr;

/// A trainer for the tiny recipe with `overrides`.
struct Tiny {
  explicit Tiny(std::vector<std::string> overrides = {})
      : recipe(load_recipe(directory.write("tiny.toml", testing::kTinyRecipe), overrides)),
        model(models::make_model(recipe.model, recipe.train.seed)),
        data(open_data(recipe, *text::make_byte_tokenizer())),
        trainer(recipe, *model, *data.training) {}

  std::vector<double> losses(int64_t steps) {
    std::vector<double> result;
    for (int64_t step = 0; step < steps; ++step) result.push_back(trainer.step(step).loss);
    return result;
  }

  tamis::testing::TemporaryDirectory directory;
  Recipe recipe;
  std::unique_ptr<models::Model> model;
  DataSet data;
  Trainer trainer;
};

double largest_difference(const models::Model& a, const models::Model& b) {
  double largest = 0;
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    const at::Tensor difference = (a.parameters()[i].tensor - b.parameters()[i].tensor).abs().max();
    largest = std::max(largest, difference.item<double>());
  }
  return largest;
}

TEST(Trainer, LearnsAndValidates) {
  Tiny tiny({"train.batch_size=16", "train.steps=60"});
  const double before = tiny.trainer.validation_loss(tiny.data.validation.at(0));
  EXPECT_NEAR(before, std::log(257.0), 0.5);
  const std::vector<double> losses = tiny.losses(60);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  EXPECT_LT(tiny.trainer.validation_loss(tiny.data.validation.at(0)), 0.7 * before);
}

TEST(Trainer, SameRecipeSameBits) {
  Tiny one, two;
  EXPECT_EQ(one.losses(4), two.losses(4));
  EXPECT_EQ(largest_difference(*one.model, *two.model), 0.0);
  Tiny other({"train.seed=2"});
  EXPECT_NE(one.losses(1), other.losses(1));
}

TEST(Trainer, AccumulationIsTheSameStepUpToRounding) {
  Tiny whole, parts({"train.accumulation=4"});
  const auto expected = whole.losses(3), got = parts.losses(3);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4);
}

TEST(Trainer, DropoutIsOfTrainingAndOfTheStepAlone) {
  for (const char* type : {"multiscreen", "transformer"}) {
    SCOPED_TRACE(type);
    const std::string model = std::string("model.model_type=") + type;
    Tiny plain({model}), some({model, "train.dropout=0.2"}), again({model, "train.dropout=0.2", "train.recompute=1"}),
        parts({model, "train.dropout=0.2", "train.accumulation=4"});
    const auto loss = [](Tiny& tiny) { return tiny.trainer.validation_loss(tiny.data.validation.at(0)); };
    EXPECT_EQ(loss(plain), loss(some)) << "validation has no dropout";
    const std::vector<double> expected = some.losses(3), in_parts = parts.losses(3);
    EXPECT_NE(plain.losses(3), expected);
    EXPECT_NE(expected[0], some.trainer.try_step(1).loss) << "each step drops others";
    EXPECT_EQ(again.losses(3), expected);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(in_parts[i], expected[i], 1e-4);
  }
}

TEST(Trainer, TheLastStepNarrowsHeadsByTheMargin) {
  Tiny plain({"train.steps=3"}), narrowed({"train.steps=3", "train.acceptance_margin=0.5"});
  EXPECT_EQ(plain.losses(2), narrowed.losses(2));
  EXPECT_EQ(largest_difference(*plain.model, *narrowed.model), 0.0);
  EXPECT_EQ(plain.trainer.step(2).loss, narrowed.trainer.step(2).loss);
  const auto before = plain.model->screening_heads(), after = narrowed.model->screening_heads();
  const auto s_r = [](double r) { return std::log(r / (1 - r)); };
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(s_r(before[i].accept) - s_r(after[i].accept), 0.5, 1e-5);
}

/// Two documents in every sequence; all targets are in the second one.
class TwoDocuments : public data::Source {
 public:
  /// `first`: what the first document says. `told`: whether the model is told that they are two.
  TwoDocuments(uint64_t first, bool told) : first_(first), told_(told) {}
  std::string name() const override { return "two documents"; }
  data::Example example(uint64_t index, int64_t length) const override {
    const int64_t begin = length / 3;  // of the second document
    Random first({first_, index}), second({index});
    data::Example example;
    for (int64_t t = 0; t < length; ++t) {
      example.tokens.push_back(static_cast<int64_t>((t < begin ? first : second).below(257)));
      example.targets.push_back(t < begin ? data::kIgnore : static_cast<int64_t>(second.below(257)));
      if (told_) example.document.push_back(t < begin ? 0 : 1);
    }
    return example;
  }

 private:
  uint64_t first_;
  bool told_;
};

/// The bits of a step: its loss, and moments that are its gradients times a constant. The gradient of a head's scalar
/// in screening is one sum over the pairs of both documents, in an order that depends on which of them are accepted:
/// those of the first document add zeros, but may change the last bit.
struct StepBits {
  double loss;
  std::vector<at::Tensor> moments;

  bool operator==(const StepBits& other) const {
    return loss == other.loss &&
           std::ranges::equal(moments, other.moments, [](const at::Tensor& a, const at::Tensor& b) {
             constexpr double kRounding = 4 * 0x1p-24;
             const bool of_heads = a.dim() == 1 && a.size(0) == kHeads;
             return a.equal(b) || (of_heads && a.allclose(b, kRounding, /*atol=*/0));
           });
  }

  static constexpr int64_t kHeads = 2;  // of the tiny recipe
};

TEST(Trainer, ADocumentNeitherSeesNorTrainsOnTheOneBeforeIt) {
  tamis::testing::TemporaryDirectory directory;
  const auto tiny = directory.write("tiny.toml", testing::kTinyRecipe);
  for (const char* pattern : {"s", "a", "w", "e", "b", "v", "m"}) {
    for (const char* setting : {"train.precision=float32", "train.precision=bfloat16", "train.recompute=1"}) {
      SCOPED_TRACE(std::string(pattern) + ", " + setting);
      const Recipe recipe = load_recipe(
          tiny, std::vector<std::string>{std::string("model.pattern=") + pattern, "model.model_type=transformer",
                                         "model.window=40", "train.accumulation=2", setting});
      const auto step = [&](uint64_t first, bool told) {
        const auto model = models::make_model(recipe.model, recipe.train.seed);
        const TwoDocuments source(first, told);
        Trainer trainer(recipe, *model, source);
        const double loss = trainer.step(0).loss;
        const auto moments = trainer.optimizer().first_moments();
        return StepBits{loss, {moments.begin(), moments.end()}};
      };
      EXPECT_EQ(step(1, true), step(2, true));
      const StepBits one = step(1, false), other = step(2, false);
      EXPECT_NE(one.loss, other.loss) << "one document: its tokens see what comes before them";
    }
  }
}

TEST(Trainer, RecomputationGivesTheSameStep) {
  Tiny kept, recomputed({"train.recompute=1"}), half({"train.recompute=0.5"});
  const std::vector<double> expected = kept.losses(3);
  EXPECT_EQ(recomputed.losses(3), expected);
  EXPECT_EQ(half.losses(3), expected);
}

TEST(Trainer, Bfloat16StaysNearFloat32) {
  Tiny float32, bfloat16({"train.precision=bfloat16"});
  EXPECT_NEAR(bfloat16.losses(1)[0], float32.losses(1)[0], 0.02);
}

TEST(Trainer, Float16StaysNearFloat32) {
  for (const char* pattern : {"s", "a", "w", "e", "b", "v", "m"}) {
    SCOPED_TRACE(pattern);
    const auto settings = [&](const std::string& precision) {
      return std::vector<std::string>{std::string("model.pattern=") + pattern, "model.model_type=transformer",
                                      "model.window=40", "train.lr=0.003", "train.precision=" + precision};
    };
    Tiny float32(settings("float32")), float16(settings("float16"));
    float16.trainer.set_loss_scale({.value = 1024});  // mLSTM overflows at 65,536
    const auto expected = float32.losses(4), got = float16.losses(4);
    EXPECT_NEAR(got[0], expected[0], 1e-3);
    for (size_t i = 1; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 5e-3);
    EXPECT_NE(got, expected);
    EXPECT_EQ(float16.trainer.loss_scale().good_steps, 4);
  }
}

TEST(Trainer, TheLossScaleKeepsSmallGradients) {
  Tiny float32, scaled({"train.precision=float16"}), unscaled({"train.precision=float16"});
  unscaled.trainer.set_loss_scale({.value = std::ldexp(1, -12)});  // as without one and with 4,096 times the tokens
  const auto norms = [](Tiny& tiny) { return tiny.trainer.step(0).gradient_norms; };
  const GradientNorms expected = norms(float32), got = norms(scaled), without = norms(unscaled);
  double error = 0, error_without = 0;
  for (const auto& [group, norm] : expected.groups) {
    error = std::max(error, std::abs(got.groups.at(group) / norm - 1));
    error_without = std::max(error_without, std::abs(without.groups.at(group) / norm - 1));
  }
  EXPECT_LT(error, 0.01);
  EXPECT_GT(error_without, 10 * error);
}

TEST(Trainer, AnOverflowSkipsTheStepAndHalvesTheLossScale) {
  Tiny tiny({"train.precision=float16"}), untouched({"train.precision=float16"});
  tiny.trainer.set_loss_scale({.value = std::ldexp(1, 60), .good_steps = 7});
  const StepResult skipped = tiny.trainer.step(0);
  EXPECT_TRUE(skipped.overflowed);
  EXPECT_TRUE(std::isfinite(skipped.loss));
  EXPECT_EQ(tiny.trainer.loss_scale(), (LossScale{.value = std::ldexp(1, 59)}));
  EXPECT_EQ(largest_difference(*tiny.model, *untouched.model), 0.0);
  const auto [code, text] = error_of([&] { tiny.trainer.try_step(1); });
  EXPECT_EQ(code, ExitCode::kDiverged);
  EXPECT_THAT(text, HasSubstr("step 2: a gradient overflows float16 at the loss scale 5.7646"));
  EXPECT_EQ(tiny.trainer.loss_scale(), (LossScale{.value = std::ldexp(1, 59)}));
  while (tiny.trainer.step(0).overflowed) ASSERT_GT(tiny.trainer.loss_scale().value, 65536);
  EXPECT_GT(largest_difference(*tiny.model, *untouched.model), 0.0);
  EXPECT_EQ(tiny.trainer.loss_scale().good_steps, 1);
}

TEST(Trainer, TheLossScaleIsDividedOutOfGradients) {
  Tiny one({"train.precision=float16"}), two({"train.precision=float16"});
  two.trainer.set_loss_scale({.value = 16384});
  const double a = one.trainer.step(0).gradient_norms.all, b = two.trainer.step(0).gradient_norms.all;
  EXPECT_NEAR(a / b, 1, 1e-3) << "only numbers below the normal range of float16 differ";
}

TEST(LossScale, DoublesAfterGoodSteps) {
  LossScale scale;
  for (int64_t step = 0; step < LossScale::kGoodSteps - 1; ++step) scale.update(false);
  EXPECT_EQ(scale, (LossScale{.value = 65536, .good_steps = LossScale::kGoodSteps - 1}));
  scale.update(false);
  EXPECT_EQ(scale, (LossScale{.value = 131072, .good_steps = 0}));
  scale.update(false);
  scale.update(true);
  EXPECT_EQ(scale, (LossScale{.value = 65536, .good_steps = 0}));
  for (int step = 0; step < 20; ++step) scale.update(true);
  EXPECT_EQ(scale.value, 1);
  EXPECT_FALSE(scale.can_fall());
}

TEST(Trainer, ClipsGradients) {
  Tiny free, clipped({"train.clip=0.001"});
  EXPECT_EQ(free.trainer.step(0).gradient_norms.all, clipped.trainer.step(0).gradient_norms.all);
  EXPECT_GT(free.trainer.optimizer().first_moments()[0].norm().item<double>(),
            10 * clipped.trainer.optimizer().first_moments()[0].norm().item<double>());
}

TEST(Trainer, StochasticWindowsAreDrawnPerStepAndEndLong) {
  TrainRecipe recipe{.steps = 1000, .window_short = 16, .window_short_share = 0.75, .window_long_last = 0.1};
  int64_t drawn = 0;
  for (int64_t step = 0; step < 900; ++step) {
    const auto window = stochastic_window(recipe, step);
    EXPECT_EQ(window.value_or(16), 16);
    drawn += window.has_value();
    EXPECT_EQ(window, stochastic_window(recipe, step));
  }
  EXPECT_NEAR(static_cast<double>(drawn) / 900, 0.75, 0.05);
  for (int64_t step = 900; step < 1000; ++step) EXPECT_FALSE(stochastic_window(recipe, step));
  recipe.window_short = 0;
  for (int64_t step = 0; step < 900; ++step) EXPECT_FALSE(stochastic_window(recipe, step));
}

TEST(Trainer, AShortWindowRestrictsSlidingWindows) {
  const std::vector<std::string> swax = {"model.model_type=transformer", "model.pattern=w", "model.window=64",
                                         "train.window_long_last=0"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), swax.begin(), swax.end());
    return Tiny(more).losses(1).front();
  };
  const double longest = with({}), shortest = with({"train.window_short=2", "train.window_short_share=1"});
  EXPECT_NE(longest, shortest);
  EXPECT_EQ(shortest, with({"train.window_short=2", "train.window_short_share=1"}));
  EXPECT_EQ(longest, with({"train.window_short=2", "train.window_short_share=0"}));
}

TEST(Trainer, DivergenceNamesTheFirstActivation) {
  Tiny tiny;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : tiny.trainer.optimizer().parameters()) {
    // exp(s_O) is infinite, so the output of layer 1 is the first non-finite activation.
    if (parameter.name == "layers.1.s_O") parameter.tensor.fill_(1e4);
  }
  const at::AutoGradMode grad(true);
  const auto [code, text] = error_of([&] { tiny.trainer.step(0); });
  EXPECT_EQ(code, ExitCode::kDiverged);
  EXPECT_THAT(text, HasSubstr("step 1: diverged: loss "));
  EXPECT_THAT(text, HasSubstr("first non-finite tensor: activation layers.1;"));
}

TEST(Trainer, ANormThatOverflowsFloat32IsDivergence) {
  Tiny tiny({"train.clip=1e-44"});
  const auto [code, text] = error_of([&] { tiny.trainer.step(0); });
  EXPECT_EQ(code, ExitCode::kDiverged);
  EXPECT_THAT(text, HasSubstr("step 1: diverged: the gradient norm "));
}

TEST(Trainer, DivergenceNamesTheTensor) {
  Tiny tiny;
  const auto& parameter = tiny.trainer.optimizer().parameters()[2];
  tiny.trainer.check_parameters(0);
  parameter.tensor.detach().fill_(NAN);
  const auto [code, text] = error_of([&] { tiny.trainer.step(0); });
  EXPECT_EQ(code, ExitCode::kDiverged);
  EXPECT_THAT(text, HasSubstr("first non-finite tensor: parameter " + parameter.name));
  const auto [check_code, check] = error_of([&] { tiny.trainer.check_parameters(7); });
  EXPECT_EQ(check_code, ExitCode::kDiverged);
  EXPECT_THAT(check, HasSubstr("step 7: diverged: parameter " + parameter.name));
}

}  // namespace
}  // namespace tamis::train

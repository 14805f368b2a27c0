#include "tamis/eval/loss_eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/random.h"
#include "tamis/base/testing.h"
#include "tamis/infer/score.h"
#include "tamis/infer/testing.h"

namespace tamis::eval {
namespace {

using tamis::testing::error_of;
using ::testing::HasSubstr;

class LossEval : public ::testing::Test {
 protected:
  static std::string text(size_t bytes) {
    Random random({17});
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(random.below(256));  // mostly invalid UTF-8
    return text;
  }

  tamis::testing::TemporaryDirectory directory_;
  infer::LoadedModel loaded_ = infer::load(infer::testing::write_checkpoint(directory_.path() / "model"));
};

TEST_F(LossEval, IsTheMeanOfTheScoresInEveryWindow) {
  const std::string bytes = text(151);  // 150 predicted: 7 windows of 20 and one of 10
  const auto result = evaluate_loss(loaded_, bytes, {.window_tokens = 20, .chunk_tokens = 64});
  const auto ids = loaded_.tokenizer->encode(bytes);
  double sum = 0;
  std::vector<double> by_bin(6);
  std::vector<int64_t> counts(6);
  for (size_t start = 0; start < 150; start += 20) {
    const size_t length = std::min<size_t>(20, 150 - start);
    const auto scores = infer::score(*loaded_.model, {ids.data() + start, length + 1});
    for (size_t t = 0; t < length; ++t) {
      const size_t bin = t == 0 ? 0 : static_cast<size_t>(std::floor(std::log2(t))) + 1;
      sum -= scores[t + 1];
      by_bin[bin] -= scores[t + 1];
      ++counts[bin];
    }
  }
  EXPECT_EQ(result.window_tokens, 20);
  EXPECT_EQ(result.tokens, 150);
  EXPECT_EQ(result.bytes, 150);
  EXPECT_NEAR(result.nats_per_token, sum / 150, 1e-5);
  EXPECT_DOUBLE_EQ(result.nats_per_byte, result.nats_per_token);
  EXPECT_DOUBLE_EQ(result.perplexity, std::exp(result.nats_per_token));
  ASSERT_EQ(result.by_position.size(), 6u);
  for (size_t bin = 0; bin < 6; ++bin) {
    EXPECT_EQ(result.by_position[bin].tokens, counts[bin]);
    EXPECT_NEAR(result.by_position[bin].loss, by_bin[bin] / static_cast<double>(counts[bin]), 1e-5);
  }
  EXPECT_EQ(result.by_position[4].first, 8);
  EXPECT_EQ(result.by_position[4].last, 15);
  EXPECT_EQ(result.by_position[5].last, 19);
}

TEST_F(LossEval, WindowDefaultsToTheTrainingLengthAndIsCutToTheText) {
  EXPECT_EQ(evaluate_loss(loaded_, text(300), {}).window_tokens, 32);
  const auto result = evaluate_loss(loaded_, text(2), {});
  EXPECT_EQ(result.window_tokens, 1);
  EXPECT_EQ(result.tokens, 1);
  EXPECT_EQ(result.by_position.size(), 1u);
}

TEST_F(LossEval, RefusesTooLittleText) {
  for (const size_t bytes : {0, 1}) {
    const auto [code, message] = error_of([&] { evaluate_loss(loaded_, text(bytes), {}); });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(message, HasSubstr(std::to_string(bytes) + " tokens; expected at least 2"));
  }
  EXPECT_EQ(error_of([&] { evaluate_loss(loaded_, text(9), {.window_tokens = -1}); }).first, ExitCode::kUsage);
}

TEST_F(LossEval, PointsAreMeansAroundTheirPositions) {
  const std::string bytes = text(121);  // 6 windows of 20
  const auto every = evaluate_loss(loaded_, bytes, {.window_tokens = 20, .points = 50});
  ASSERT_EQ(every.points.size(), 20u);  // not more than positions
  const auto ids = loaded_.tokenizer->encode(bytes);
  std::vector<double> losses(20);
  for (size_t start = 0; start < 120; start += 20) {
    const auto scores = infer::score(*loaded_.model, {ids.data() + start, 21});
    for (size_t t = 0; t < 20; ++t) losses[t] -= scores[t + 1] / 6;
  }
  for (size_t t = 0; t < 20; ++t) {
    EXPECT_EQ(every.points[t].first, t);
    EXPECT_EQ(every.points[t].last, t);
    EXPECT_EQ(every.points[t].tokens, 6);
    EXPECT_NEAR(every.points[t].loss, losses[t], 1e-5);
  }
  const auto few = evaluate_loss(loaded_, bytes, {.window_tokens = 20, .points = 4, .smooth = 0.3});
  ASSERT_EQ(few.points.size(), 4u);
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 4}, {4, 10}, {9, 15}, {15, 19}};  // 2, 7, 12, 17
  for (size_t i = 0; i < 4; ++i) {
    const auto [first, last] = expected[i];
    EXPECT_EQ(few.points[i].first, first);
    EXPECT_EQ(few.points[i].last, last);
    EXPECT_EQ(few.points[i].tokens, 6 * (last - first + 1));
    double sum = 0;
    for (int64_t t = first; t <= last; ++t) sum += losses[static_cast<size_t>(t)];
    EXPECT_NEAR(few.points[i].loss, sum / static_cast<double>(last - first + 1), 1e-5);
  }
  EXPECT_EQ(every.nats_per_token, few.nats_per_token);
}

TEST_F(LossEval, ReadsTheMiddleOfEachTextThatIsLongEnough) {
  const std::string all = text(200);
  const std::string_view a(all.data(), 100), b(all.data() + 100, 20), c(all.data() + 120, 21);
  const std::vector<std::string_view> texts = {a, b, c};
  const auto middle = evaluate_loss(loaded_, texts, {.window_tokens = 20, .middle = true});
  // 100 tokens: 99 are predicted, 39 before the window.
  const auto of_a = evaluate_loss(loaded_, a.substr(39, 21), {.window_tokens = 20});
  const auto of_c = evaluate_loss(loaded_, c, {.window_tokens = 20});
  EXPECT_EQ(middle.texts, 2);
  EXPECT_EQ(middle.texts_left_out, 1);
  EXPECT_EQ(middle.tokens, 40);
  EXPECT_EQ(middle.bytes, 40);
  EXPECT_NEAR(middle.nats_per_token, (of_a.nats_per_token + of_c.nats_per_token) / 2, 1e-6);
  const auto [code, message] = error_of([&] { evaluate_loss(loaded_, texts, {.window_tokens = 100, .middle = true}); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(message, HasSubstr("no text is long enough for a window of 100 tokens"));
  EXPECT_THAT(message, HasSubstr("the longest has 100 tokens"));
}

TEST_F(LossEval, WindowsDoNotReachFromOneTextIntoTheNext) {
  const std::string all = text(90);
  const std::vector<std::string_view> texts = {std::string_view(all).substr(0, 50), std::string_view(all).substr(50)};
  const LossEvalOptions options{.window_tokens = 16};
  const auto both = evaluate_loss(loaded_, texts, options);
  const auto first = evaluate_loss(loaded_, texts[0], options), second = evaluate_loss(loaded_, texts[1], options);
  EXPECT_EQ(both.texts, 2);
  EXPECT_EQ(both.tokens, 49 + 39);
  EXPECT_EQ(both.bytes, first.bytes + second.bytes);
  EXPECT_NEAR(both.nats_per_token, (49 * first.nats_per_token + 39 * second.nats_per_token) / 88, 1e-6);
}

TEST_F(LossEval, NamesATextThatIsTooShort) {
  const std::vector<std::string_view> texts = {"long enough", "x"};
  EXPECT_THAT(error_of([&] { evaluate_loss(loaded_, texts, {}); }).second, HasSubstr("text 2 of 2 has 1 tokens"));
  EXPECT_EQ(evaluate_loss(loaded_, texts, {.window_tokens = 4, .middle = true}).texts, 1);
}

TEST_F(LossEval, RefusesPointsAndSharesOutOfRange) {
  for (const LossEvalOptions& options :
       {LossEvalOptions{.points = -1}, LossEvalOptions{.points = 2000000}, LossEvalOptions{.points = 4, .smooth = 1.5},
        LossEvalOptions{.points = 4, .smooth = -0.1}, LossEvalOptions{.smooth = 0.1}}) {
    EXPECT_EQ(error_of([&] { evaluate_loss(loaded_, text(9), options); }).first, ExitCode::kUsage);
  }
}

TEST_F(LossEval, JsonAndTableAgree) {
  const auto result = evaluate_loss(loaded_, text(100), {});
  const nlohmann::json json = to_json(result);
  EXPECT_EQ(json["task"], "loss");
  EXPECT_EQ(json["nats_per_token"], result.nats_per_token);
  EXPECT_EQ(json["by_position"].size(), result.by_position.size());
  EXPECT_THAT(to_table(result), HasSubstr(fmt::format("{:.4f} nats per token", result.nats_per_token)));
}

}  // namespace
}  // namespace tamis::eval

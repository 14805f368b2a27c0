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

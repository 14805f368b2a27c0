#include "tamis/infer/score.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/testing.h"
#include "tamis/infer/load.h"
#include "tamis/infer/testing.h"

namespace tamis::infer {
namespace {

using models::testing::random_tokens;
using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::HasSubstr;

class Score : public ::testing::Test {
 protected:
  static std::vector<int64_t> ids(int64_t count) {
    const at::Tensor tokens = random_tokens(1, count, 257, /*seed=*/9);
    return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + count};
  }

  std::string ids_error(const std::string& text) const {
    const auto [code, message] = error_of([&] { read_ids(directory_.write("ids.json", text), 257); });
    EXPECT_EQ(code, ExitCode::kInput);
    return message;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<models::Model> model_ = load_model(testing::write_checkpoint(directory_.path() / "model"));
};

TEST_F(Score, IsTheSoftmaxOfTheWholeForwardPass) {
  for (const int64_t count : {2, 3, 100}) {
    const auto tokens = ids(count);
    const at::NoGradGuard no_gradients;
    const at::Tensor tokens_1T = at::tensor(tokens).unsqueeze(0);
    const at::Tensor x_TD = model_->hidden(tokens_1T, {}).squeeze(0).to(at::kDouble);
    const at::Tensor expected_TN = at::log_softmax(x_TD.matmul(model_->head_weight().to(at::kDouble).t()), -1);
    const auto scored = score(*model_, tokens);
    ASSERT_EQ(scored.size(), tokens.size());
    EXPECT_TRUE(std::isnan(scored[0]));
    for (int64_t t = 1; t < count; ++t) {
      EXPECT_NEAR(scored[t], expected_TN[t - 1][tokens[t]].item<double>(), 2e-5) << t;
    }
  }
}

TEST_F(Score, ASoftCapOfTheLogitsIsApplied) {
  const auto model =
      models::make_model(models::testing::small_model({{"vocab_size", 257}, {"logit_soft_cap", 0.4}}), 3);
  const auto tokens = ids(40);
  const at::NoGradGuard no_gradients;
  const at::Tensor x_TD = model->hidden(at::tensor(tokens).unsqueeze(0), {}).squeeze(0).to(at::kDouble);
  const at::Tensor plain_TN = x_TD.matmul(model->head_weight().to(at::kDouble).t());
  const at::Tensor expected_TN = at::log_softmax(0.4 * at::tanh(plain_TN / 0.4), -1);
  const auto scored = score(*model, tokens);
  for (int64_t t = 1; t < 40; ++t) EXPECT_NEAR(scored[t], expected_TN[t - 1][tokens[t]].item<double>(), 2e-5) << t;
}

TEST_F(Score, DoesNotDependOnTheChunks) {
  const auto tokens = ids(200);
  const auto whole = score(*model_, tokens);
  for (const int64_t chunk : {1, 7, 64, 199}) {
    const auto chunked = score(*model_, tokens, {.chunk_tokens = chunk});
    for (size_t t = 1; t < tokens.size(); ++t) EXPECT_NEAR(chunked[t], whole[t], 2e-5) << chunk << " " << t;
  }
}

TEST_F(Score, ADocumentDoesNotSeeTheOneBefore) {
  constexpr int64_t kEnd = 256;
  std::vector<int64_t> tokens = ids(30);
  std::ranges::replace(tokens, kEnd, int64_t{0});
  tokens[11] = tokens[12] = kEnd;  // documents of 12, 1 and 17 tokens
  const auto together = score(*model_, tokens, {.document_end = kEnd});
  const auto expect_alone = [&](size_t first, size_t last) {
    const auto alone = score(*model_, std::span(tokens).subspan(first, last - first));
    EXPECT_TRUE(std::isnan(together[first])) << first;
    for (size_t t = first + 1; t < last; ++t) EXPECT_EQ(together[t], alone[t - first]) << t;
  };
  expect_alone(0, 12);
  expect_alone(12, 13);
  expect_alone(13, 30);
  EXPECT_NE(score(*model_, tokens)[14], together[14]);
}

TEST_F(Score, ProbabilitiesOfAllTokensAddUpToOne) {
  auto tokens = ids(40);
  double sum = 0;
  for (int64_t id = 0; id < 257; ++id) {
    tokens.back() = id;
    sum += std::exp(score(*model_, tokens).back());
  }
  EXPECT_NEAR(sum, 1, 1e-4);
}

TEST_F(Score, OneTokenHasNoProbability) {
  const auto scored = score(*model_, std::vector<int64_t>{5});
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_TRUE(std::isnan(scored[0]));
}

TEST_F(Score, RefusesIdsOutsideTheVocabulary) {
  EXPECT_THAT(error_of([&] { score(*model_, std::vector<int64_t>{}); }).second, HasSubstr("no tokens"));
  for (const int64_t id : {-1, 257}) {
    const auto [code, message] = error_of([&] { score(*model_, std::vector<int64_t>{1, id}); });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(message, HasSubstr("token 1 is " + std::to_string(id)));
    EXPECT_THAT(message, HasSubstr("0..256"));
  }
}

TEST_F(Score, ReadsAListOfIds) {
  EXPECT_THAT(read_ids(directory_.write("ids.json", "[0, 256,\n 17]"), 257), ::testing::ElementsAre(0, 256, 17));
}

TEST_F(Score, RefusesOtherFilesOfIds) {
  EXPECT_THAT(ids_error(""), HasSubstr("is not JSON"));
  EXPECT_THAT(ids_error("[1, 2"), HasSubstr("is not JSON"));
  EXPECT_THAT(ids_error("\xff"), HasSubstr("is not JSON"));
  EXPECT_THAT(ids_error("{\"tokens\": [1]}"), HasSubstr("expected a list, but it is an object"));
  EXPECT_THAT(ids_error("[]"), HasSubstr("is empty"));
  EXPECT_THAT(ids_error("[1, 2.0]"), HasSubstr("entry 1 is of type number; expected an integer"));
  EXPECT_THAT(ids_error("[\"1\"]"), HasSubstr("entry 0 is of type string"));
  EXPECT_THAT(ids_error("[true]"), HasSubstr("entry 0 is of type boolean"));
  EXPECT_THAT(ids_error("[null]"), HasSubstr("entry 0 is of type null"));
  EXPECT_THAT(ids_error("[1, 257]"), HasSubstr("entry 1 is 257, but the model's vocabulary is 0..256"));
  EXPECT_THAT(ids_error("[-1]"), HasSubstr("entry 0 is -1"));
  EXPECT_THAT(ids_error("[18446744073709551615]"), HasSubstr("entry 0 is 18446744073709551615"));
  EXPECT_THAT(ids_error("[99999999999999999999]"), HasSubstr("entry 0 is of type number"));
  const auto [code, message] = error_of([&] { read_ids(directory_.path(), 257); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(message, HasSubstr(directory_.path().string()));
}

}  // namespace
}  // namespace tamis::infer

#include "tamis/infer/generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/testing.h"
#include "tamis/text/utf8.h"

namespace tamis::infer {
namespace {

using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::HasSubstr;

class Generate : public ::testing::Test {
 protected:
  /// Greedy tokens by running the whole text through the model at every step.
  std::vector<int64_t> greedy(std::string_view prompt, int64_t count,
                              const models::ForwardOptions& options = {}) const {
    const at::NoGradGuard no_gradients;
    auto ids = loaded_.tokenizer->encode(prompt);
    for (int64_t step = 0; step < count; ++step) {
      const at::Tensor x_D = loaded_.model->hidden(at::tensor(ids).unsqueeze(0), options)[0][-1];
      ids.push_back(loaded_.model->head_weight().mv(x_D).argmax().item<int64_t>());
    }
    return {ids.end() - count, ids.end()};
  }

  TemporaryDirectory directory_;
  LoadedModel loaded_ = load(testing::write_checkpoint(directory_.path() / "model"));
};

TEST_F(Generate, GreedyIsTheArgmaxOfTheWholeForwardPass) {
  const std::string prompt = "the quick brown fox jumps over the lazy dog; pack my box";  // longer than it was trained
  const auto expected = greedy(prompt, 12);
  for (const int64_t chunk : {1, 5, 512}) {
    EXPECT_EQ(generate(loaded_, prompt, {.max_new_tokens = 12, .prefill_tokens = chunk}).tokens, expected) << chunk;
  }
  EXPECT_EQ(generate(loaded_, prompt, {.max_new_tokens = 12, .expand_windows = true}).tokens,
            greedy(prompt, 12, {.expand_windows = true}));
}

TEST_F(Generate, StreamsTheTextThatItReturns) {
  std::string streamed;
  const GenerateOptions options{.max_new_tokens = 300, .sampling = {.temperature = 2, .seed = 4}};
  const auto made = generate(loaded_, "a", options, [&](std::string_view piece) {
    EXPECT_EQ(text::valid_utf8(piece), piece);  // random bytes are seldom valid; what is shown always is
    streamed += piece;
  });
  EXPECT_EQ(streamed, made.text);
  EXPECT_EQ(made.prompt_tokens, 1);
  EXPECT_GT(made.state_bytes, 0);
  if (made.end == Generation::End::kLength) {
    EXPECT_EQ(made.tokens.size(), 300u);
    EXPECT_EQ(made.text, text::valid_utf8(loaded_.tokenizer->decode(made.tokens)));
  }
  EXPECT_EQ(generate(loaded_, "a", options).tokens, made.tokens);
  EXPECT_NE(generate(loaded_, "a", {.max_new_tokens = 300, .sampling = {.temperature = 2, .seed = 5}}).tokens,
            made.tokens);
}

TEST_F(Generate, EndsBeforeAStopString) {
  const GenerateOptions options{.max_new_tokens = 400, .sampling = {.temperature = 3, .seed = 1}};
  const auto whole = generate(loaded_, "a", options);
  const std::string bytes = loaded_.tokenizer->decode(whole.tokens);
  ASSERT_GT(bytes.size(), 60u);
  GenerateOptions stopping = options;
  stopping.stop = {bytes.substr(40, 3)};
  const auto made = generate(loaded_, "a", stopping);
  EXPECT_EQ(made.end, Generation::End::kStopString);
  EXPECT_EQ(made.text, text::valid_utf8(bytes.substr(0, bytes.find(stopping.stop[0]))));
  EXPECT_LE(made.tokens.size(), 43u);
}

TEST_F(Generate, EndsAtEndOfText) {
  // At a high temperature every token is about equally likely, end of text too.
  const auto made = generate(loaded_, "a", {.max_new_tokens = 20'000, .sampling = {.temperature = 1e6, .seed = 2}});
  EXPECT_EQ(made.end, Generation::End::kEndOfText);
  EXPECT_EQ(made.tokens.back(), 256);
  EXPECT_THAT(made.text, ::testing::Not(HasSubstr("<|endoftext|>")));
}

TEST_F(Generate, TakesAnyBytesAsPrompt) {
  EXPECT_EQ(generate(loaded_, "\xff\xfe\x80", {.max_new_tokens = 3}).prompt_tokens, 3);
  EXPECT_EQ(generate(loaded_, std::string_view("\0\0", 2), {.max_new_tokens = 3}).prompt_tokens, 2);
}

TEST_F(Generate, RefusesBadOptions) {
  const auto error = [&](std::string_view prompt, const GenerateOptions& options) {
    const auto [code, text] = error_of([&] { generate(loaded_, prompt, options); });
    EXPECT_EQ(code, ExitCode::kUsage);
    return text;
  };
  EXPECT_THAT(error("", {}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(error("a", {.max_new_tokens = 0}), HasSubstr("max-new-tokens must be at least 1, but is 0"));
  EXPECT_THAT(error("a", {.sampling = {.top_p = 2}}), HasSubstr("top-p"));
  EXPECT_THAT(error("a", {.stop = {""}}), HasSubstr("stop string is empty"));
}

TEST(Decoder, APromptThatMemoryCannotHoldIsRefusedBeforeItIsRead) {
  const auto model = models::make_model(models::testing::small_config(), 1);
  for (const auto& parameter : model->parameters()) {
    if (parameter.name == "layers.0.s_w") parameter.tensor.detach().fill_(1e30);  // infinite windows
  }
  Decoder decoder(*model, 1, {});
  const at::Tensor prompt = at::zeros({1, 1}, at::kLong).expand({1, int64_t{1} << 45});  // one number, many times
  const auto [code, text] = error_of([&] { decoder.logits_after(prompt, 2048); });
  EXPECT_EQ(code, ExitCode::kRuntime);
  EXPECT_THAT(text, HasSubstr("the decoding state of 1 x 35184372088832 tokens needs "));
  EXPECT_EQ(decoder.logits_after(prompt.narrow(1, 0, 5000), 2048).size(1), 37) << "what fits is read";
}

TEST(Load, NamesWhatIsWrong) {
  const TemporaryDirectory directory;
  const auto error = [](const std::filesystem::path& path) {
    const auto [code, text] = error_of([&] { load(path); });
    EXPECT_EQ(code, ExitCode::kInput);
    return text;
  };
  EXPECT_THAT(error(directory.path() / "none"), HasSubstr("none"));
  EXPECT_THAT(error(directory.write("file", "text")), HasSubstr("file"));

  const auto other = testing::write_checkpoint(directory.path() / "other", /*vocab_size=*/300);
  EXPECT_THAT(error(other), HasSubstr("the model has a vocabulary of 300, but its byte tokenizer one of 257"));
  EXPECT_EQ(load_model(other)->vocab_size(), 300);

  const auto bare = testing::write_checkpoint(directory.path() / "bare");
  std::filesystem::remove(bare / "tokenizer.json");
  EXPECT_THAT(error(bare), HasSubstr("tokenizer.json"));
}

TEST(Load, TakesTheNewestCheckpointOfARun) {
  const TemporaryDirectory directory;
  testing::write_checkpoint(directory.path() / "checkpoints" / "step-20");
  testing::write_checkpoint(directory.path() / "checkpoints" / "step-100");
  EXPECT_EQ(load(directory.path()).checkpoint.filename(), "step-100");
}

}  // namespace
}  // namespace tamis::infer

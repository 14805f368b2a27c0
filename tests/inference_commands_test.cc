// Tests of `tamis eval`, `score` and `generate` that run the program in its own process.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tamis/base/files.h"
#include "tamis/base/testing.h"
#include "tamis/infer/load.h"
#include "tamis/infer/score.h"
#include "tamis/infer/testing.h"

namespace tamis {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

class InferenceCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    // A run directory with one checkpoint.
    checkpoint_ = infer::testing::write_checkpoint(path() / "run" / "checkpoints" / "step-5");
    run_ = (path() / "run").string();
  }

  const fs::path& path() const { return directory_.path(); }

  /// Runs the program with these arguments, without a shell, and with `input` as standard input.
  Outcome tamis(std::vector<std::string> arguments, std::string_view input = "") const {
    write_file_atomic(path() / "in", input);
    arguments.insert(arguments.begin(), TAMIS_PROGRAM);
    const pid_t child = fork();
    if (child == 0) {
      const auto redirect = [](const fs::path& file, int flags, int descriptor) {
        if (dup2(open(file.c_str(), flags, 0600), descriptor) < 0) _exit(126);
      };
      redirect(path() / "in", O_RDONLY, STDIN_FILENO);
      redirect(path() / "out", O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
      redirect(path() / "err", O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(TAMIS_PROGRAM, argv.data());
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    return {WEXITSTATUS(status), read_file(path() / "out"), read_file(path() / "err")};
  }

  /// Expects one line on stderr that contains `text`, and nothing on stdout.
  void expect_refused(const std::vector<std::string>& arguments, int code, const std::string& text,
                      std::string_view input = "") const {
    const Outcome outcome = tamis(arguments, input);
    SCOPED_TRACE(::testing::PrintToString(arguments));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }

  tamis::testing::TemporaryDirectory directory_;
  fs::path checkpoint_;
  std::string run_;
};

TEST_F(InferenceCommands, ScorePrintsExactlyTokensAndLogprobs) {
  const auto text = directory_.write("text", "Tamis \xff sieve");
  const Outcome outcome = tamis({"score", run_, text.string(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, ::testing::StartsWith("{\"tokens\":[84,97,109,105,115,32,255,"));
  const json scored = json::parse(outcome.out);
  ASSERT_EQ(scored.size(), 2u);
  ASSERT_EQ(scored["logprobs"].size(), 13u);
  EXPECT_TRUE(scored["logprobs"][0].is_null());
  const auto model = infer::load_model(checkpoint_);
  const auto expected = infer::score(*model, scored["tokens"].get<std::vector<int64_t>>());
  for (size_t t = 1; t < 13; ++t) EXPECT_NEAR(scored["logprobs"][t].get<double>(), expected[t], 1e-5);

  const auto ids = directory_.write("ids", scored["tokens"].dump());
  EXPECT_EQ(tamis({"score", run_, "--ids", ids.string(), "--json"}).out, outcome.out);
  EXPECT_EQ(tamis({"score", run_, "--ids", ids.string(), "--json", "--threads", "1"}).out, outcome.out);
}

TEST_F(InferenceCommands, ScoreNeedsNoTokenizerForIds) {
  const auto other = infer::testing::write_checkpoint(path() / "other", /*vocab_size=*/64);
  fs::remove(other / "tokenizer.json");
  const Outcome outcome = tamis({"score", other.string(), "--ids", directory_.write("ids", "[63]").string(), "--json"});
  EXPECT_EQ(outcome.out, "{\"tokens\":[63],\"logprobs\":[null]}\n") << outcome.err;
}

TEST_F(InferenceCommands, ScorePrintsATable) {
  const Outcome outcome = tamis({"score", run_, directory_.write("text", "a\n").string()});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("97            -  \"a\"\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\"\\n\"\nmean of 1 tokens: -"));
}

TEST_F(InferenceCommands, ScoreRefusesBadInput) {
  const auto ids = [&](const std::string& text) { return directory_.write("ids", text).string(); };
  const auto text = directory_.write("text", "text").string();
  expect_refused({"score", run_}, 2, "expected either a text file or --ids FILE");
  expect_refused({"score", run_, text, "--ids", ids("[1]")}, 2, "expected either a text file or --ids FILE");
  expect_refused({"score", run_, directory_.write("empty", "").string()}, 3, "empty: is empty");
  expect_refused({"score", run_, path().string()}, 3, path().string());
  expect_refused({"score", run_, (path() / "none").string()}, 3, "none");
  expect_refused({"score", (path() / "none").string(), text}, 3, "none");
  expect_refused({"score", text, text}, 3, text);
  expect_refused({"score", run_, "--ids", ids("[257]")}, 3, "entry 0 is 257, but the model's vocabulary is 0..256");
  expect_refused({"score", run_, "--ids", ids("[1, \"2\"]")}, 3, "entry 1 is of type string");
  expect_refused({"score", run_, "--ids", ids("[]")}, 3, "is empty");
  expect_refused({"score", run_, text, "--threads", "-1"}, 2, "--threads must be in 0..");
  expect_refused({"score", run_, text, "--device", "cudaa"}, 2, "unknown device \"cudaa\"; did you mean \"cuda\"?");
}

TEST_F(InferenceCommands, WindowsThatOverflowAreInfiniteAndNonFiniteOnesRefused) {
  const auto text = directory_.write("text", std::string(300, 'x')).string();
  const auto with_width = [&](double s_w) {
    const auto model = infer::load_model(checkpoint_);
    for (const auto& parameter : model->parameters()) {
      if (parameter.name == "layers.1.s_w") parameter.tensor.detach()[0].fill_(s_w);
    }
    const fs::path checkpoint = path() / "windows";
    fs::copy(checkpoint_, checkpoint, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    models::save_model(*model, checkpoint);
    return checkpoint.string();
  };
  const double narrow =
      json::parse(tamis({"inspect", with_width(0), "--json"}).out)["flops_per_token"]["similarities"].get<double>();
  for (const double s_w : {95.0, 1e30}) {
    const std::string checkpoint = with_width(s_w);
    EXPECT_THAT(tamis({"inspect", checkpoint}).out, HasSubstr(s_w > 100 ? "  inf" : " 1.8e+41"));
    const json inspected = json::parse(tamis({"inspect", checkpoint, "--text", text, "--json"}).out);
    EXPECT_EQ(inspected["tiles"][4]["window"].is_null(), s_w > 100);
    EXPECT_EQ(inspected["flops_per_token"]["length"], 32);
    EXPECT_GT(inspected["flops_per_token"]["similarities"].get<double>(), narrow + 2 * 6 * 12)
        << "an infinite window shows 16.5 keys to a query of 32, the one before a few";
    EXPECT_EQ(tamis({"score", checkpoint, text}).code, 0);
    EXPECT_EQ(tamis({"generate", checkpoint, "--prompt", "ab", "--max-new-tokens", "3"}).code, 0);
    EXPECT_EQ(tamis({"eval", "loss", checkpoint, text}).code, 0);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double s_w : {infinity, -infinity, std::nan("")}) {
    const std::string checkpoint = with_width(s_w);
    const std::string complaint = "layers.1.s_w holds numbers that are not finite";
    expect_refused({"inspect", checkpoint}, 3, complaint);
    expect_refused({"score", checkpoint, text}, 3, complaint);
    expect_refused({"generate", checkpoint, "--prompt", "ab"}, 3, complaint);
  }
}

TEST_F(InferenceCommands, CudaIsRefusedWithoutAGpu) {
  if (at::hasCUDA()) GTEST_SKIP() << "this machine has a GPU";
  expect_refused({"generate", run_, "--prompt", "a", "--device", "cuda"}, 2, "--device cuda: this build of LibTorch");
}

TEST_F(InferenceCommands, GenerateContinuesAPrompt) {
  const std::vector<std::string> command = {"generate", run_, "--prompt", "ab", "--max-new-tokens", "9"};
  const Outcome shown = tamis(command);
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.err, HasSubstr("2 tokens read in"));
  auto with_json = command;
  with_json.push_back("--json");
  const Outcome outcome = tamis(with_json);
  const json made = json::parse(outcome.out);
  EXPECT_EQ(made["tokens"].size(), 9u);
  EXPECT_EQ(made["end"], "length");
  EXPECT_EQ(made["prompt_tokens"], 2);
  EXPECT_EQ(made["text"].get<std::string>() + "\n", shown.out);

  const Outcome piped = tamis({"generate", run_, "--prompt", "-", "--max-new-tokens", "9"}, "ab");
  EXPECT_EQ(piped.out, shown.out);
  EXPECT_EQ(tamis({"generate", run_, "--prompt", "-", "--max-new-tokens", "3"}, "\xff\xfe").code, 0);
}

TEST_F(InferenceCommands, GenerateRefusesBadInput) {
  expect_refused({"generate", run_, "--prompt", ""}, 2, "the prompt is empty");
  expect_refused({"generate", run_, "--prompt", "-"}, 2, "the prompt is empty", "");
  expect_refused({"generate", run_, "--prompt", "a", "--top-p", "0"}, 2, "top-p must be in (0, 1]");
  expect_refused({"generate", run_, "--prompt", "a", "--max-new-tokens", "0"}, 2, "max-new-tokens must be at least 1");
  const auto other = infer::testing::write_checkpoint(path() / "other", /*vocab_size=*/200);
  expect_refused({"generate", other.string(), "--prompt", "a"}, 3,
                 "vocabulary of 200, but its byte tokenizer has 257 tokens");
}

TEST_F(InferenceCommands, EvalAbcDigitsKeepsItsResultInTheRun) {
  const Outcome outcome = tamis({"eval", "abc_digits", run_, "--lengths", "240,300", "--depths", "0.1,0.9",
                                 "--instances", "2", "--seed", "7", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["cells"].size(), 4u);
  EXPECT_EQ(result["expand_windows"], true);
  EXPECT_EQ(result["seed"], 7);
  EXPECT_EQ(json::parse(read_file(fs::path(run_) / "eval" / "abc_digits.json")), result);

  const Outcome table = tamis(
      {"eval", "abc_digits", checkpoint_.string(), "--lengths", "240", "--instances", "1", "--no-expand-windows"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("1 instance per cell, windows as trained"));
  EXPECT_THAT(table.out, Not(HasSubstr("\x1b")));
  EXPECT_FALSE(fs::exists(checkpoint_ / "eval"));
}

TEST_F(InferenceCommands, EvalRunsEveryTask) {
  const Outcome passkey = tamis({"eval", "passkey", run_, "--lengths", "400,800", "--depths", "0.5", "--instances", "3",
                                 "--cell-tokens", "800", "--json"});
  ASSERT_EQ(passkey.code, 0) << passkey.err;
  const json found = json::parse(passkey.out);
  EXPECT_EQ(found["task"], "passkey");
  EXPECT_EQ(found["cells"][0]["instances"], 2);
  EXPECT_EQ(found["cells"][1]["instances"], 1);
  EXPECT_EQ(found["cells"][1]["depth"], 0.5);
  EXPECT_EQ(json::parse(read_file(fs::path(run_) / "eval" / "passkey.json")), found);

  const Outcome mqar =
      tamis({"eval", "mqar", run_, "--lengths", "32", "--pairs", "4", "--vocab", "64", "--instances", "5", "--json"});
  ASSERT_EQ(mqar.code, 0) << mqar.err;
  const json recalled = json::parse(mqar.out);
  EXPECT_EQ(recalled["settings"], (json{{"pairs", 4}, {"vocab", 64}}));
  EXPECT_EQ(recalled["cells"][0]["prompt_tokens"], 32);
  EXPECT_GE(recalled["cells"][0]["score"], 0);
  EXPECT_EQ(recalled["depths"], json::array());

  const Outcome needle = tamis(
      {"eval", "needle", run_, "--lengths", "300", "--depths", "0.5", "--instances", "2", "--needle-score", "--json"});
  ASSERT_EQ(needle.code, 0) << needle.err;
  const json looked = json::parse(needle.out)["cells"][0];
  EXPECT_GE(looked["needle_score_best_head"], looked["needle_score"]);
  EXPECT_LE(looked["needle_score_best_head"], 1);

  expect_refused({"eval", "mqar", run_}, 2, "give --vocab 257 or less");
  expect_refused({"eval", "mqar", run_, "--lengths", "16"}, 2, "the least is 32");
  expect_refused({"eval", "niah_single_2", run_}, 2, "give a text file with --haystack FILE");
}

TEST_F(InferenceCommands, EvalLossReadsAText) {
  const auto text = directory_.write("text", std::string(100, 'x')).string();
  const Outcome outcome = tamis({"eval", "loss", run_, text, "--window", "50", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["tokens"], 99);
  EXPECT_EQ(result["window_tokens"], 50);
  EXPECT_NEAR(result["perplexity"].get<double>(), std::exp(result["nats_per_token"].get<double>()), 1e-9);
  EXPECT_EQ(json::parse(read_file(fs::path(run_) / "eval" / "loss.json")), result);
}

TEST_F(InferenceCommands, EvalRefusesBadInput) {
  EXPECT_THAT(tamis({"eval", "abc_digit", run_}).err,
              HasSubstr("unknown task \"abc_digit\"; did you mean \"abc_digits\"?"));
  EXPECT_EQ(tamis({"eval", "abc_digit", run_}).code, 2);
  EXPECT_THAT(tamis({"eval"}).out, HasSubstr("abc_digits")) << "a command without a task prints its help";
  EXPECT_EQ(tamis({"eval", "abc_digits", run_, "--lengths", "many"}).code, 2);
  expect_refused({"eval", "abc_digits", run_, "--lengths", "512,235"}, 2, "the least is 236");
  expect_refused({"eval", "abc_digits", run_, "--depths", "2"}, 2, "depth must be in 0..1, but is 2");
  expect_refused({"eval", "abc_digits", run_, "--lengths", "256,512,256"}, 2, "lengths holds 256 twice");
  expect_refused({"eval", "abc_digits", run_, "--depths", "0.5,0.5"}, 2, "depths holds 0.5 twice");
  expect_refused({"eval", "abc_digits", directory_.write("file", "x").string()}, 3, "file");
  expect_refused({"eval", "loss", run_, directory_.write("empty", "").string()}, 3, "empty: is empty");
  expect_refused({"eval", "loss", run_, directory_.write("one", "x").string()}, 3, "expected at least 2");
  expect_refused({"eval", "loss", run_, path().string()}, 3, path().string());
}

TEST_F(InferenceCommands, UnknownCommandsSuggestTheClosest) {
  expect_refused({"generat", run_}, 2, "unknown command \"generat\"; did you mean \"generate\"?");
}

TEST_F(InferenceCommands, HelpHasAnExample) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"eval"},
                                                  {"eval", "abc_digits"},
                                                  {"eval", "mqar"},
                                                  {"eval", "loss"},
                                                  {"score"},
                                                  {"generate"}}) {
    auto arguments = command;
    arguments.push_back("--help");
    const Outcome help = tamis(arguments);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, ::testing::ContainsRegex("Examples?:\n  tamis " + command[0]));
  }
}

}  // namespace
}  // namespace tamis

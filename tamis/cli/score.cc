#include "tamis/infer/score.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/infer/load.h"
#include "tamis/text/utf8.h"

namespace tamis::cli {
namespace {

struct ScoreCommand {
  std::filesystem::path checkpoint;  // or run directory
  std::filesystem::path text;        // one of these two; "-" reads standard input
  std::filesystem::path ids;
  infer::ScoreOptions options;
  RunOptions run;
  bool documents = false;
  bool json = false;
};

struct Scored {
  std::vector<int64_t> ids;
  std::vector<double> logprobs;
  std::vector<std::string> texts;  // of each id; empty when ids were given
};

/// The scoring options; --documents needs the tokenizer's end-of-text token.
infer::ScoreOptions options_for(const ScoreCommand& command, const text::Tokenizer& tokenizer) {
  infer::ScoreOptions options = command.options;
  if (!command.documents) return options;
  options.document_end = tokenizer.end_of_text();
  if (*options.document_end >= 0) return options;
  fail(ExitCode::kUsage, "--documents: the {} tokenizer has no end-of-text token, which would end a document",
       tokenizer.name());
}

Scored score_ids(const ScoreCommand& command, at::Device device) {
  infer::ScoreOptions options = command.options;
  std::unique_ptr<models::Model> model;
  if (command.documents) {
    infer::LoadedModel loaded = infer::load(command.checkpoint, device, model_changes(command.run));
    options = options_for(command, *loaded.tokenizer);
    model = std::move(loaded.model);
  } else {  // without documents, a checkpoint need not have a tokenizer
    model = infer::load_model(command.checkpoint, device, model_changes(command.run));
  }
  Scored scored{.ids = infer::read_ids(command.ids, model->vocab_size()), .logprobs = {}, .texts = {}};
  scored.logprobs = infer::score(*model, scored.ids, options);
  return scored;
}

Scored score_text(const ScoreCommand& command, at::Device device) {
  const std::string text = read_input(command.text);
  if (text.empty()) fail(ExitCode::kInput, "{}: is empty; expected text", input_name(command.text));
  const infer::LoadedModel loaded = infer::load(command.checkpoint, device, model_changes(command.run));
  Scored scored{.ids = loaded.tokenizer->encode(text), .logprobs = {}, .texts = {}};
  scored.logprobs = infer::score(*loaded.model, scored.ids, options_for(command, *loaded.tokenizer));
  for (const int64_t id : scored.ids) scored.texts.push_back(loaded.tokenizer->decode({&id, 1}));
  return scored;
}

nlohmann::ordered_json json_of(const Scored& scored) {
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
  for (const double logprob : scored.logprobs) {
    logprobs.push_back(std::isnan(logprob) ? nlohmann::ordered_json() : nlohmann::ordered_json(logprob));
  }
  return {{"tokens", scored.ids}, {"logprobs", std::move(logprobs)}};
}

/// One line for each token, and the mean.
void print(const Scored& scored) {
  double sum = 0;
  size_t predicted = 0;
  for (size_t t = 0; t < scored.ids.size(); ++t) {
    const bool first = std::isnan(scored.logprobs[t]);  // of a document
    const std::string logprob = first ? "-" : fmt::format("{:.6f}", scored.logprobs[t]);
    const std::string text = scored.texts.empty() ? "" : nlohmann::json(text::valid_utf8(scored.texts[t])).dump();
    fmt::print("{:>8} {:>7} {:>12}  {}\n", t, scored.ids[t], logprob, text);
    if (first) continue;
    sum += scored.logprobs[t];
    ++predicted;
  }
  if (predicted == 0) return;
  const double mean = sum / static_cast<double>(predicted);
  fmt::print("mean of {} tokens: {:.6f}, perplexity {:.4f}\n", predicted, mean, std::exp(-mean));
}

void run(const ScoreCommand& command) {
  if (command.text.empty() == command.ids.empty()) {
    fail(ExitCode::kUsage, "score: expected either a text file or --ids FILE");
  }
  check_options(command.run);
  const at::Device device = start(command.run);
  const Scored scored = command.ids.empty() ? score_text(command, device) : score_ids(command, device);
  if (command.json) {
    fmt::print("{}\n", json_of(scored).dump());
  } else {
    print(scored);
  }
}

}  // namespace

void add_score(CLI::App& app) {
  auto command = std::make_shared<ScoreCommand>();
  auto* sub = app.add_subcommand("score", "Log-probability (natural) of every token of a text; nothing is prepended.");
  sub->add_option("dir", command->checkpoint, "Checkpoint or run directory")->type_name("DIR")->required();
  sub->add_option("file", command->text, "Text file; - reads standard input")->type_name("FILE");
  sub->add_option("--ids", command->ids,
                  "Instead of a text: a file with a JSON list of token ids; - reads standard input")
      ->type_name("FILE");
  sub->add_flag("--expand-windows,!--no-expand-windows", command->options.expand_windows,
                "Make windows beyond the training length infinite (SWE)");
  sub->add_flag("--documents", command->documents,
                "A new document, which does not see the text before it, begins after each end-of-text token");
  add_weights_option(*sub, command->options.weights);
  add_json_option(*sub, command->json);
  add_set_model_option(*sub, command->run.model_changes);
  add_run_options(*sub, command->run);
  sub->footer("tamis score runs/demo README.md --json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli

#include "tamis/infer/score.h"

#include <fmt/format.h>

#include <cmath>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"
#include "tamis/infer/load.h"
#include "tamis/text/utf8.h"

namespace tamis::commands {
namespace {

struct Scored {
  std::vector<int64_t> ids;
  std::vector<double> logprobs;
  std::vector<std::string> texts;  // of each id; empty when ids were given
};

Scored score_ids(const ScoreCommand& command, at::Device device) {
  const auto model = infer::load_model(command.checkpoint, device, model_changes(command.run));
  Scored scored{.ids = infer::read_ids(command.ids, model->vocab_size()), .logprobs = {}, .texts = {}};
  scored.logprobs = infer::score(*model, scored.ids, command.options);
  return scored;
}

Scored score_text(const ScoreCommand& command, at::Device device) {
  const std::string text = read_input(command.text);
  if (text.empty()) fail(ExitCode::kInput, "{}: is empty; expected text", input_name(command.text));
  const infer::LoadedModel loaded = infer::load(command.checkpoint, device, model_changes(command.run));
  Scored scored{.ids = loaded.tokenizer->encode(text), .logprobs = {}, .texts = {}};
  scored.logprobs = infer::score(*loaded.model, scored.ids, command.options);
  for (const int64_t id : scored.ids) scored.texts.push_back(loaded.tokenizer->decode({&id, 1}));
  return scored;
}

nlohmann::ordered_json to_json(const Scored& scored) {
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
  for (const double logprob : scored.logprobs) {
    logprobs.push_back(std::isnan(logprob) ? nlohmann::ordered_json() : nlohmann::ordered_json(logprob));
  }
  return {{"tokens", scored.ids}, {"logprobs", std::move(logprobs)}};
}

/// One line a token, and the mean.
void print(const Scored& scored) {
  double sum = 0;
  for (size_t t = 0; t < scored.ids.size(); ++t) {
    const std::string logprob = t == 0 ? "-" : fmt::format("{:.6f}", scored.logprobs[t]);
    const std::string text = scored.texts.empty() ? "" : nlohmann::json(text::valid_utf8(scored.texts[t])).dump();
    fmt::print("{:>8} {:>7} {:>12}  {}\n", t, scored.ids[t], logprob, text);
    if (t > 0) sum += scored.logprobs[t];
  }
  const size_t predicted = scored.ids.size() - 1;
  if (predicted == 0) return;
  const double mean = sum / static_cast<double>(predicted);
  fmt::print("mean of {} tokens: {:.6f}, perplexity {:.4f}\n", predicted, mean, std::exp(-mean));
}

}  // namespace

void run(const ScoreCommand& command) {
  const at::Device device = start(command.run);
  const Scored scored = command.ids.empty() ? score_text(command, device) : score_ids(command, device);
  if (command.json) {
    fmt::print("{}\n", to_json(scored).dump());
  } else {
    print(scored);
  }
}

}  // namespace tamis::commands

#include "tamis/data/task_source.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/data/registry.h"
#include "tamis/data/streams.h"

namespace tamis::data {
namespace {

int64_t byte(char c) {
  return static_cast<unsigned char>(c);
}

/// A text instance as bytes: every byte of the right answer and its newline is a target.
TokenInstance in_bytes(const TextTask& task, const TextInstance& text) {
  const std::string said = right_answer(task, text) + "\n";
  TokenInstance instance;
  for (const char c : text.prompt) instance.ids.push_back(byte(c));
  for (const char c : said) {
    instance.answer_positions.push_back(static_cast<int64_t>(instance.ids.size()) - 1);
    instance.answers.push_back(byte(c));
    instance.ids.push_back(byte(c));
  }
  instance.ids.pop_back();  // the newline is only a target
  return instance;
}

}  // namespace

TaskSource::TaskSource(const TaskSourceOptions& options) : options_(options), task_(find_task(options.task)) {
  check_haystack(task_, !options.haystack.empty());
  request_ = check_request(
      task_, {.length = std::numeric_limits<int64_t>::max(), .depth = std::nullopt, .settings = options.settings});
  request_.seed = Random({kTaskTrainingSeed, options.seed}).next();
  if (!options.haystack.empty()) haystack_.emplace(std::filesystem::path(options.haystack));
  if (!std::holds_alternative<TextTask>(task_.kind)) return;
  said_tokens_ = static_cast<int64_t>(instance(0, task_.min_length(request_.settings)).answers.size()) - 1;
}

int64_t TaskSource::min_length() const {
  return task_.min_length(request_.settings) + said_tokens_;
}

int64_t TaskSource::vocab_size() const {
  return data::vocab_size(task_, request_.settings);
}

void TaskSource::check_length(int64_t length) const {
  const auto at_most = [&](const char* key, int64_t value, int64_t most, const char* of_what) {
    if (value <= most) return;
    fail(ExitCode::kUsage, "{}: {} must be at most the {} tokens of {}, but is {}", task_.name, key, most, of_what,
         value);
  };
  at_most("length", options_.length, length, "a sequence");
  const bool many = options_.length > 0;
  const int64_t most = many ? options_.length : length;
  if (most < min_length()) {
    fail(ExitCode::kUsage, "{}: {} of {} tokens are too short; the least is {}", task_.name,
         many ? "instances" : "sequences", most, min_length());
  }
  at_most("length_min", options_.length_min, most, many ? "an instance" : "a sequence");
}

int64_t TaskSource::draw_length(uint64_t index, int64_t room) const {
  const int64_t most = options_.length > 0 ? options_.length : room;
  const int64_t least = options_.length_min > 0 ? std::max(options_.length_min, min_length()) : most;
  if (room < least) return 0;
  Random random({kTaskTrainingLength, options_.seed, index});
  return least + static_cast<int64_t>(random.below(std::min(most, room) - least + 1));
}

TokenInstance TaskSource::instance(uint64_t index, int64_t prompt_length) const {
  TaskRequest request = request_;
  request.length = prompt_length;
  request.haystack = haystack_ ? &*haystack_ : nullptr;
  Instance made = make_instance(task_, request, index);
  if (const auto* text = std::get_if<TextInstance>(&made)) return in_bytes(std::get<TextTask>(task_.kind), *text);
  return std::get<TokenInstance>(std::move(made));
}

Example TaskSource::example(uint64_t index, int64_t length) const {
  check_length(length);
  Example example{.tokens = std::vector<int64_t>(length, 0), .targets = std::vector<int64_t>(length, kIgnore)};
  int64_t begin = 0;
  for (uint64_t part = 0; part == 0 || options_.length > 0; ++part) {
    const uint64_t number = part == 0 ? index : Random({kTaskTrainingPart, options_.seed, index, part}).next();
    const int64_t tokens = draw_length(number, length - begin);
    if (tokens == 0) break;
    const TokenInstance made = instance(number, tokens - said_tokens_);
    std::ranges::copy(made.ids, example.tokens.begin() + begin);
    int64_t* targets = example.targets.data() + begin;
    if (!options_.answers_only) std::copy(made.ids.begin() + 1, made.ids.end(), targets);
    for (size_t i = 0; i < made.answers.size(); ++i) targets[made.answer_positions[i]] = made.answers[i];
    begin += static_cast<int64_t>(made.ids.size());
  }
  return example;
}

}  // namespace tamis::data

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/data/haystack.h"
#include "tamis/data/streams.h"

namespace tamis::data {

/// A whole number that a task can be given, `--pairs 8`, and what it is when nobody gives one.
struct Setting {
  std::string name;
  int64_t value;
  int64_t least;
  int64_t most;
  std::string help;
};

using Settings = std::map<std::string, int64_t, std::less<>>;

/// What an instance shall be. Instances of one request differ in their index only, and are independent.
struct TaskRequest {
  int64_t length = 0;           // tokens of the prompt at most (text: of the byte tokenizer); the answer is not counted
  std::optional<double> depth;  // place of what is hidden, 0 (first) to 1 (last); none: drawn for each instance
  uint64_t seed = 0;
  Settings settings = {};              // those missing are as the task has them
  const Haystack* haystack = nullptr;  // text to hide it in; none: the noise
};

/// Bytes [begin, end) of a prompt.
struct ByteSpan {
  int64_t begin = 0;
  int64_t end = 0;
};

/// A text to be continued.
struct TextInstance {
  std::string prompt;
  std::vector<std::string> answers;            // all are asked for
  std::vector<ByteSpan> answer_spans;          // where the prompt tells them, in the order of the answers
  std::optional<double> depth = std::nullopt;  // place of what is hidden, where it is one thing
};

/// A sequence of token ids: having read ids[0..answer_positions[i]], the next thing to say is answers[i].
struct TokenInstance {
  std::vector<int64_t> ids;
  std::vector<int64_t> answer_positions;  // ascending
  std::vector<int64_t> answers;
};

struct TextTask {
  std::function<TextInstance(const TaskRequest& request, uint64_t index)> instance;
  /// Finds the answers by reading the prompt alone, whatever made it: all that it can find, in any order. A test holds
  /// them equal to those of the instance, which proves that the prompt has this answer and no other.
  std::vector<std::string> (*solve)(std::string_view prompt);
  /// The score of what a model says after the prompt, in [0, 1].
  double (*score)(std::string_view said, std::span<const std::string> answers);
  int64_t max_new_tokens;  // a model may say, of the byte tokenizer; more where the right answer is longer
  /// The right answer is this, then the answers with that between them. It scores 1, and has as many bytes in every
  /// instance of the same settings.
  std::string_view before_answers = " ";
  std::string_view between_answers = ", ";
};

struct TokenTask {
  std::function<TokenInstance(const TaskRequest& request, uint64_t index)> instance;
  /// What is to be said after these ids, by reading them alone; nothing when nothing is asked.
  std::optional<int64_t> (*solve)(std::span<const int64_t> read, const Settings& settings);
  /// Ids that an answer is drawn from, each as often: a guess is right one time in so many.
  int64_t (*choices)(const Settings& settings);
};

enum class HaystackUse { kNone, kOptional, kRequired };

/// What training shows after the prompt.
std::string right_answer(const TextTask& task, const TextInstance& instance);
/// Bytes that a model may say after the prompt: enough for the right answer. As many in every instance of the same
/// settings.
int64_t said_bytes(const TextTask& task, const TextInstance& instance);

/// One line of the registry. `instance` and `min_length` get requests that check_request has passed.
struct Task {
  std::string name;
  std::string summary;  // one line
  int64_t default_length;
  bool takes_depth = false;
  HaystackUse haystack = HaystackUse::kNone;
  std::vector<Setting> settings = {};                          // token tasks have "vocab", the number of ids
  void (*check_settings)(const Settings& settings) = nullptr;  // throws ExitCode::kUsage where ranges do not say it
  std::function<int64_t(const Settings& settings)> min_length;
  std::variant<TextTask, TokenTask> kind;
};

using Instance = std::variant<TextInstance, TokenInstance>;

/// The request with all settings. Throws ExitCode::kUsage on a length below the task's least (the text says it), and on
/// settings and depths out of range or that the task does not take. Says nothing about the haystack.
TaskRequest check_request(const Task& task, TaskRequest request);

/// Throws ExitCode::kUsage when the task needs a haystack that is not given, or has no use for one that is.
void check_haystack(const Task& task, bool given);

/// Instance `index`: always the same for the same request, and another for every other. Throws as the two above.
Instance make_instance(const Task& task, const TaskRequest& request, uint64_t index);

/// The random numbers of one instance.
Random instance_random(Stream stream, const TaskRequest& request, uint64_t index);

}  // namespace tamis::data

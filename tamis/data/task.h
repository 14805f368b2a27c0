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

/// An integer parameter of a task, such as `--pairs 8`, with its default and range.
struct Setting {
  std::string name;
  int64_t value;
  int64_t least;
  int64_t most;
  std::string help;
};

using Settings = std::map<std::string, int64_t, std::less<>>;

/// The properties of an instance. Instances of the same request with different indices are independent.
struct TaskRequest {
  int64_t length = 0;           // most tokens of the prompt (text: of the byte tokenizer), without the answer
  std::optional<double> depth;  // position of the needle, 0 (first) to 1 (last); none: drawn for each instance
  uint64_t seed = 0;
  Settings settings = {};              // missing ones have the task's defaults
  const Haystack* haystack = nullptr;  // the filler; nullptr: kNoise
};

/// Bytes [begin, end) of a prompt.
struct ByteSpan {
  int64_t begin = 0;
  int64_t end = 0;
};

/// A prompt for the model to continue, with the expected answers.
struct TextInstance {
  std::string prompt;
  std::vector<std::string> answers;            // the model must give all of them
  std::vector<ByteSpan> answer_spans;          // where the prompt states them, in the order of the answers
  std::optional<double> depth = std::nullopt;  // position of the needle, if there is exactly one
};

/// A sequence of token ids: after ids[0] .. ids[answer_positions[i]] the correct next token is answers[i].
struct TokenInstance {
  std::vector<int64_t> ids;
  std::vector<int64_t> answer_positions;  // ascending
  std::vector<int64_t> answers;
};

struct TextTask {
  std::function<TextInstance(const TaskRequest& request, uint64_t index)> instance;
  /// Derives all answers from the prompt alone, in any order. A test compares them with the instance's answers, which
  /// proves that the prompt determines exactly these.
  std::vector<std::string> (*solve)(std::string_view prompt);
  /// The score of the generated text `said`, in [0, 1].
  double (*score)(std::string_view said, std::span<const std::string> answers);
  int64_t max_new_tokens;  // to generate, in tokens of the byte tokenizer; more when the right answer is longer
  /// The right answer is before_answers, followed by the answers joined by between_answers. Its score is 1, and it has
  /// the same number of bytes in all instances with the same settings.
  std::string_view before_answers = " ";
  std::string_view between_answers = ", ";
};

struct TokenTask {
  std::function<TokenInstance(const TaskRequest& request, uint64_t index)> instance;
  /// Derives the answer after the ids `read` from them alone; none when the last id is not a query.
  std::optional<int64_t> (*solve)(std::span<const int64_t> read, const Settings& settings);
  /// Number of ids that an answer is drawn from uniformly: a random guess is right with probability 1 / choices.
  int64_t (*choices)(const Settings& settings);
};

enum class HaystackUse { kNone, kOptional, kRequired };

/// The text that follows the prompt in training.
std::string right_answer(const TextTask& task, const TextInstance& instance);
/// Number of bytes to generate after the prompt: max_new_tokens, or more if the right answer is longer. The same for
/// all instances with the same settings.
int64_t said_bytes(const TextTask& task, const TextInstance& instance);

/// An entry of the registry. `instance` and `min_length` are called only after check_request.
struct Task {
  std::string name;
  std::string summary;  // one line
  int64_t default_length;
  bool takes_depth = false;
  HaystackUse haystack = HaystackUse::kNone;
  std::vector<Setting> settings = {};                          // token tasks have "vocab", the number of ids
  void (*check_settings)(const Settings& settings) = nullptr;  // checks beyond the ranges; throws ExitCode::kUsage
  std::function<int64_t(const Settings& settings)> min_length;
  std::variant<TextTask, TokenTask> kind;
};

using Instance = std::variant<TextInstance, TokenInstance>;

/// The request with defaults for missing settings. Throws ExitCode::kUsage for a length below the task's minimum, which
/// the text names, and for settings and depths that are out of range or that the task does not have. Does not check the
/// haystack.
TaskRequest check_request(const Task& task, TaskRequest request);

/// Token ids are below this: the setting "vocab" of a token task, 256 for text. Throws like check_request.
int64_t vocab_size(const Task& task, const Settings& settings);

/// Throws ExitCode::kUsage when the task requires a haystack and none is given, or does not use one that is given.
void check_haystack(const Task& task, bool given);

/// Instance `index` of the request; a pure function of both. Throws like check_request and check_haystack.
Instance make_instance(const Task& task, const TaskRequest& request, uint64_t index);

/// The random generator of one instance.
Random instance_random(Stream stream, const TaskRequest& request, uint64_t index);

}  // namespace tamis::data

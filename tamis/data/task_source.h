#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tamis/data/haystack.h"
#include "tamis/data/source.h"
#include "tamis/data/task.h"

namespace tamis::data {

struct TaskSourceOptions {
  std::string task;  // name in the registry
  uint64_t seed = 0;
  Settings settings = {};     // those missing are as the task has them
  int64_t length = 0;         // tokens of an instance at most, many of which follow each other; 0: one fills a sequence
  int64_t length_min = 0;     // tokens of an instance: uniform from here to the most; 0: always the most
  bool answers_only = true;   // count only the answers (texts: and the line end after them), else every token
  std::string haystack = {};  // a text file; empty: none
};

/// Training sequences of a task of the registry: one instance as long as fits, or several one after the other, then
/// zeros that count nothing.
///
///   text tasks   bytes of the prompt, of its answers (TextTask says how they follow) and of a line end
///   token tasks  ids; the target at an answer's position is the answer, whatever id comes next
///
/// Lengths, depths and seeds have streams of their own, so that no evaluation is drawn, whatever its seed.
class TaskSource : public Source {
 public:
  /// Throws ExitCode::kUsage on a task that is not known and on settings or a haystack that it does not take or needs,
  /// ExitCode::kInput on a haystack that cannot be read.
  explicit TaskSource(const TaskSourceOptions& options);

  std::string name() const override { return task_.name; }
  /// Throws ExitCode::kUsage when `length`, or that of an instance, is below min_length() or length_min.
  Example example(uint64_t index, int64_t length) const override;
  /// The task's least length and, of texts, what is said after the prompt.
  int64_t min_length() const;
  /// Every token is below it.
  int64_t vocab_size() const;

 private:
  void check_length(int64_t length) const;
  /// That of an instance for which there are `room` tokens; 0 when there is no room.
  int64_t draw_length(uint64_t index, int64_t room) const;
  TokenInstance instance(uint64_t index, int64_t prompt_length) const;

  TaskSourceOptions options_;
  const Task& task_;
  std::optional<Haystack> haystack_;
  TaskRequest request_;      // but for the length and the haystack
  int64_t said_tokens_ = 0;  // tokens that follow the prompt of a text; its line end is only a target
};

}  // namespace tamis::data

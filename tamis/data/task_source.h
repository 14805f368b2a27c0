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
  Settings settings = {};     // missing ones have the task's defaults
  int64_t length = 0;         // most tokens of an instance, several per sequence; 0: one instance fills the sequence
  int64_t length_min = 0;     // tokens of an instance are uniform from length_min to the maximum; 0: always the maximum
  bool answers_only = true;   // true: loss only on answers (and the newline after a text); false: on every token
  std::string haystack = {};  // a text file; empty: none
};

/// Training sequences of a task of the registry: the longest instance that fits, or several instances in a row, padded
/// with zeros that the loss ignores.
///
///   text tasks   bytes of the prompt, of the right answer (see TextTask) and of a newline
///   token tasks  ids; the target at an answer's position is the answer, whatever the next id is
///
/// Training has its own random streams for lengths, depths and seeds, so that it never draws an evaluation instance.
class TaskSource : public Source {
 public:
  /// Throws ExitCode::kUsage for an unknown task, settings that it does not have, and a haystack that is missing or
  /// that it does not use; ExitCode::kInput for a haystack that cannot be read.
  explicit TaskSource(const TaskSourceOptions& options);

  std::string name() const override { return task_.name; }
  /// Throws ExitCode::kUsage when `length`, or that of an instance, is below min_length() or length_min.
  Example example(uint64_t index, int64_t length) const override;
  /// The task's minimum length plus, for texts, the length of the right answer.
  int64_t min_length() const;
  /// All token ids are below this.
  int64_t vocab_size() const;

 private:
  void check_length(int64_t length) const;
  /// The length of an instance when `room` tokens are left; 0 when none fits.
  int64_t draw_length(uint64_t index, int64_t room) const;
  TokenInstance instance(uint64_t index, int64_t prompt_length) const;

  TaskSourceOptions options_;
  const Task& task_;
  std::optional<Haystack> haystack_;
  TaskRequest request_;      // without the length and the haystack
  int64_t said_tokens_ = 0;  // tokens after a text's prompt, without the newline, which is only a target
};

}  // namespace tamis::data

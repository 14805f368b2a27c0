#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/data/source.h"
#include "tamis/data/task.h"

namespace tamis::data {

/// ABCDigits: lines `A=967892` bind letters to numbers; the query `L=` at the end asks for one of them. "Screening Is
/// Enough", section 4.5 and appendix M.
struct AbcDigitsInstance {
  std::string prompt;       // the lines, each ended by a newline, and the query
  std::string answer;       // the digits after the query
  char letter = 0;          // the letter asked for
  int64_t lines = 0;        // in the prompt, the query included
  int64_t target_line = 0;  // index of the only line that binds `letter`
};

inline constexpr int64_t kAbcDigitsLetters = 26;
inline constexpr int64_t kAbcDigitsDigits = 6;

/// The paper's form, to the letter: all 26 letters, distinct numbers of six digits without a leading 0. The 25 letters
/// that are not asked for come once each, then as often as they are drawn with weights 2^i, i = 0..24, dealt anew to
/// the letters in every instance; all of these are shuffled, and the target line is inserted at floor((lines - 2)
/// depth).
///
/// length  tokens of the byte tokenizer (= characters) that the prompt may have, query included, answer not. A line has
///         9 characters and the query 2, so the prompt is the longest of whole lines that fits: 9 floor((length - 2) /
///         9)
///         + 2 characters, length - 8 at worst. At least 236 (26 lines and the query)
/// depth   in [0, 1]: 0 puts the target first, 1 last
/// index   instances of one seed, length and depth are independent
///
/// Throws what check_abc_digits_instance throws.
AbcDigitsInstance abc_digits_instance(int64_t length, double depth, uint64_t seed, uint64_t index);

/// Throws ExitCode::kUsage when there are no instances of this length and depth.
void check_abc_digits_instance(int64_t length, double depth);

/// Shortest `length` of abc_digits_instance.
int64_t abc_digits_min_length();

/// Every number that a prompt binds to the letter it asks for, in order; one, when the prompt is an instance. Works by
/// reading the prompt, whatever its number of letters and digits.
std::vector<std::string> solve_abc_digits(std::string_view prompt);

/// abc_digits_instance as a task of the registry: the answer's span is the target line's number, the score 1 when what
/// the model says begins with the answer.
std::vector<Task> abc_digits_tasks();

/// The training mix. Six digits and 26 letters at once are learnt slowly or never; sequences with few letters and short
/// numbers teach retrieval first.
struct AbcDigitsOptions {
  uint64_t seed = 0;
  int64_t digits_min = 1;  // digits of all numbers of a sequence, uniform in [digits_min, digits_max]
  int64_t digits_max = 6;
  int64_t letters_min = 2;  // letters of a sequence, uniform in [letters_min, letters_max] ...
  int64_t letters_max = 26;
  double few_letters_share = 0.75;  // ... but with this probability in [letters_min, few_letters_max]
  int64_t few_letters_max = 6;
  double paper_form_share = 0.25;  // probability of the paper's form (with the letters and digits drawn)
  double skewed_share = 0.5;       // other sequences: probability of weights 2^i instead of equal ones
  bool answers_only = false;       // count only digits that the sequence has shown before, else every token
  double first_digit_share = 0.0;  // probability that of a sequence's numbers only the first digit counts
};

/// Sequences of lines for training, each about one set of letters and numbers, cut at the sequence's end. Two forms:
/// - the paper's, as long as the sequence allows, with a random depth; its query is answered and, where room is left,
///   followed by more lines;
/// - free: lines drawn independently, so every letter's second and later lines are retrievals at random distances.
/// Letters are capped to what a sequence and the distinct numbers allow (one digit: 9 letters). Never draws what
/// abc_digits_instance draws: the streams differ.
class AbcDigitsSource : public Source {
 public:
  /// Throws ExitCode::kUsage on options out of range.
  explicit AbcDigitsSource(const AbcDigitsOptions& options);

  std::string name() const override { return "abc_digits"; }
  /// Throws ExitCode::kUsage when `length` is below min_length().
  Example example(uint64_t index, int64_t length) const override;
  /// Three lines of the longest numbers.
  int64_t min_length() const;

 private:
  AbcDigitsOptions options_;
};

}  // namespace tamis::data

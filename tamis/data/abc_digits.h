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

/// ABCDigits: lines such as `A=967892` assign numbers to letters; the query `L=` at the end asks for the number of one
/// letter. "Screening Is Enough", section 4.5 and appendix M.
struct AbcDigitsInstance {
  std::string prompt;       // the lines, each with its newline, then the query
  std::string answer;       // the digits that follow the query
  char letter = 0;          // the letter of the query
  int64_t lines = 0;        // number of lines of the prompt, including the query
  int64_t target_line = 0;  // index of the only line that assigns a number to `letter`
};

inline constexpr int64_t kAbcDigitsLetters = 26;
inline constexpr int64_t kAbcDigitsDigits = 6;

/// Generates an instance exactly as the paper describes: all 26 letters; distinct numbers of six digits without a
/// leading 0. Each of the 25 letters other than the target occurs once; the remaining lines are drawn with weights 2^i,
/// i = 0..24, assigned to the letters at random in every instance. These lines are shuffled, and the target line is
/// inserted at floor((lines - 2) depth).
///
/// length  upper limit for the prompt in tokens of the byte tokenizer (= characters), including the query but not the
///         answer. A line has 9 characters and the query 2, so the prompt has 9 floor((length - 2) / 9) + 2 characters,
///         between length - 8 and length. At least 236 (26 lines and the query)
/// depth   in [0, 1]: 0 puts the target line first, 1 last
/// index   instances with different indices are independent
///
/// Throws like check_abc_digits_instance.
AbcDigitsInstance abc_digits_instance(int64_t length, double depth, uint64_t seed, uint64_t index);

/// Throws ExitCode::kUsage when there are no instances of this length and depth.
void check_abc_digits_instance(int64_t length, double depth);

/// The smallest `length` that abc_digits_instance accepts.
int64_t abc_digits_min_length();

/// Every number that the prompt assigns to the letter of its query, in order; exactly one for an instance. Depends on
/// the prompt alone and accepts any number of letters and digits.
std::vector<std::string> solve_abc_digits(std::string_view prompt);

/// abc_digits_instance as a task of the registry. The answer span is the number in the target line; the score is 1 when
/// the generated text begins with the answer, else 0.
std::vector<Task> abc_digits_tasks();

/// The training distribution. Models learn the full task (six digits, 26 letters) slowly or not at all, so the
/// distribution includes easier sequences with few letters and short numbers.
struct AbcDigitsOptions {
  uint64_t seed = 0;
  int64_t digits_min = 1;  // digits per number, one value per sequence, uniform in [digits_min, digits_max]
  int64_t digits_max = 6;
  int64_t letters_min = 2;  // letters per sequence, uniform in [letters_min, letters_max] ...
  int64_t letters_max = 26;
  double few_letters_share = 0.75;  // ... or, with this probability, in [letters_min, few_letters_max]
  int64_t few_letters_max = 6;
  double paper_form_share = 0.25;  // probability of the paper's form (with the drawn numbers of letters and digits)
  double skewed_share = 0.5;       // other sequences: probability of weights 2^i instead of equal weights
  bool answers_only = false;       // true: loss only on digits that repeat an earlier line; false: on every token
  double first_digit_share = 0.0;  // probability that only the first digit of each number counts in the loss
};

/// Training sequences of lines over one set of letters and numbers, truncated at the end of the sequence. Two forms:
/// - the paper's: the longest instance that fits, with a random depth, then the answer and, if there is space, more
///   lines;
/// - free: lines drawn independently, so that a letter's second and later lines are retrievals at random distances.
/// The number of letters is limited by the sequence length and by the distinct numbers (9 for one digit). The random
/// streams differ from those of abc_digits_instance, so training never sees an evaluation instance's draws.
class AbcDigitsSource : public Source {
 public:
  /// Throws ExitCode::kUsage on options out of range.
  explicit AbcDigitsSource(const AbcDigitsOptions& options);

  std::string name() const override { return "abc_digits"; }
  /// Throws ExitCode::kUsage when `length` is below min_length().
  Example example(uint64_t index, int64_t length) const override;
  /// The length of three lines with the longest numbers.
  int64_t min_length() const;

 private:
  AbcDigitsOptions options_;
};

}  // namespace tamis::data

#include "tamis/data/abc_digits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/data/streams.h"

namespace tamis::data {
namespace {

constexpr int64_t kQueryCharacters = 2;  // "L="

int64_t line_characters(int64_t digits) {
  return digits + 3;
}  // "A=", digits, newline

uint64_t power_of_ten(int64_t exponent) {
  uint64_t power = 1;
  for (int64_t i = 0; i < exponent; ++i) power *= 10;
  return power;
}

/// The lines of one instance, one per letter, in random order of the letters.
using Lines = std::vector<std::string>;

Lines draw_lines(Random& random, int64_t letters, int64_t digits) {
  std::string alphabet(kAbcDigitsLetters, '\0');
  std::iota(alphabet.begin(), alphabet.end(), 'A');
  random.shuffle(std::span<char>(alphabet));
  const uint64_t lowest = power_of_ten(digits - 1);
  std::set<uint64_t> taken;
  Lines lines;
  while (static_cast<int64_t>(lines.size()) < letters) {
    const uint64_t number = lowest + random.below(9 * lowest);
    if (taken.insert(number).second) lines.push_back(fmt::format("{}={}\n", alphabet[lines.size()], number));
  }
  return lines;
}

/// i in [0, n) with probability 2^i / (2^n - 1): the index of the highest bit of a uniform number in [1, 2^n - 1].
int64_t draw_skewed(Random& random, int64_t n) {
  return std::bit_width(1 + random.below((uint64_t{1} << n) - 1)) - 1;
}

/// `count` line indices in the order of the prompt. The last index, letters - 1, is the target. Each other index occurs
/// once, further ones are drawn with weights 2^i, these are shuffled, and the target is inserted at
/// floor((count - 1) depth).
std::vector<int64_t> paper_form(Random& random, int64_t letters, int64_t count, double depth) {
  std::vector<int64_t> order(letters - 1);
  std::iota(order.begin(), order.end(), 0);
  while (static_cast<int64_t>(order.size()) < count - 1) order.push_back(draw_skewed(random, letters - 1));
  random.shuffle(std::span<int64_t>(order));
  const auto place = static_cast<int64_t>(std::floor(static_cast<double>(count - 1) * depth));
  order.insert(order.begin() + place, letters - 1);
  return order;
}

std::string join(const Lines& lines, const std::vector<int64_t>& order) {
  std::string text;
  for (const int64_t index : order) text += lines[index];
  return text;
}

/// Number of complete lines that fit before the query.
int64_t lines_that_fit(int64_t prompt_characters, int64_t digits) {
  return (prompt_characters - kQueryCharacters) / line_characters(digits);
}

void check_range(const char* low_name, int64_t low, const char* high_name, int64_t high, int64_t least, int64_t most) {
  if (low < least || high > most || low > high) {
    fail(ExitCode::kUsage, "abc_digits: {} and {} must be in {}..{} and in order, but are {} and {}", low_name,
         high_name, least, most, low, high);
  }
}

void check_share(const char* name, double share) {
  if (!(share >= 0 && share <= 1)) fail(ExitCode::kUsage, "abc_digits: {} must be in 0..1, but is {}", name, share);
}

}  // namespace

int64_t abc_digits_min_length() {
  return kAbcDigitsLetters * line_characters(kAbcDigitsDigits) + kQueryCharacters;
}

void check_abc_digits_instance(int64_t length, double depth) {
  if (length < abc_digits_min_length()) {
    fail(ExitCode::kUsage, "abc_digits: a length of {} is too short for 26 lines and the query; the least is {}",
         length, abc_digits_min_length());
  }
  if (!(depth >= 0 && depth <= 1)) fail(ExitCode::kUsage, "abc_digits: depth must be in 0..1, but is {}", depth);
}

AbcDigitsInstance abc_digits_instance(int64_t length, double depth, uint64_t seed, uint64_t index) {
  check_abc_digits_instance(length, depth);
  Random random({kAbcDigitsEvaluation, seed, static_cast<uint64_t>(length), std::bit_cast<uint64_t>(depth), index});
  const Lines lines = draw_lines(random, kAbcDigitsLetters, kAbcDigitsDigits);
  const auto order = paper_form(random, kAbcDigitsLetters, lines_that_fit(length, kAbcDigitsDigits), depth);
  const std::string& target = lines.back();
  return {.prompt = join(lines, order) + target.substr(0, kQueryCharacters),
          .answer = target.substr(kQueryCharacters, kAbcDigitsDigits),
          .letter = target[0],
          .lines = static_cast<int64_t>(order.size()) + 1,
          .target_line = std::find(order.begin(), order.end(), kAbcDigitsLetters - 1) - order.begin()};
}

std::vector<std::string> solve_abc_digits(std::string_view prompt) {
  const size_t last_newline = prompt.rfind('\n');
  const std::string_view query = last_newline == prompt.npos ? prompt : prompt.substr(last_newline + 1);
  std::vector<std::string> answers;
  while (prompt.size() > query.size()) {
    const std::string_view line = prompt.substr(0, prompt.find('\n'));
    if (line.starts_with(query)) answers.emplace_back(line.substr(query.size()));
    prompt.remove_prefix(line.size() + 1);
  }
  return answers;
}

std::vector<Task> abc_digits_tasks() {
  const auto instance = [](const TaskRequest& request, uint64_t index) {
    AbcDigitsInstance made = abc_digits_instance(request.length, *request.depth, request.seed, index);
    const int64_t begin = made.target_line * line_characters(kAbcDigitsDigits) + kQueryCharacters;
    return TextInstance{.prompt = std::move(made.prompt),
                        .answers = {made.answer},
                        .answer_spans = {{begin, begin + kAbcDigitsDigits}},
                        .depth = request.depth};
  };
  const auto score = [](std::string_view said, std::span<const std::string> answers) {
    return said.starts_with(answers[0]) ? 1.0 : 0.0;
  };
  return {{.name = "abc_digits",
           .summary = "the number of one letter, among lines that assign numbers to all letters",
           .default_length = 1024,
           .takes_depth = true,
           .min_length = [](const Settings&) { return abc_digits_min_length(); },
           .kind = TextTask{instance, solve_abc_digits, score, kAbcDigitsDigits, /*before_answers=*/""}}};
}

AbcDigitsSource::AbcDigitsSource(const AbcDigitsOptions& options) : options_(options) {
  check_range("digits_min", options.digits_min, "digits_max", options.digits_max, 1, 9);
  check_range("letters_min", options.letters_min, "letters_max", options.letters_max, 2, kAbcDigitsLetters);
  check_range("letters_min", options.letters_min, "few_letters_max", options.few_letters_max, 2, kAbcDigitsLetters);
  check_share("few_letters_share", options.few_letters_share);
  check_share("paper_form_share", options.paper_form_share);
  check_share("skewed_share", options.skewed_share);
  check_share("first_digit_share", options.first_digit_share);
}

int64_t AbcDigitsSource::min_length() const {
  return 3 * line_characters(options_.digits_max);
}

Example AbcDigitsSource::example(uint64_t index, int64_t length) const {
  if (length < min_length()) {
    fail(ExitCode::kUsage, "abc_digits: sequences of {} tokens are too short for numbers of {} digits; the least is {}",
         length, options_.digits_max, min_length());
  }
  Random random({kAbcDigitsTraining, options_.seed, index});
  const auto uniform = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random.below(high - low + 1));
  };
  const int64_t characters = length + 1;  // the last character is only a target
  const int64_t digits = uniform(options_.digits_min, options_.digits_max);
  const bool few = random.uniform() < options_.few_letters_share;
  const bool paper = random.uniform() < options_.paper_form_share;
  const bool skewed = paper || random.uniform() < options_.skewed_share;
  const int64_t context_lines = lines_that_fit(characters - digits, digits);
  const int64_t letters =
      std::min({uniform(options_.letters_min, few ? options_.few_letters_max : options_.letters_max), context_lines,
                static_cast<int64_t>(9 * power_of_ten(digits - 1))});

  const Lines lines = draw_lines(random, letters, digits);
  std::string text;
  if (paper) text = join(lines, paper_form(random, letters, context_lines, random.uniform())) + lines.back();
  while (static_cast<int64_t>(text.size()) < characters) {
    text += lines[skewed ? draw_skewed(random, letters) : uniform(0, letters - 1)];
  }

  const bool first_digit = random.uniform() < options_.first_digit_share;

  Example example{.tokens = std::vector<int64_t>(length), .targets = std::vector<int64_t>(length, kIgnore)};
  std::set<char> shown;
  for (int64_t t = 0; t < length; ++t) {
    example.tokens[t] = static_cast<unsigned char>(text[t]);
    const int64_t place = (t + 1) % line_characters(digits);  // column of the target in its line
    const bool digit = place >= kQueryCharacters && place < kQueryCharacters + digits;
    const bool answer = digit && shown.contains(text[t + 1 - place]);
    if (place == line_characters(digits) - 1) shown.insert(text[t + 1 - place]);
    const bool counted = answer || !options_.answers_only;
    if (counted && !(first_digit && digit && place > kQueryCharacters))
      example.targets[t] = static_cast<unsigned char>(text[t + 1]);
  }
  return example;
}

}  // namespace tamis::data

#include "tamis/data/variable_tracking.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tamis/data/task_text.h"

namespace tamis::data {
namespace {

constexpr std::string_view kOpening =
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
constexpr std::string_view kQuestion =
    "\nQuestion: Find all variables that are assigned the value {} in the text above.";
constexpr std::string_view kAnswer =  // with the spelling of the benchmark
    " Answer: According to the chain(s) of variable assignment in the text above, {} variables are assgined the value "
    "{}, they are:";
constexpr int64_t kLetters = 5;
constexpr int64_t kValueDigits = 5;
constexpr int64_t kVariableTrackingSaidTokens = 30;

struct Form {
  int64_t chains;
  int64_t hops;
  int64_t letters;  // of a variable

  int64_t variables() const { return hops + 1; }  // per chain
};

constexpr int64_t kExampleLetters = 3;
constexpr int64_t kExampleMostHops = 10;
constexpr int64_t kExampleNoises = 10;

Form form_of(const Settings& settings) {
  return {settings.at("chains"), settings.at("hops"), kLetters};
}

Form example_of(const Form& form) {
  return {form.chains, std::min(form.hops, kExampleMostHops), kExampleLetters};
}

/// Minimum number of noise lines: one more than a chain has assignments.
int64_t least_noises(const Form& form) {
  return form.variables() + 1;
}

int64_t example_noises(const Form& form) {
  return std::max(kExampleNoises, least_noises(form));
}

struct Problem {
  std::vector<std::vector<std::string>> variables;  // of each chain
  std::vector<std::string> values;
};

Problem draw_problem(Random& random, const Form& form, std::set<std::string>& taken) {
  const auto draw_name = [&] {
    std::string name;
    do {
      name.clear();
      for (int64_t i = 0; i < form.letters; ++i) name += static_cast<char>('A' + random.below(26));
    } while (!taken.insert(name).second);
    return name;
  };
  Problem problem;
  for (int64_t chain = 0; chain < form.chains; ++chain) {
    problem.variables.emplace_back();
    for (int64_t i = 0; i < form.variables(); ++i) problem.variables.back().push_back(draw_name());
    std::string value = draw_number(random, kValueDigits);
    while (!taken.insert(value).second) value = draw_number(random, kValueDigits);
    problem.values.push_back(value);
  }
  return problem;
}

/// The assignments of a chain, in order. As in the harness, those that assign a variable end with a space.
std::vector<Piece> assignments(const Problem& problem, size_t chain) {
  const std::string_view opening = "VAR ";
  std::vector<Piece> pieces;
  const auto& variables = problem.variables[chain];
  for (size_t i = 0; i < variables.size(); ++i) {
    Piece piece = plain_piece(i == 0 ? fmt::format("{}{} = {}", opening, variables[i], problem.values[chain])
                                     : fmt::format("{}{} = VAR {} ", opening, variables[i], variables[i - 1]));
    if (chain == 0) {
      const auto begin = static_cast<int64_t>(opening.size());
      piece.answer = static_cast<int64_t>(i);
      piece.span = {begin, begin + static_cast<int64_t>(variables[i].size())};
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<Piece> context_of(Random& random, const Problem& problem, int64_t noises) {
  std::vector<Piece> context(noises, plain_piece(std::string(kNoise) + "\n"));
  for (size_t chain = 0; chain < problem.values.size(); ++chain) {
    std::vector<Piece> hidden = assignments(problem, chain);
    const auto count = static_cast<int64_t>(hidden.size());
    const auto places = draw_places(random, count, static_cast<int64_t>(context.size()));
    std::vector<Piece> merged;
    for (size_t i = 0, next = 0; i < context.size(); ++i) {
      if (next < places.size() && places[next] == static_cast<int64_t>(i)) merged.push_back(std::move(hidden[next++]));
      merged.push_back(std::move(context[i]));
    }
    context = std::move(merged);
  }
  return context;
}

/// Appends a problem, from the opening to the colon that precedes the answer.
void append_problem(std::string& prompt, Random& random, const Form& form, const Problem& problem, int64_t noises,
                    std::vector<ByteSpan>& answer_spans) {
  prompt += kOpening;
  append_pieces(prompt, context_of(random, problem, noises), " ", answer_spans);
  prompt += fmt::format(kQuestion, problem.values[0]);
  prompt += fmt::format(kAnswer, form.variables(), problem.values[0]);
}

void append_example(std::string& prompt, Random& random, const Form& form, std::set<std::string>& taken) {
  const Problem problem = draw_problem(random, form, taken);
  std::vector<ByteSpan> spans(form.variables());
  append_problem(prompt, random, form, problem, example_noises(form), spans);
  prompt += fmt::format("  {}\n\n\n\n", fmt::join(problem.variables[0], " "));
}

TextInstance make(Random random, const Form& form, int64_t noises) {
  std::set<std::string> taken = {"VAR"};
  TextInstance instance{.prompt = "", .answers = {}, .answer_spans = std::vector<ByteSpan>(form.variables())};
  append_example(instance.prompt, random, example_of(form), taken);
  const Problem problem = draw_problem(random, form, taken);
  append_problem(instance.prompt, random, form, problem, noises, instance.answer_spans);
  instance.answers = problem.variables[0];
  return instance;
}

/// All instances of the same form and number of noise lines have the same length.
int64_t variable_tracking_min_length(const Settings& settings) {
  const Form form = form_of(settings);
  return static_cast<int64_t>(make(Random({0}), form, least_noises(form)).prompt.size());
}

TextInstance variable_tracking_instance(const TaskRequest& request, uint64_t index) {
  const Form form = form_of(request.settings);
  const auto noise_bytes = static_cast<int64_t>(kNoise.size()) + 2;  // with its newline and the space after it
  const int64_t more = (request.length - variable_tracking_min_length(request.settings)) / noise_bytes;
  return make(instance_random(kVariableTracking, request, index), form, least_noises(form) + more);
}

/// Every variable of the last problem that has the value of its question, directly or through other variables.
std::vector<std::string> solve_variable_tracking(std::string_view prompt) {
  const size_t begin = prompt.rfind(kOpening);
  if (begin == prompt.npos) return {};
  const std::string_view problem = prompt.substr(begin);
  const auto asked = all_between(problem, "Find all variables that are assigned the value ", " in the text above.");
  if (asked.size() != 1) return {};
  std::vector<std::pair<std::string_view, std::string_view>> assigned;  // variable, value or variable
  for (size_t at = problem.find("VAR "); at != problem.npos; at = problem.find("VAR ", at + 1)) {
    const std::string_view rest = problem.substr(at + 4);
    const size_t equals = rest.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    if (equals == rest.npos || !rest.substr(equals).starts_with(" = ")) continue;
    std::string_view source = rest.substr(equals + 3);
    if (source.starts_with("VAR ")) source.remove_prefix(4);
    assigned.emplace_back(rest.substr(0, equals), source.substr(0, source.find(' ')));
  }
  std::set<std::string_view> found = {asked[0]};
  for (size_t before = 0; before != found.size();) {
    before = found.size();
    for (const auto& [variable, source] : assigned) {
      if (found.contains(source)) found.insert(variable);
    }
  }
  found.erase(asked[0]);
  return {found.begin(), found.end()};
}

}  // namespace

std::vector<Task> variable_tracking_tasks() {
  return {{.name = "variable_tracking",
           .summary = "RULER: all variables that have a given value through a chain of assignments",
           .default_length = 4096,
           .settings = {{"chains", 1, 1, 100, "Number of chains; the question is about the first one"},
                        {"hops", 4, 1, 100, "Assignments per chain from variable to variable"}},
           .min_length = variable_tracking_min_length,
           .kind = TextTask{variable_tracking_instance, solve_variable_tracking, contained_share,
                            kVariableTrackingSaidTokens, /*before_answers=*/" ",
                            /*between_answers=*/" "}}};
}

}  // namespace tamis::data

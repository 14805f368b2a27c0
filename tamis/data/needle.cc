#include "tamis/data/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tamis/data/task_text.h"

namespace tamis::data {
namespace {

constexpr std::array kCities = std::to_array<std::string_view>({
    "Accra",    "Amsterdam", "Athens",    "Auckland",  "Bangkok",   "Barcelona", "Beirut",    "Belgrade", "Berlin",
    "Bogota",   "Brussels",  "Budapest",  "Cairo",     "Calgary",   "Caracas",   "Chicago",   "Colombo",  "Copenhagen",
    "Dakar",    "Damascus",  "Delhi",     "Dublin",    "Geneva",    "Hanoi",     "Havana",    "Helsinki", "Istanbul",
    "Jakarta",  "Karachi",   "Kigali",    "Kyoto",     "Lagos",     "Lima",      "Lisbon",    "London",   "Luanda",
    "Madrid",   "Manila",    "Marrakesh", "Melbourne", "Montreal",  "Mumbai",    "Nairobi",   "Osaka",    "Oslo",
    "Paris",    "Perth",     "Prague",    "Quito",     "Rabat",     "Reykjavik", "Riga",      "Rome",     "Santiago",
    "Sarajevo", "Seattle",   "Seoul",     "Shanghai",  "Singapore", "Sofia",     "Stockholm", "Sydney",   "Tallinn",
    "Tokyo",    "Toronto",   "Tunis",     "Vancouver", "Vienna",    "Vilnius",   "Warsaw",    "Yerevan",  "Zurich",
});
constexpr int64_t kNeedleDigits = 7;
constexpr int64_t kNeedleSaidTokens = 10;  // a space, seven digits, and enough to see where the number ends

Piece needle_of(std::string_view city, std::string_view number) {
  const std::string opening = fmt::format("The special magic {} number is:", city);
  const std::string text = fmt::format("{} {}.", opening, number);
  return {.text = text, .answer = 0, .span = {static_cast<int64_t>(opening.size()), static_cast<int64_t>(text.size())}};
}

std::string question_about(std::string_view city) {
  return fmt::format("\nWhat is the special magic {} number? The special magic {} number is:", city, city);
}

int64_t bytes_without_filler(std::string_view city) {
  const std::string number(kNeedleDigits, '0');
  return static_cast<int64_t>(needle_of(city, number).text.size() + question_about(city).size());
}

int64_t needle_min_length(const Settings&) {
  int64_t least = 0;
  for (const std::string_view city : kCities) least = std::max(least, bytes_without_filler(city));
  return least;
}

TextInstance needle_instance(const TaskRequest& request, uint64_t index) {
  static const Haystack noise;
  Random random = instance_random(kNeedle, request, index);
  const std::string_view city = kCities[random.below(kCities.size())];
  const std::string number = draw_number(random, kNeedleDigits);
  const Haystack& haystack = request.haystack == nullptr ? noise : *request.haystack;
  const auto sentences = haystack.take(request.length - bytes_without_filler(city) - 1);  // 1: the needle's separator
  const size_t before = sentences_before(sentences, *request.depth);
  std::vector<Piece> pieces;
  for (const std::string_view sentence : sentences) pieces.push_back(plain_piece(sentence));
  pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(before), needle_of(city, number));
  TextInstance instance{
      .prompt = "", .answers = {number}, .answer_spans = std::vector<ByteSpan>(1), .depth = request.depth};
  append_pieces(instance.prompt, pieces, " ", instance.answer_spans);
  instance.prompt += question_about(city);
  return instance;
}

/// Every number that the prompt assigns to the city of its question.
std::vector<std::string> solve_needle(std::string_view prompt) {
  const auto cities = all_between(prompt, "\nWhat is the special magic ", " number?");
  if (cities.empty()) return {};
  return distinct(all_between(prompt, fmt::format("The special magic {} number is: ", cities.back()), "."));
}

}  // namespace

std::vector<Task> needle_tasks() {
  return {{.name = "needle",
           .summary = "the number of a city, hidden in one sentence of a haystack",
           .default_length = 1024,
           .takes_depth = true,
           .haystack = HaystackUse::kOptional,
           .min_length = needle_min_length,
           .kind = TextTask{needle_instance, solve_needle, first_number_matches, kNeedleSaidTokens}}};
}

}  // namespace tamis::data

#include "tamis/data/niah.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "tamis/data/task_text.h"
#include "tamis/data/words.h"

namespace tamis::data {
namespace {

enum class Hidden { kInNoise, kInHaystack, kAmongNeedles };
enum class Kind { kWord, kNumber, kUuid };

struct Form {
  std::string_view name;
  std::string_view summary;
  Hidden hidden;
  Kind key;
  Kind value;
  int64_t keys = 1;
  int64_t values = 1;  // per key
  int64_t queries = 1;

  int64_t needles() const { return keys * values; }
  int64_t answers() const { return queries * values; }
  bool plural() const { return answers() > 1; }
};

constexpr auto kForms = std::to_array<Form>({
    {"niah_single_1", "RULER: one number in noise", Hidden::kInNoise, Kind::kWord, Kind::kNumber},
    {"niah_single_2", "RULER: one number in a text", Hidden::kInHaystack, Kind::kWord, Kind::kNumber},
    {"niah_single_3", "RULER: one UUID in a text", Hidden::kInHaystack, Kind::kWord, Kind::kUuid},
    {"niah_multikey_1", "RULER: one of four numbers in a text", Hidden::kInHaystack, Kind::kWord, Kind::kNumber, 4},
    {"niah_multikey_2", "RULER: one number among many needles", Hidden::kAmongNeedles, Kind::kWord, Kind::kNumber},
    {"niah_multikey_3", "RULER: one UUID among many needles", Hidden::kAmongNeedles, Kind::kUuid, Kind::kUuid},
    {"niah_multivalue", "RULER: the four numbers of one key, in a text", Hidden::kInHaystack, Kind::kWord,
     Kind::kNumber, 1, 4},
    {"niah_multiquery", "RULER: the numbers of four keys, in a text", Hidden::kInHaystack, Kind::kWord, Kind::kNumber,
     4, 1, 4},
});

constexpr int64_t kNumberDigits = 7;
constexpr int64_t kDepths = 40;  // equally spaced, rounded to whole percent
constexpr int64_t kNiahSaidTokens = 128;

std::string draw_uuid(Random& random) {
  const uint64_t high = (random.next() & ~uint64_t{0xf000}) | 0x4000;               // version 4
  const uint64_t low = (random.next() & ~(uint64_t{3} << 62)) | uint64_t{1} << 63;  // RFC 4122
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xffff, high & 0xffff, low >> 48,
                     low & 0xffff'ffff'ffff);
}

std::string draw(Random& random, Kind kind) {
  if (kind == Kind::kWord) return draw_word(random);
  return kind == Kind::kNumber ? draw_number(random, kNumberDigits) : draw_uuid(random);
}

std::string draw_other_than(Random& random, Kind kind, const std::set<std::string>& taken) {
  std::string drawn = draw(random, kind);
  while (taken.contains(drawn)) drawn = draw(random, kind);
  return drawn;
}

/// A placeholder with the length of the longest string that draw() returns.
std::string longest(Kind kind) {
  if (kind == Kind::kWord) return longest_word();
  return std::string(kind == Kind::kNumber ? kNumberDigits : 36, '0');
}

std::string_view noun(Kind value, bool plural) {
  const std::string_view nouns = value == Kind::kNumber ? "numbers" : "uuids";
  return plural ? nouns : nouns.substr(0, nouns.size() - 1);
}

Piece needle_of(const Form& form, std::string_view key, std::string_view value, int64_t answer) {
  const std::string opening = fmt::format("One of the special magic {} for {} is:", noun(form.value, true), key);
  const std::string text = fmt::format("{} {}.", opening, value);
  return {.text = text,
          .answer = answer,
          .span = {static_cast<int64_t>(opening.size()), static_cast<int64_t>(text.size())}};
}

std::string opening_of(const Form& form) {
  const std::string_view what = noun(form.value, form.plural());
  return fmt::format(
      "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will quiz you about the {} "
      "afterwards.\n",
      form.plural() ? "Some" : "A", what, form.plural() ? "are" : "is", what);
}

std::string question_of(const Form& form, std::span<const std::string> keys) {
  std::string query;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0) query += i + 1 == keys.size() ? ", and " : ", ";
    query += keys[i];
  }
  const std::string_view what = noun(form.value, form.plural());
  return fmt::format(
      "\nWhat {} the special magic {} for {} mentioned in the provided text? The special magic {} for {} mentioned in "
      "the provided text {}",
      form.plural() ? "are all" : "is", what, query, what, query, form.plural() ? "are" : "is");
}

struct Needles {
  std::vector<std::string> asked;    // keys of the question
  std::vector<std::string> answers;  // their values, key by key
  std::set<std::string> taken;       // all keys and values, which are distinct
  std::vector<Piece> pieces;         // in random order
};

Needles draw_needles(Random& random, const Form& form) {
  Needles needles;
  for (int64_t key = 0; key < form.keys; ++key) {  // the question asks for the first form.queries keys
    const std::string name = draw_other_than(random, form.key, needles.taken);
    needles.taken.insert(name);
    if (key < form.queries) needles.asked.push_back(name);
    for (int64_t i = 0; i < form.values; ++i) {
      const std::string value = draw_other_than(random, form.value, needles.taken);
      needles.taken.insert(value);
      needles.pieces.push_back(needle_of(form, name, value, key < form.queries ? key * form.values + i : -1));
      if (key < form.queries) needles.answers.push_back(value);
    }
  }
  random.shuffle(std::span<Piece>(needles.pieces));
  return needles;
}

struct Context {
  std::vector<Piece> pieces;
  std::optional<double> depth;  // if there is a single needle
};

/// Inserts each needle before the filler piece at its index in `places`, which ascend. With `mark_gaps`, an empty piece
/// is inserted wherever there is no filler before, between or after the needles.
Context merge(const std::vector<Piece>& filler, const std::vector<Piece>& needles, std::span<const int64_t> places,
              bool mark_gaps) {
  Context context;
  const auto size = static_cast<int64_t>(filler.size());
  for (size_t next = 0, at = 0; next <= needles.size(); ++next) {
    const size_t end = next < needles.size() ? places[next] : size;
    if (mark_gaps && at == end) context.pieces.push_back(plain_piece(""));
    while (at < end) context.pieces.push_back(filler[at++]);
    if (next < needles.size()) context.pieces.push_back(needles[next]);
  }
  if (needles.size() == 1)
    context.depth = static_cast<double>(places[0]) / static_cast<double>(std::max<int64_t>(1, size));
  return context;
}

/// The harness joins empty gaps too: it puts an extra space next to a needle at either end of the text and between two
/// needles at the same place. There are at most needles + 1 such spaces.
int64_t gap_bytes(const std::vector<Piece>& needles) {
  return static_cast<int64_t>(needles.size()) + 1;
}

Context in_haystack(Random& random, const Haystack& haystack, const std::vector<Piece>& needles, int64_t bytes) {
  std::vector<Piece> filler;
  for (const std::string_view sentence : haystack.take(bytes)) filler.push_back(plain_piece(sentence));
  std::vector<int64_t> places;
  for (const int64_t step : draw_places(random, static_cast<int64_t>(needles.size()), kDepths)) {
    const auto percent = std::llround(100.0 * static_cast<double>(step) / (kDepths - 1));
    places.push_back(static_cast<int64_t>(filler.size()) * percent / 100);
  }
  return merge(filler, needles, places, /*mark_gaps=*/true);
}

/// Inserts each needle before a random line; there is always a line after the last needle.
Context among_lines(Random& random, const std::vector<Piece>& lines, const std::vector<Piece>& needles) {
  const auto count = static_cast<int64_t>(needles.size());
  const auto places = draw_places(random, count, static_cast<int64_t>(lines.size()));
  return merge(lines, needles, places, /*mark_gaps=*/false);
}

/// As many other needles, each on a line of its own, as fit into `bytes` bytes.
std::vector<Piece> draw_others(Random& random, const Form& form, const std::set<std::string>& taken, int64_t bytes) {
  std::vector<Piece> others;
  while (true) {
    const std::string key = draw_other_than(random, form.key, taken);
    Piece other = needle_of(form, key, draw_other_than(random, form.value, taken), -1);
    bytes -= static_cast<int64_t>(other.text.size()) + 1;
    if (bytes < 0) return others;
    others.push_back(std::move(other));
  }
}

Context context_of(Random& random, const Form& form, const Haystack* haystack, const Needles& needles, int64_t bytes) {
  bytes -= joined_bytes(needles.pieces, " ");
  if (form.hidden == Hidden::kInHaystack) {
    return in_haystack(random, *haystack, needles.pieces, bytes - gap_bytes(needles.pieces));
  }
  if (form.hidden == Hidden::kAmongNeedles) {
    return among_lines(random, draw_others(random, form, needles.taken, bytes), needles.pieces);
  }
  const auto lines = bytes / static_cast<int64_t>(kNoise.size() + 1);
  return among_lines(random, std::vector<Piece>(lines, plain_piece(kNoise)), needles.pieces);
}

TextInstance niah_instance(const Form& form, Stream stream, const TaskRequest& request, uint64_t index) {
  Random random = instance_random(stream, request, index);
  Needles needles = draw_needles(random, form);
  const std::string question = question_of(form, needles.asked);
  TextInstance instance{
      .prompt = opening_of(form), .answers = needles.answers, .answer_spans = std::vector<ByteSpan>(form.answers())};
  const auto fixed = static_cast<int64_t>(instance.prompt.size() + question.size());
  const Context context = context_of(random, form, request.haystack, needles, request.length - fixed);
  append_pieces(instance.prompt, context.pieces, form.hidden == Hidden::kInHaystack ? " " : "\n",
                instance.answer_spans);
  instance.prompt += question;
  instance.depth = context.depth;
  return instance;
}

/// Requires space for at least one line of noise or one other needle besides the needles, but for no haystack sentence.
int64_t niah_min_length(const Form& form) {
  const std::string key = longest(form.key);
  const Piece needle = needle_of(form, key, longest(form.value), -1);
  std::vector<Piece> pieces(form.needles(), needle);
  const int64_t gaps = form.hidden == Hidden::kInHaystack ? gap_bytes(pieces) : 0;
  if (form.hidden == Hidden::kInNoise) pieces.push_back(plain_piece(kNoise));
  if (form.hidden == Hidden::kAmongNeedles) pieces.push_back(needle);
  return static_cast<int64_t>(opening_of(form).size() + question_of(form, std::vector(form.queries, key)).size()) +
         joined_bytes(pieces, "\n") + gaps;
}

/// Every value that the prompt states for the keys of its question.
std::vector<std::string> solve_niah(std::string_view prompt) {
  const size_t question = prompt.rfind("\nWhat ");
  if (question == prompt.npos) return {};
  const auto queries = all_between(prompt.substr(question), " for ", " mentioned in the provided text?");
  if (queries.empty()) return {};
  std::vector<std::string_view> values;
  for (std::string_view left = queries[0]; !left.empty();) {
    const std::string_view key = left.substr(0, left.find(", "));
    left.remove_prefix(std::min(left.size(), key.size() + 2));
    if (left.starts_with("and ")) left.remove_prefix(4);
    for (const std::string_view what : {"numbers", "uuids"}) {
      const std::string told = fmt::format("One of the special magic {} for {} is: ", what, key);
      for (const std::string_view value : all_between(prompt, told, ".")) values.push_back(value);
    }
  }
  return distinct(values);
}

}  // namespace

std::vector<Task> niah_tasks() {
  std::vector<Task> tasks;
  for (const Form& form : kForms) {
    const auto stream = static_cast<Stream>(kNiah + tasks.size());
    tasks.push_back({.name = std::string(form.name),
                     .summary = std::string(form.summary),
                     .default_length = 4096,
                     .haystack = form.hidden == Hidden::kInHaystack ? HaystackUse::kRequired : HaystackUse::kNone,
                     .min_length = [&form](const Settings&) { return niah_min_length(form); },
                     .kind = TextTask{[&form, stream](const TaskRequest& request, uint64_t index) {
                                        return niah_instance(form, stream, request, index);
                                      },
                                      solve_niah, contained_share, kNiahSaidTokens}});
  }
  return tasks;
}

}  // namespace tamis::data

#include "tamis/data/passkey.h"

#include <fmt/format.h>

#include "tamis/data/task_text.h"

namespace tamis::data {
namespace {

constexpr std::string_view kOpening =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there.";
constexpr std::string_view kTold = "The pass key is ";
constexpr std::string_view kQuestion = "What is the pass key? The pass key is";
constexpr int64_t kKeyDigits = 5;
constexpr int64_t kPasskeySaidTokens = 8;  // a space, five digits, and enough to see where the number ends

std::string join(std::span<const std::string_view> sentences) {
  std::string text;
  for (const std::string_view sentence : sentences) {
    if (!text.empty()) text += ' ';
    text += sentence;
  }
  return text;
}

Piece line_of(const std::string& key) {
  const auto begin = static_cast<int64_t>(kTold.size());
  return {.text = fmt::format("{}{}. Remember it. {} is the pass key.", kTold, key, key),
          .answer = 0,
          .span = {begin, begin + kKeyDigits}};
}

/// The five parts of a prompt; the second and the fourth are filler.
std::vector<Piece> parts(std::string_view before, const std::string& key, std::string_view after) {
  return {plain_piece(kOpening), plain_piece(before), line_of(key), plain_piece(after), plain_piece(kQuestion)};
}

int64_t passkey_min_length(const Settings&) {
  return joined_bytes(parts("", std::string(kKeyDigits, '0'), ""), "\n");
}

TextInstance passkey_instance(const TaskRequest& request, uint64_t index) {
  Random random = instance_random(kPasskey, request, index);
  const std::string key = draw_number(random, kKeyDigits);
  const Haystack noise;
  const auto sentences = noise.take(request.length - passkey_min_length(request.settings));
  const std::span<const std::string_view> filler = sentences;
  const size_t before = sentences_before(filler, *request.depth);
  TextInstance instance{
      .prompt = "", .answers = {key}, .answer_spans = std::vector<ByteSpan>(1), .depth = request.depth};
  append_pieces(instance.prompt, parts(join(filler.first(before)), key, join(filler.subspan(before))), "\n",
                instance.answer_spans);
  return instance;
}

/// Every number that the prompt states as the pass key, in either of its two sentences.
std::vector<std::string> solve_passkey(std::string_view prompt) {
  std::vector<std::string_view> keys = all_between(prompt, kTold, ".");
  for (const std::string_view key : all_between(prompt, "Remember it. ", " is the pass key.")) keys.push_back(key);
  return distinct(keys);
}

}  // namespace

std::vector<Task> passkey_tasks() {
  return {{.name = "passkey",
           .summary = "a five-digit number between lines of filler",
           .default_length = 1024,
           .takes_depth = true,
           .min_length = passkey_min_length,
           .kind = TextTask{passkey_instance, solve_passkey, first_number_matches, kPasskeySaidTokens}}};
}

}  // namespace tamis::data

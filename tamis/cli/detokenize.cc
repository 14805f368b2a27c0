#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/tokenizer.h"

namespace tamis::cli {
namespace {

struct DetokenizeCommand {
  std::string tokenizer;
  std::filesystem::path file;  // "-" reads standard input
  bool json = false;
};

constexpr std::string_view kSpace = " \t\r\n";

/// Ids separated by white space.
std::vector<int64_t> read_plain_ids(std::string_view text, const std::string& where) {
  std::vector<int64_t> ids;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(kSpace));
    int64_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      fail(ExitCode::kInput, "{}: expected token ids, but got {}", where, quoted_name(word));
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

/// A JSON list, or an object with one at `tokens`.
std::vector<int64_t> read_json_ids(std::string_view text, const std::string& where) {
  const nlohmann::json contents = parse_json(text, where, /*most_levels=*/4);
  const auto tokens = contents.is_object() ? contents.find("tokens") : contents.end();
  if (contents.is_object() && tokens == contents.end()) fail(ExitCode::kInput, "{}: has no key \"tokens\"", where);
  const nlohmann::json& list = contents.is_object() ? *tokens : contents;
  if (!list.is_array()) fail(ExitCode::kInput, "{}: expected a list of token ids, but got {}", where, shown(list));
  std::vector<int64_t> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer()) fail(ExitCode::kInput, "{}: expected token ids, but got {}", where, shown(id));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::vector<int64_t> read_ids(const std::filesystem::path& file) {
  const std::string text = read_input(file);
  const size_t first = text.find_first_not_of(kSpace);
  const bool is_json = first != text.npos && (text[first] == '{' || text[first] == '[');
  return is_json ? read_json_ids(text, input_name(file)) : read_plain_ids(text, input_name(file));
}

void run(const DetokenizeCommand& command) {
  const auto tokenizer = tokenizer_named(command.tokenizer);
  const std::string text = tokenizer->decode(read_ids(command.file));
  fmt::print("{}", command.json ? to_line({{"text", text}}) : text);
}

}  // namespace

void add_detokenize(CLI::App& app) {
  auto command = std::make_shared<DetokenizeCommand>();
  auto* sub = app.add_subcommand("detokenize", "Print the text of token ids.");
  add_tokenizer_argument(*sub, command->tokenizer);
  sub->add_option("file", command->file,
                  "What `tamis tokenize` prints, with or without --json, or a JSON list; - reads standard input")
      ->type_name("FILE")
      ->required();
  add_json_option(*sub, command->json);
  sub->footer("tamis tokenize byte README.md | tamis detokenize byte -");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli

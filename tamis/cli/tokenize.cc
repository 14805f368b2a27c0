#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tamis/base/input.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/tokenizer.h"

namespace tamis::cli {
namespace {

struct TokenizeCommand {
  std::string tokenizer;
  std::filesystem::path file;  // "-" reads standard input
  bool json = false;
};

void run(const TokenizeCommand& command) {
  const auto tokenizer = tokenizer_named(command.tokenizer);
  const std::vector<int64_t> ids = tokenizer->encode(read_input(command.file));
  const char* separator = command.json ? ", " : " ";
  fmt::memory_buffer line;
  for (const int64_t id : ids) fmt::format_to(std::back_inserter(line), "{}{}", line.size() == 0 ? "" : separator, id);
  const std::string_view list(line.data(), line.size());
  fmt::print("{}{}{}\n", command.json ? "{\"tokens\": [" : "", list, command.json ? "]}" : "");
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto command = std::make_shared<TokenizeCommand>();
  auto* sub = app.add_subcommand("tokenize", "Print the token ids of a text; no special tokens are added.");
  add_tokenizer_argument(*sub, command->tokenizer);
  sub->add_option("file", command->file, "Text file; - reads standard input")->type_name("FILE")->required();
  add_json_option(*sub, command->json);
  sub->footer("tamis tokenize runs/demo README.md --json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli

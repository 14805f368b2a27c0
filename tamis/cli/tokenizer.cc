#include "tamis/cli/tokenizer.h"

#include <filesystem>

#include "tamis/models/checkpoint.h"

namespace tamis::cli {

void add_tokenizer_argument(CLI::App& command, std::string& tokenizer) {
  command.add_option("tokenizer", tokenizer, "byte, a tokenizer.json, or a checkpoint or run directory")
      ->type_name("FILE")
      ->required();
}

std::unique_ptr<text::Tokenizer> tokenizer_named(const std::string& name) {
  if (name == "byte") return text::make_byte_tokenizer();
  constexpr const char* kFile = "tokenizer.json";
  const std::filesystem::path path = name;
  std::error_code missing;
  if (!std::filesystem::is_directory(path, missing)) return text::load_tokenizer(path);
  const bool here = std::filesystem::exists(path / kFile, missing);
  return text::load_tokenizer((here ? path : models::resolve_checkpoint(path)) / kFile);
}

}  // namespace tamis::cli

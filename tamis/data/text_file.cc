#include "tamis/data/text_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"

namespace tamis::data {
namespace {

std::vector<int32_t> read_tokens(const text::Tokenizer& tokenizer, const std::vector<std::filesystem::path>& files) {
  std::vector<int32_t> tokens;
  for (const auto& file : files) {
    const std::string text = read_file(file);
    if (text.empty()) fail(ExitCode::kInput, "{}: is empty; expected text", file.string());
    if (!tokens.empty() && tokenizer.end_of_text() >= 0)
      tokens.push_back(static_cast<int32_t>(tokenizer.end_of_text()));
    const auto ids = tokenizer.encode(text);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

std::string describe(const TextFileOptions& options) {
  std::vector<std::string> names;
  for (const auto& file : options.files) names.push_back(file.string());
  return fmt::format("{} ({} split)", fmt::join(names, ", "),
                     options.split == Split::kTraining ? "training" : "validation");
}

std::shared_ptr<const MemoryTokens> read_split(const text::Tokenizer& tokenizer, const TextFileOptions& options) {
  if (options.files.empty()) fail(ExitCode::kUsage, "text: no files named; expected at least one");
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    fail(ExitCode::kUsage, "text: validation_fraction must be in [0, 1), but is {}", fraction);
  }
  std::vector<int32_t> tokens = read_tokens(tokenizer, options.files);
  const auto boundary = tokens.end() - static_cast<std::ptrdiff_t>(fraction * static_cast<double>(tokens.size()));
  if (options.split == Split::kTraining) {
    tokens.erase(boundary, tokens.end());
  } else {
    tokens.erase(tokens.begin(), boundary);
  }
  return std::make_shared<MemoryTokens>(describe(options), std::move(tokens), tokenizer.end_of_text());
}

}  // namespace

TextFileSource::TextFileSource(const text::Tokenizer& tokenizer, const TextFileOptions& options)
    : tokens_(read_split(tokenizer, options)),
      source_(tokens_, {.sampling = options.sampling, .documents = options.documents, .seed = options.seed}) {}

}  // namespace tamis::data

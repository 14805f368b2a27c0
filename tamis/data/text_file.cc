#include "tamis/data/text_file.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/random.h"
#include "tamis/data/streams.h"

namespace tamis::data {
namespace {

std::vector<int32_t> read_tokens(const text::Tokenizer& tokenizer, const std::vector<std::filesystem::path>& files) {
  std::vector<int32_t> tokens;
  for (const auto& file : files) {
    const std::string text = read_file(file);
    if (text.empty()) fail(ExitCode::kInput, "{}: is empty; expected text", file.string());
    if (!tokens.empty()) tokens.push_back(static_cast<int32_t>(tokenizer.end_of_text()));
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

}  // namespace

TextFileSource::TextFileSource(const text::Tokenizer& tokenizer, const TextFileOptions& options)
    : name_(describe(options)), seed_(options.seed) {
  if (options.files.empty()) fail(ExitCode::kUsage, "text: no files named; expected at least one");
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    fail(ExitCode::kUsage, "text: validation_fraction must be in [0, 1), but is {}", fraction);
  }
  tokens_ = read_tokens(tokenizer, options.files);
  const auto boundary = tokens_.end() - static_cast<std::ptrdiff_t>(fraction * static_cast<double>(tokens_.size()));
  if (options.split == Split::kTraining) {
    tokens_.erase(boundary, tokens_.end());
  } else {
    tokens_.erase(tokens_.begin(), boundary);
  }
}

Example TextFileSource::example(uint64_t index, int64_t length) const {
  const auto size = static_cast<int64_t>(tokens_.size());
  if (length < 1) fail(ExitCode::kUsage, "text: sequences must have at least one token, but the length is {}", length);
  if (size < length + 1) {
    fail(ExitCode::kInput,
         "{}: holds {} tokens, but a sequence of {} needs {}; use more text, shorter sequences or another "
         "validation_fraction",
         name_, size, length, length + 1);
  }
  const auto start = static_cast<int64_t>(Random({kTextFileWindow, seed_, index}).below(size - length));
  const auto first = tokens_.begin() + start;
  return {.tokens = {first, first + length}, .targets = {first + 1, first + 1 + length}};
}

}  // namespace tamis::data

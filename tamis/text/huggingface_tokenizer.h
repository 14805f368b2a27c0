#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tamis/text/tokenizer.h"

namespace tamis::text {

/// False in a build without cargo: then the functions below throw ExitCode::kRuntime with the command that installs it.
bool has_huggingface_tokenizers();

/// The tokenizer of `json`, the contents of a tokenizer.json; `where` names it in messages, `kind` is the type of its
/// model. Throws ExitCode::kInput.
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(std::string json, std::string_view where, std::string kind);

struct TokenizerTraining {
  int64_t vocab_size = 4096;                // of the tokenizer: 256 bytes, the end-of-text token and merges
  int64_t min_frequency = 2;                // a pair of tokens is merged only if it occurs this often
  int64_t threads = 0;                      // 0: one per core
  std::function<void()> merging = nullptr;  // called once the text is read
};

/// The next part of the text, empty at its end. It must stay valid until the next call and should end with a line,
/// because each part and each line are split into words on their own.
using NextPart = std::function<std::string_view()>;

struct TrainedTokenizer {
  std::string json;       // a tokenizer.json
  int64_t cut_bytes = 0;  // of words of more than 4,096 bytes, which were cut into pieces of 256
};

/// Trains a byte-level BPE tokenizer with GPT-2's splitting into words and the token <|endoftext|> = 0. The result
/// depends on the text and the sizes alone, and equals that of the Python package `tokenizers` for a file of the same
/// lines, unless words were cut: without that the time would grow with the square of their lengths. Memory for the
/// distinct words of the text.
TrainedTokenizer train_tokenizer(const TokenizerTraining& training, const NextPart& next);

}  // namespace tamis::text

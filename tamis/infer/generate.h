#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/infer/load.h"
#include "tamis/infer/options.h"

namespace tamis::infer {

struct Generation {
  enum class End { kLength, kStopString, kEndOfText };
  std::string text;             // without the stop string; invalid UTF-8 is replaced by U+FFFD
  std::vector<int64_t> tokens;  // all sampled tokens, including those of the stop string and end of text
  End end = End::kLength;
  int64_t prompt_tokens = 0;
  int64_t state_bytes = 0;  // decoding state at the end
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

/// `length`, `stop` or `end_of_text`.
const char* name_of(Generation::End end);

/// Continues a prompt. Calls `on_text` with the text as it is generated, in pieces of complete characters whose
/// concatenation is Generation::text. Apart from the prompt's ids, only the decoding state grows with the prompt.
/// Throws ExitCode::kUsage when the prompt is empty or an option is out of range.
Generation generate(const LoadedModel& loaded, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text = {});

}  // namespace tamis::infer

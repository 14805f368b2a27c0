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
  std::string text;             // valid UTF-8: what is not is U+FFFD; without the stop string
  std::vector<int64_t> tokens;  // all that were drawn, those of a stop string and end of text included
  End end = End::kLength;
  int64_t prompt_tokens = 0;
  int64_t state_bytes = 0;  // decoding state at the end
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

/// `length`, `stop` or `end_of_text`.
const char* name_of(Generation::End end);

/// Continues a prompt. `on_text` gets the text as it comes, in pieces of whole characters that together are
/// Generation::text. Memory does not grow with the prompt beyond the decoding state. Throws ExitCode::kUsage when the
/// prompt is empty or an option is out of range.
Generation generate(const LoadedModel& loaded, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text = {});

}  // namespace tamis::infer

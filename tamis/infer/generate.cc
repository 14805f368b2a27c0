#include "tamis/infer/generate.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "tamis/base/memory.h"
#include "tamis/base/terminal.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/sampling.h"
#include "tamis/infer/stop_filter.h"
#include "tamis/text/utf8.h"

namespace tamis::infer {
namespace {

/// The logits of the tokens that the tokenizer has; a model's vocabulary may be larger.
at::Tensor row(const at::Tensor& logits_1N, const text::Tokenizer& tokenizer) {
  return logits_1N[0].narrow(0, 0, tokenizer.vocab_size());
}

/// Tokens to allocate state for at the start: the prompt and a part of max_new_tokens, since generation may stop early.
int64_t room_for(int64_t prompt, int64_t most_new) {
  return prompt + std::min(most_new, std::max<int64_t>(1024, prompt / 8));
}

/// The stop strings as they appear in the text that is generated, which is UTF-8.
std::vector<std::string> valid_stops(std::vector<std::string> stops) {
  for (std::string& stop : stops) stop = text::valid_utf8(stop);
  return stops;
}

}  // namespace

const char* name_of(Generation::End end) {
  switch (end) {
    case Generation::End::kLength:
      return "length";
    case Generation::End::kStopString:
      return "stop";
    case Generation::End::kEndOfText:
      return "end_of_text";
  }
  return "";
}

Generation generate(const LoadedModel& loaded, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text) {
  check_options(options);
  check_prompt(prompt);
  StopFilter stop(valid_stops(options.stop));
  Generation generation;
  const auto show = [&](const std::string& text) {
    generation.text += text;
    if (on_text && !text.empty()) on_text(text);
  };

  const double start = now_seconds();
  const std::vector<int64_t> ids = loaded.tokenizer->encode(prompt);
  generation.prompt_tokens = static_cast<int64_t>(ids.size());
  require_memory(sizeof(int64_t) * static_cast<double>(ids.size()), fmt::format("a prompt of {} tokens", ids.size()),
                 "use a shorter prompt");
  Decoder decoder(*loaded.model, 1, forward_options(options.weights, options.expand_windows));
  decoder.reserve(room_for(generation.prompt_tokens, options.max_new_tokens));
  at::Tensor logits = decoder.logits_after(to_tensor(ids), options.prefill_tokens);
  const auto characters = loaded.tokenizer->stream_decoder(ids);
  const double prefilled = now_seconds();

  while (true) {
    const uint64_t position = ids.size() + generation.tokens.size();
    const int64_t token = sample(row(logits, *loaded.tokenizer), options.sampling, position);
    generation.tokens.push_back(token);
    if (token == loaded.tokenizer->end_of_text()) {
      generation.end = Generation::End::kEndOfText;
      break;
    }
    show(stop.push(characters->push(token)));
    if (stop.stopped()) {
      generation.end = Generation::End::kStopString;
      break;
    }
    if (static_cast<int64_t>(generation.tokens.size()) == options.max_new_tokens) break;
    logits = decoder.logits_after(to_tensor({&token, 1}), 1);
  }
  show(stop.push(characters->finish()));
  show(stop.finish());

  generation.state_bytes = decoder.state_bytes();
  generation.prefill_seconds = prefilled - start;
  generation.decode_seconds = now_seconds() - prefilled;
  return generation;
}

}  // namespace tamis::infer

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tamis/text/tokenizer.h"

namespace tamis::text {

/// A stream decoder for a tokenizer whose text of an id may depend on the ids before it: it decodes the last few ids
/// and returns what is new. `tokenizer` must outlive it.
std::unique_ptr<StreamDecoder> make_window_decoder(const Tokenizer& tokenizer, std::span<const int64_t> context);

}  // namespace tamis::text

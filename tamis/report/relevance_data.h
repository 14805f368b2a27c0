#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/text/tokenizer.h"

namespace tamis::report {

/// One tile's relevance map as the page reads it (web/relevance.js): one byte a pair of tokens, from which similarity,
/// Trim and Softmask follow.
///
/// layer, head, window (null: infinite), accept (null: the mixer has none)
/// nonzero  fraction of the pairs inside the window whose relevance is not zero (fig. 14 of "Screening Is Enough")
/// scale    null for screening, code = round(255 sqrt(Trim)); else the largest weight, code = round(255 weight /
/// scale).
///          A pair with a relevance above zero has a code of at least 1.
/// codes    base64 of the codes of all pairs inside the window, query by query, oldest key first; a run of zeros is
///          a 0 and its length (1..255)
nlohmann::json encode_map(const models::RelevanceMap& map, int64_t head);

/// Maps of all tiles for one text: {tokens [text of each token], maps [encode_map...], note}.
/// Throws ExitCode::kInput when `tokens` is empty, and ExitCode::kUsage when the maps would need over 4 GiB.
nlohmann::json describe_relevance(const models::Model& model, const text::Tokenizer& tokenizer,
                                  std::span<const int64_t> tokens, const models::ForwardOptions& options);

/// Every token's text for reading. Where a character spans several tokens (bytes, say) the first has all of it and the
/// others a middle dot; bytes that belong to no character become `\xE2`.
std::vector<std::string> readable_tokens(const text::Tokenizer& tokenizer, std::span<const int64_t> tokens);

}  // namespace tamis::report

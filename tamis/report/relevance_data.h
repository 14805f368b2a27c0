#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/mixer.h"
#include "tamis/models/model.h"
#include "tamis/text/tokenizer.h"

namespace tamis::report {

/// What a layer mixes with, for the words that describe its maps.
struct Mechanism {
  std::string name;                                    // "softmax attention"
  models::Support support = models::Support::kWindow;  // kSelected: keys are accepted or rejected
};

/// The relevance maps of all layers for one text.
struct Relevance {
  std::vector<std::string> tokens;         // as readable_tokens
  std::vector<models::RelevanceMap> maps;  // one per layer
  std::vector<Mechanism> mechanisms;       // idem
};

/// Throws ExitCode::kInput when `tokens` is empty, and ExitCode::kUsage when the maps would need over 4 GiB.
Relevance find_relevance(const models::Model& model, const text::Tokenizer& tokenizer, std::span<const int64_t> tokens,
                         const models::ForwardOptions& options);

/// The layer's mechanism, from the model's configuration.
Mechanism mechanism_of(const nlohmann::json& config, int64_t layer);

/// One head's relevance map as the page reads it (web/relevance.js): a float16 for each pair of tokens.
///
/// layer, head, window (null: infinite), accept (null: the mixer has none), mechanism, selects
/// nonzero  fraction of the pairs inside the window whose relevance is not zero (fig. 14 of "Screening Is Enough")
/// keys     how many keys a query spreads over, the mean over the queries of exp(entropy); null when none has a weight
/// scale    null for screening, where a number is sqrt(Trim), from which similarity, Trim and Softmask follow; else a
///          power of two: weight = scale * number, with 11 bits. A pair with a relevance above zero has a number > 0.
/// numbers  base64 of little-endian float16 of all pairs inside the window, query by query, oldest key first; a run of
///          zeros is a 0 and its length (1..65535)
nlohmann::json encode_map(const models::RelevanceMap& map, int64_t head, const Mechanism& mechanism);

/// {tokens, maps [encode_map...]}
nlohmann::json to_json(const Relevance& relevance);

/// Every token's text for reading. Where a character spans several tokens (bytes, say) the first has all of it and the
/// others a middle dot; bytes that belong to no character become `\xE2`.
std::vector<std::string> readable_tokens(const text::Tokenizer& tokenizer, std::span<const int64_t> tokens);

/// Keys that a query sees with this window: those at the distances 0 <= d < w, w a real number.
int64_t keys_in_window(int64_t query, double window);

}  // namespace tamis::report

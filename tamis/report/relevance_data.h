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

/// The mixer of a layer, for the texts that describe its maps.
struct Mechanism {
  std::string name;                                    // "softmax attention"
  models::Support support = models::Support::kWindow;  // kSelected: keys are accepted or rejected
};

/// The relevance maps of all layers for one text.
struct Relevance {
  std::vector<std::string> tokens;         // from readable_tokens
  std::vector<models::RelevanceMap> maps;  // one per layer
  std::vector<Mechanism> mechanisms;       // one per layer
};

/// Computes the relevance maps of all layers for `tokens`; memory and time grow with the square of their number. Throws
/// ExitCode::kInput when `tokens` is empty, and ExitCode::kUsage when the maps would need more than 4 GiB.
Relevance find_relevance(const models::Model& model, const text::Tokenizer& tokenizer, std::span<const int64_t> tokens,
                         const models::ForwardOptions& options);

/// The layer's mechanism, from the model's configuration.
Mechanism mechanism_of(const nlohmann::json& config, int64_t layer);

/// The relevance map of one head in the format of the page (web/relevance.js), with a float16 for each pair of tokens.
///
/// layer, head, window (null: infinite), accept (null: the mixer has none), mechanism, selects
/// nonzero  fraction of the pairs inside the window whose relevance is not zero (fig. 14 of "Screening Is Enough")
/// keys     effective number of keys: the mean over queries of exp(entropy); null when all weights are zero
/// scale    null for screening with the paper's shapes of Trim and Softmask, where a number is sqrt(Trim), from which
///          the page derives similarity, Trim and Softmask; else a power of two: weight = scale * number, with 11 bits.
///          A relevance above zero has a number above zero
/// numbers  base64 of the little-endian float16 of all pairs inside the window, query by query, oldest key first; a run
///          of zeros is encoded as 0 followed by its length (1..65535)
nlohmann::json encode_map(const models::RelevanceMap& map, int64_t head, const Mechanism& mechanism);

/// {tokens, maps [encode_map...]}
nlohmann::json to_json(const Relevance& relevance);

/// The text of each token for display. If a character spans several tokens, such as bytes, the first one shows it and
/// the others a middle dot. Bytes of no valid character are shown as `\xE2`.
std::vector<std::string> readable_tokens(const text::Tokenizer& tokenizer, std::span<const int64_t> tokens);

/// Number of keys in the window of a query: those at distances 0 <= d < w, for a real number w.
int64_t keys_in_window(int64_t query, double window);

}  // namespace tamis::report

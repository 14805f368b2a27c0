#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tamis::text {

/// How a tokenizer.json differs from the byte tokenizer's, or empty when it is equivalent: the same ids for every text.
std::string difference_from_bytes(const nlohmann::json& file);

}  // namespace tamis::text

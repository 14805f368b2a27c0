#pragma once

// Helpers for the tests of this layer. Included by tests only.

#include <string>

namespace tamis::train::testing {

/// A recipe that trains in milliseconds.
inline const std::string kTinyRecipe = R"([model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.digits]
kind = "abc_digits"

[train]
steps = 6
length = 64
batch_size = 4
lr = 0.03
warmup_steps = 2
validate_tokens = 256
)";

}  // namespace tamis::train::testing

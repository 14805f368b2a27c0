#pragma once

// Helpers for the tests of this layer. Included by tests only.

#include <string>
#include <vector>

#include "tamis/base/testing.h"
#include "tamis/shootout/recipe.h"

namespace tamis::shootout::testing {

/// Two mixers of equal size, two tasks, two seeds and three learning rates.
inline const std::string kTwoMixers = R"([shootout]
seeds = [1, 2]
lr = [0.001, 0.01, 0.1]

[evaluation]
multiples = [1, 4]
instances = 20

[model]
model_type = "transformer"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2

[data.sources.copy]
kind = "copy"

[data.sources.recall]
kind = "mqrar"
keys = 2
queries = 4

[train]
steps = 80
length = 32
batch_tokens = 128
lr = 0.05
warmup_steps = 10
validate_tokens = 128

[[mixers]]
name = "rope"

[[mixers]]
name = "window"
model = {pattern = "w", window = 8}
)";

/// `text` with `before` replaced by `after`; fails when it does not contain `before`.
inline std::string replaced(std::string text, const std::string& before, const std::string& after) {
  const size_t at = text.find(before);
  if (at == std::string::npos) {
    ADD_FAILURE() << "not found: " << before;
    return text;
  }
  return text.replace(at, before.size(), after);
}

inline ShootoutRecipe read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const tamis::testing::TemporaryDirectory temporary;
  return load_shootout(temporary.write("small.toml", text), overrides);
}

}  // namespace tamis::shootout::testing

#pragma once

// Helpers for the tests of this layer. Included by tests only.

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "tamis/base/testing.h"
#include "tamis/study/recipe.h"

namespace tamis::study::testing {

/// Two variants of equal size with two seeds and two learning rates.
inline const std::string kTwoVariants = R"([study]
seeds = [1, 2]

[choose]
values = [0.001, 0.01]
steps = 20

[model]
model_type = "transformer"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2

[data.sources.copy]
kind = "copy"

[train]
steps = 80
length = 32
batch_tokens = 128
lr = 0.05
warmup_steps = 10
validate_tokens = 128

[[variants]]
name = "rope"
labels = {position = "rope"}

[[variants]]
name = "window"
model = {pattern = "w", window = 8}
)";

/// A study of a function, which has no model.
inline const std::string kFunction = R"([study]
title = "A function"

[[evaluations]]
kind = "function"
name = "tanh_norm"
settings = {norm = [0, 1, 2]}
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

inline StudyRecipe read(const std::string& text, const std::vector<std::string>& overrides = {},
                        const std::string& tier = "cpu") {
  const tamis::testing::TemporaryDirectory temporary;
  return load_study(temporary.write("small.toml", text), overrides, tier);
}

/// The text of the ExitCode::kUsage error that reading the recipe throws, without the directory of the file.
inline std::string study_error(const std::string& text, const std::vector<std::string>& overrides = {},
                               const std::string& tier = "cpu") {
  const auto [code, message] = tamis::testing::error_of([&] { read(text, overrides, tier); });
  EXPECT_EQ(code, ExitCode::kUsage) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return std::regex_replace(message, std::regex("^/[^ ]*/"), "");
}

struct Refusal {
  std::string text;      // of the recipe
  std::string expected;  // regular expression in the message
};

/// kFunction has 7 lines, so what follows "\n" begins in line 8 + 1.
inline void expect_study_refusals(const std::vector<Refusal>& refusals) {
  for (const auto& [text, expected] : refusals) {
    const std::string message = study_error(text);
    EXPECT_TRUE(std::regex_search(message, std::regex(expected))) << message << "\nexpected: " << expected;
  }
}

}  // namespace tamis::study::testing

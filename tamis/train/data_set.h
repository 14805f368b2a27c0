#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tamis/data/source.h"
#include "tamis/text/tokenizer.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// "byte", or the path of a tokenizer.json.
std::unique_ptr<text::Tokenizer> open_tokenizer(const std::string& name);

/// Sequences as the model takes them.
struct Batch {
  at::Tensor tokens_BT;   // int64
  at::Tensor targets_BT;  // int64, data::kIgnore where nothing is asked
};

Batch make_batch(const std::vector<data::Example>& examples);

/// Examples of one source that training never sees.
struct ValidationSet {
  std::string name;  // of the source, in the recipe
  std::vector<data::Example> examples;
};

/// What a recipe's [data] means. A text's validation examples are windows that cover its validation part evenly, in
/// order; a generated task's are examples with indices that no run reaches.
struct DataSet {
  std::unique_ptr<data::Source> training;
  std::vector<ValidationSet> validation;
  std::map<std::string, std::string> checksums;  // of each text, by the source's name: a run must go on with the same
};

/// Reads every file and makes one example of every source, so that what is missing, empty or too short is an error now.
DataSet open_data(const Recipe& recipe, const text::Tokenizer& tokenizer);

}  // namespace tamis::train

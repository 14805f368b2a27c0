#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tamis/data/source.h"
#include "tamis/text/tokenizer.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// Opens the tokenizer `name`: "byte", or the path of a tokenizer.json or of a checkpoint or run that has one.
std::unique_ptr<text::Tokenizer> open_tokenizer(const std::string& name);

/// The tokenizer of a checkpoint or run; null when it has none, or when there is no checkpoint.
std::unique_ptr<text::Tokenizer> find_tokenizer(const std::filesystem::path& checkpoint);

/// Throws ExitCode::kUsage when the tokenizer has more tokens than the model's vocabulary.
void check_vocab_size(const Recipe& recipe, const text::Tokenizer& tokenizer);

/// A batch of training sequences.
struct Batch {
  at::Tensor tokens_BT;    // int64
  at::Tensor targets_BT;   // int64, data::kIgnore where there is no target
  at::Tensor document_BT;  // int32: tokens see only their own document; undefined when every sequence is one document
};

Batch make_batch(const std::vector<data::Example>& examples);

/// Held-out examples of one source.
struct ValidationSet {
  std::string name;  // of the source, in the recipe
  std::vector<data::Example> examples;
};

/// The data of a recipe. The validation examples of a text or corpus are evenly spaced windows of its validation part,
/// in order; those of a generated task are examples with indices that training never reaches.
struct DataSet {
  std::unique_ptr<data::Source> training;
  std::vector<ValidationSet> validation;
  /// Of the data that were read from files, by source name; a resumed run must have the same.
  std::map<std::string, std::string> checksums;
  std::vector<std::string> notes;  // lines for the user, such as how many prompts were cut
};

/// Steps after which `epochs` passes over the data are done. Throws ExitCode::kUsage when the data have no epochs or
/// the recipe gives another number of steps.
int64_t steps_of_epochs(const DataSet& data, const TrainRecipe& train);

/// Reads every file and draws one example from every source, so that files that are missing, empty or too short are
/// reported before training. Throws ExitCode::kInput or kUsage.
DataSet open_data(const Recipe& recipe, const text::Tokenizer& tokenizer);

}  // namespace tamis::train

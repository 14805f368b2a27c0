#include "tamis/train/data_set.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/random.h"
#include "tamis/data/abc_digits.h"
#include "tamis/data/corpus.h"
#include "tamis/data/mix.h"
#include "tamis/data/prompt_source.h"
#include "tamis/data/registry.h"
#include "tamis/data/task_source.h"
#include "tamis/data/text_file.h"
#include "tamis/data/token_source.h"
#include "tamis/models/checkpoint.h"

namespace tamis::train {
namespace {

constexpr uint64_t kFirstValidationIndex = uint64_t{1} << 62;  // training counts from 0

/// Depends on the source's name, so that the sources of one recipe draw independently.
uint64_t source_seed(const Recipe& recipe, const std::string& name) {
  return Random({static_cast<uint64_t>(recipe.train.seed), checksum(name)}).next();
}

std::string checksum_of(std::string_view bytes) {
  return fmt::format("{:016x}", checksum(bytes));
}

std::string checksum_of(const std::vector<int32_t>& tokens) {
  return checksum_of({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0])});
}

class Opener {
 public:
  Opener(const Recipe& recipe, const text::Tokenizer& tokenizer)
      : recipe_(recipe), tokenizer_(tokenizer), length_(recipe.train.length) {}

  DataSet open() {
    std::vector<data::MixPart> parts;
    for (const SourceRecipe& source : recipe_.data.sources) {
      auto opened = source.kind == "text"      ? open_text(source)
                    : source.kind == "corpus"  ? open_corpus(source)
                    : source.kind == "prompts" ? open_prompts(source)
                                               : open_generated(source);
      parts.push_back({std::move(opened), source.weight});
    }
    const auto seed = static_cast<uint64_t>(recipe_.train.seed);
    data_.training = std::make_unique<data::MixSource>(std::move(parts), seed);
    return std::move(data_);
  }

 private:
  int64_t validation_examples() const {
    const int64_t tokens = recipe_.train.validate_tokens;
    return tokens == 0 ? 0 : std::max<int64_t>(tokens / length_, 1);
  }

  std::unique_ptr<data::Source> open_generated(const SourceRecipe& source) {
    check_tokenizer(source);
    auto opened = source.kind == "abc_digits" ? open_abc_digits(source) : open_task(source);
    opened->example(0, length_);  // throws when it is too short
    ValidationSet validation{source.name, {}};
    for (int64_t i = 0; i < validation_examples(); ++i) {
      validation.examples.push_back(opened->example(kFirstValidationIndex + i, length_));
    }
    if (!validation.examples.empty()) data_.validation.push_back(std::move(validation));
    return opened;
  }

  /// Text tasks generate bytes, so they need the byte tokenizer.
  void check_tokenizer(const SourceRecipe& source) const {
    const bool text = std::holds_alternative<data::TextTask>(data::find_task(source.kind).kind);
    if (text && tokenizer_.name() != "byte") {
      fail(ExitCode::kUsage, "data.sources.{}: {} generates bytes; set data.tokenizer = \"byte\", not {}", source.name,
           source.kind, recipe_.data.tokenizer);
    }
  }

  void check_vocab(const SourceRecipe& source, int64_t ids) const {
    const int64_t most = recipe_.model.value("vocab_size", tokenizer_.vocab_size());
    if (ids <= most) return;
    fail(ExitCode::kUsage,
         "data.sources.{0}: {1} has {2} ids, but model.vocab_size is {3}; set data.sources.{0}.vocab to at most {3}",
         source.name, source.kind, ids, most);
  }

  std::unique_ptr<data::Source> open_abc_digits(const SourceRecipe& source) const {
    data::AbcDigitsOptions options = source.abc_digits;
    options.seed = source_seed(recipe_, source.name);
    return std::make_unique<data::AbcDigitsSource>(options);
  }

  std::unique_ptr<data::Source> open_task(const SourceRecipe& source) {
    data::TaskSourceOptions options = source.task;
    options.task = source.kind;
    options.seed = source_seed(recipe_, source.name);
    auto opened = std::make_unique<data::TaskSource>(options);
    check_vocab(source, opened->vocab_size());
    if (!options.haystack.empty()) data_.checksums[source.name] = checksum_of(read_file(options.haystack));
    return opened;
  }

  static data::Sampling sampling(const SourceRecipe& source) {
    const bool sequential = source.sampling.empty() ? source.kind == "corpus" : source.sampling == "sequential";
    return sequential ? data::Sampling::kSequential : data::Sampling::kRandom;
  }

  std::unique_ptr<data::Source> open_text(const SourceRecipe& source) {
    data::TextFileOptions options;
    options.files.assign(source.files.begin(), source.files.end());
    options.validation_fraction = source.validation_files.empty() ? source.validation_fraction : 0;
    options.seed = source_seed(recipe_, source.name);
    options.sampling = sampling(source);
    options.documents = source.documents;
    auto training = std::make_unique<data::TextFileSource>(tokenizer_, options);
    training->example(0, length_);  // throws when it is too short
    data_.checksums[source.name] = checksum_of(training->tokens());
    options.split = data::Split::kValidation;
    if (!source.validation_files.empty()) {
      options.files.assign(source.validation_files.begin(), source.validation_files.end());
      options.split = data::Split::kTraining;  // all of it
    }
    if (!source.validation_files.empty() || source.validation_fraction > 0) {
      add_validation(source, [&] { return data::TextFileSource(tokenizer_, options).array(); });
    }
    return training;
  }

  std::unique_ptr<data::Source> open_corpus(const SourceRecipe& source) {
    const data::OpenedTokens opened = data::open_tokens(source.path, tokenizer_);
    std::shared_ptr<const data::TokenArray> training = opened.training, held_out = opened.validation;
    if (!source.validation_path.empty()) held_out = data::open_tokens(source.validation_path, tokenizer_).training;
    if (!held_out) {
      const int64_t all = training->size();
      const auto kept = all - static_cast<int64_t>(source.validation_fraction * static_cast<double>(all));
      if (kept < all) held_out = std::make_shared<data::TokenSlice>(training, kept, all - kept);
      training = std::make_shared<data::TokenSlice>(training, 0, kept);
    }
    auto result = std::make_unique<data::TokenSource>(training, token_options(source));
    result->example(0, length_);  // throws when it is too short
    data_.checksums[source.name] = opened.digest;
    if (held_out) add_validation(source, [&] { return held_out; });
    return result;
  }

  std::unique_ptr<data::Source> open_prompts(const SourceRecipe& source) {
    data::PromptAnswers read = read_pairs(source, source.files);
    std::vector<data::PromptAnswer> held_out;
    if (!source.validation_files.empty()) {
      held_out = read_pairs(source, source.validation_files).pairs;
    } else {
      const auto count =
          static_cast<std::ptrdiff_t>(source.validation_fraction * static_cast<double>(read.pairs.size()));
      held_out.assign(read.pairs.end() - count, read.pairs.end());
      read.pairs.erase(read.pairs.end() - count, read.pairs.end());
    }
    auto training = packed(source, read.pairs);
    data_.checksums[source.name] = checksum_of(training->tokens());
    if (!held_out.empty() && validation_examples() > 0) {
      const auto validation = packed(source, held_out);
      ValidationSet set{source.name, {}};
      const auto count = std::min<uint64_t>(validation->sequences(), validation_examples());
      for (uint64_t i = 0; i < count; ++i) set.examples.push_back(validation->sequence(i));
      data_.validation.push_back(std::move(set));
    }
    return training;
  }

  data::PromptAnswers read_pairs(const SourceRecipe& source, const std::vector<std::string>& files) {
    data::PromptAnswers read = data::read_prompt_answers(files, source.templates);
    if (read.without_answer > 0) {
      data_.notes.push_back(fmt::format("data.sources.{}: {} of {} questions have no answer and are left out",
                                        source.name, read.without_answer,
                                        read.without_answer + std::ssize(read.pairs)));
    }
    return read;
  }

  std::unique_ptr<data::PromptSource> packed(const SourceRecipe& source, const std::vector<data::PromptAnswer>& pairs) {
    auto result = std::make_unique<data::PromptSource>(source.name, tokenizer_, pairs, length_,
                                                       source_seed(recipe_, source.name));
    const auto note = [&](int64_t count, const char* what) {
      if (count == 0) return;
      data_.notes.push_back(fmt::format("data.sources.{}: {} of {} {} (train.length = {})", source.name, count,
                                        pairs.size(), what, length_));
    };
    note(result->cut_prompts(), "prompts lose their beginning, because they do not fit");
    note(result->left_out(), "pairs are left out, because their answers do not fit");
    return result;
  }

  data::TokenSourceOptions token_options(const SourceRecipe& source) const {
    return {.sampling = sampling(source),
            .documents = source.documents,
            .seed = source_seed(recipe_, source.name),
            .vocab_size = tokenizer_.vocab_size()};
  }

  /// Evenly spaced sequences of what `open` returns, in order.
  template <typename Open>
  void add_validation(const SourceRecipe& source, const Open& open) {
    if (validation_examples() == 0) return;
    const std::shared_ptr<const data::TokenArray> tokens = open();
    const data::TokenSourceOptions options = token_options(source);
    data::TokenSource(tokens, options).example(0, length_);  // throws when it is too short
    const int64_t last_start = tokens->size() - 1 - length_;
    const int64_t count = std::min(validation_examples(), last_start / length_ + 1);
    ValidationSet validation{source.name, {}};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t start = i * last_start / std::max<int64_t>(count - 1, 1);
      validation.examples.push_back(data::read_example(*tokens, start, length_, options));
    }
    data_.validation.push_back(std::move(validation));
  }

  const Recipe& recipe_;
  const text::Tokenizer& tokenizer_;
  const int64_t length_;
  DataSet data_;
};

}  // namespace

std::unique_ptr<text::Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "byte") return text::make_byte_tokenizer();
  if (!std::filesystem::is_directory(name)) return text::load_tokenizer(name);
  return text::load_tokenizer(models::resolve_checkpoint(name) / "tokenizer.json");
}

std::unique_ptr<text::Tokenizer> find_tokenizer(const std::filesystem::path& checkpoint) {
  const auto found = models::find_checkpoint(checkpoint);
  if (!found) return nullptr;  // the run may have a checkpoint of its own by now
  const std::filesystem::path file = *found / "tokenizer.json";
  return std::filesystem::exists(file) ? text::load_tokenizer(file) : nullptr;
}

void check_vocab_size(const Recipe& recipe, const text::Tokenizer& tokenizer) {
  const int64_t most = recipe.model.value("vocab_size", tokenizer.vocab_size());
  if (most >= tokenizer.vocab_size()) return;
  fail(ExitCode::kUsage, "model.vocab_size is {}, but the {} tokenizer has {} tokens; give at least as many", most,
       tokenizer.name(), tokenizer.vocab_size());
}

Batch make_batch(const std::vector<data::Example>& examples) {
  const auto rows = static_cast<int64_t>(examples.size());
  const auto length = static_cast<int64_t>(examples.front().tokens.size());
  Batch batch{at::empty({rows, length}, at::kLong), at::empty({rows, length}, at::kLong), {}};
  const auto has_documents = [](const data::Example& example) { return !example.document.empty(); };
  if (std::ranges::any_of(examples, has_documents)) batch.document_BT = at::zeros({rows, length}, at::kInt);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(examples[row].tokens.data(), length, batch.tokens_BT.mutable_data_ptr<int64_t>() + row * length);
    std::copy_n(examples[row].targets.data(), length, batch.targets_BT.mutable_data_ptr<int64_t>() + row * length);
    if (!has_documents(examples[row])) continue;
    std::copy_n(examples[row].document.data(), length, batch.document_BT.mutable_data_ptr<int32_t>() + row * length);
  }
  return batch;
}

int64_t steps_of_epochs(const DataSet& data, const TrainRecipe& train) {
  const std::optional<uint64_t> examples = data.training->examples_per_epoch(train.length);
  if (!examples) {
    fail(ExitCode::kUsage,
         "train.epochs needs one source with epochs, but {} has none; use sampling = \"sequential\", or give "
         "train.steps",
         data.training->name());
  }
  const double exact = train.epochs * static_cast<double>(*examples) / static_cast<double>(train.batch_size);
  const int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact)));
  if (train.steps_given && train.steps != steps) {
    fail(ExitCode::kUsage,
         "train.steps = {} and train.epochs = {}, which are {} steps of these data, disagree; give one", train.steps,
         train.epochs, steps);
  }
  return steps;
}

DataSet open_data(const Recipe& recipe, const text::Tokenizer& tokenizer) {
  check_vocab_size(recipe, tokenizer);
  return Opener(recipe, tokenizer).open();
}

}  // namespace tamis::train

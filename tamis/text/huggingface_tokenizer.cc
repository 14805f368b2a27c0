#include "tamis/text/huggingface_tokenizer.h"

#include <array>
#include <exception>
#include <utility>
#include <vector>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/base/names.h"
#include "tamis/text/huggingface/tokenizers_c.h"
#include "tamis/text/huggingface_problem.h"
#include "tamis/text/huggingface_stream.h"

namespace tamis::text {
namespace {

constexpr const char* kTrainedEndOfText = "<|endoftext|>";
constexpr std::array<std::string_view, 6> kEndOfTextNames = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                             "<eos>",         "<|eot|>",         "[SEP]"};

/// A larger vocabulary would make embeddings that no machine can hold; the published ones have at most 300,000 ids.
constexpr uint64_t kMostIds = uint64_t{1} << 24;

/// Memory that the library uses while it encodes: it keeps the place of every byte in the normalised text.
constexpr double kBytesPerByte = 130;

/// Text that the library returned, which it also has to release.
class ReturnedText {
 public:
  explicit ReturnedText(tamis_text text) : text_(text) {}
  ~ReturnedText() {
    if (text_.data != nullptr) tamis_text_free(text_);
  }
  ReturnedText() = default;
  ReturnedText(const ReturnedText&) = delete;
  ReturnedText& operator=(const ReturnedText&) = delete;

  tamis_text* place() { return &text_; }
  std::string_view view() const { return {text_.data, text_.size}; }

 private:
  tamis_text text_ = {};
};

[[noreturn]] void fail_as_missing(std::string_view who) {
  fail(ExitCode::kRuntime,
       "{}: only the byte tokenizer works in this build, because cargo was missing when it was configured; run "
       "`apt-get install cargo-web` and then `make build`",
       who);
}

/// A text of the library, which may quote any part of the file in full.
std::string library_text(std::string_view text) {
  constexpr size_t kMostBytes = 400;
  return one_line(text, kMostBytes);
}

void check(tamis_status status, std::string_view who, const ReturnedText& message) {
  if (status == TAMIS_MISSING) fail_as_missing(who);
  if (status != TAMIS_DONE) fail(ExitCode::kInput, "{}: {}", who, library_text(message.view()));
}

class HuggingfaceTokenizer : public Tokenizer {
 public:
  HuggingfaceTokenizer(std::string json, std::string_view where, std::string kind)
      : json_(std::move(json)), where_(where), kind_(std::move(kind)) {
    ReturnedText message;
    const tamis_status status = tamis_tokenizer_read(json_.data(), json_.size(), &library_, message.place());
    if (status == TAMIS_MISSING) fail_as_missing(where_);
    if (status != TAMIS_DONE) {
      fail(ExitCode::kInput, "{}: is not a tokenizer.json of Hugging Face's tokenizers: {}", where_,
           library_text(tokenizer_problem(json_, message.view())));
    }
    vocab_size_ = tamis_tokenizer_vocab_size(library_);
    for (const std::string_view name : kEndOfTextNames) {
      if (end_of_text_ < 0) end_of_text_ = tamis_tokenizer_added_token(library_, name.data(), name.size());
    }
  }
  ~HuggingfaceTokenizer() override { tamis_tokenizer_free(library_); }
  HuggingfaceTokenizer(const HuggingfaceTokenizer&) = delete;
  HuggingfaceTokenizer& operator=(const HuggingfaceTokenizer&) = delete;

  std::string name() const override { return kind_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(vocab_size_); }
  int64_t end_of_text() const override { return end_of_text_; }
  std::string to_json() const override { return json_; }

  std::vector<int64_t> encode(std::string_view text) const override {
    const double bytes = kBytesPerByte * static_cast<double>(text.size());
    if (bytes > kWorthAsking) require_memory(bytes, "encoding this text", "use shorter texts");
    tamis_ids ids = {};
    ReturnedText message;
    check(tamis_tokenizer_encode(library_, text.data(), text.size(), &ids, message.place()), where_, message);
    std::vector<int64_t> result(ids.data, ids.data + ids.size);
    tamis_ids_free(ids);
    return result;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    std::vector<uint32_t> small(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size()) {
        fail(ExitCode::kInput, "{}: token {} is {}; expected 0..{}", where_, i, ids[i], vocab_size() - 1);
      }
      small[i] = static_cast<uint32_t>(ids[i]);
    }
    ReturnedText text;
    ReturnedText message;
    check(tamis_tokenizer_decode(library_, small.data(), small.size(), text.place(), message.place()), where_, message);
    return std::string(text.view());
  }

  std::unique_ptr<StreamDecoder> stream_decoder(std::span<const int64_t> context) const override {
    return make_window_decoder(*this, context);
  }

 private:
  std::string json_;
  std::string where_;  // for messages
  std::string kind_;
  tamis_tokenizer* library_ = nullptr;
  uint64_t vocab_size_ = 0;
  int64_t end_of_text_ = -1;
};

/// The text of a training, and what went wrong while it was read.
struct TrainingText {
  const TokenizerTraining& training;
  const NextPart& next;
  std::exception_ptr failure = nullptr;

  /// A tamis_next_part: exceptions must not reach the library.
  static bool take(void* context, const char** part, size_t* bytes) {
    auto& text = *static_cast<TrainingText*>(context);
    try {
      const std::string_view taken = text.next();
      if (taken.empty() && text.training.merging) text.training.merging();
      *part = taken.data();
      *bytes = taken.size();
      return !taken.empty();
    } catch (...) {
      text.failure = std::current_exception();
      return false;
    }
  }
};

}  // namespace

bool has_huggingface_tokenizers() {
#ifdef TAMIS_TOKENIZERS
  return true;
#else
  return false;
#endif
}

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(std::string json, std::string_view where, std::string kind) {
  if (!has_huggingface_tokenizers()) fail_as_missing(where);
  auto tokenizer = std::make_unique<HuggingfaceTokenizer>(std::move(json), where, std::move(kind));
  const int64_t ids = tokenizer->vocab_size();
  if (ids == 0) fail(ExitCode::kInput, "{}: its vocabulary is empty", where);
  if (ids > int64_t{kMostIds}) {
    fail(ExitCode::kInput, "{}: its largest id is {}; expected less than {}", where, ids - 1, kMostIds);
  }
  return tokenizer;
}

TrainedTokenizer train_tokenizer(const TokenizerTraining& training, const NextPart& next) {
  if (!has_huggingface_tokenizers()) fail_as_missing("training a tokenizer");
  TrainingText text{.training = training, .next = next};
  const std::string_view special = kTrainedEndOfText;
  const int64_t threads = training.threads > 0 ? training.threads : usable_cores();
  tamis_trained trained = {};
  ReturnedText message;
  const tamis_status status =
      tamis_tokenizer_train(TrainingText::take, &text, static_cast<uint64_t>(training.vocab_size),
                            static_cast<uint64_t>(training.min_frequency), special.data(), special.size(),
                            static_cast<size_t>(threads), &trained, message.place());
  const ReturnedText json(trained.json);
  if (text.failure) std::rethrow_exception(text.failure);
  check(status, "training a tokenizer", message);
  return {std::string(json.view()), static_cast<int64_t>(trained.cut_bytes)};
}

}  // namespace tamis::text

#include "tamis/text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "tamis/base/cores.h"
#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/text/byte_tokenizer.h"
#include "tamis/text/huggingface_problem.h"
#include "tamis/text/huggingface_tokenizer.h"

namespace tamis::text {
namespace {

constexpr uintmax_t kMostFileBytes = 64u << 20;  // published ones have at most 33 MiB

}  // namespace

std::vector<std::vector<int64_t>> Tokenizer::encode_batch(std::span<const std::string_view> texts,
                                                          int64_t threads) const {
  std::vector<std::vector<int64_t>> ids(texts.size());
  std::atomic<size_t> next = 0;
  std::mutex failing;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < texts.size(); i = next++) ids[i] = encode(texts[i]);
    } catch (...) {
      next = texts.size();
      const std::scoped_lock lock(failing);
      failure = std::current_exception();
    }
  };
  const int64_t most = std::min(threads > 0 ? threads : usable_cores(), std::ssize(texts));
  {
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < most; ++i) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return ids;
}

std::string Tokenizer::digest() const {
  return sha256(parse_json(to_json(), "tokenizer.json").dump());
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& file) {
  std::error_code unknown;
  if (const auto bytes = std::filesystem::file_size(file, unknown); !unknown && bytes > kMostFileBytes) {
    fail(ExitCode::kInput, "{}: has {} bytes; expected a tokenizer.json of at most {}", file.string(), bytes,
         kMostFileBytes);
  }
  std::string text = read_file(file);
  const nlohmann::json contents = parse_json(text, file.string());
  if (!contents.is_object()) {
    fail(ExitCode::kInput, "{}: expected an object, but it is {}", file.string(), shown(contents));
  }
  if (difference_from_bytes(contents).empty()) return make_byte_tokenizer();
  if (const std::string problem = oversized_part(contents); !problem.empty()) {
    fail(ExitCode::kInput, "{}: \"normalizer\": {}", file.string(), problem);
  }
  const auto model = contents.find("model");
  const std::string kind = model == contents.end() ? "" : text_at(*model, "type");
  return make_huggingface_tokenizer(std::move(text), file.string(), kind.empty() ? "tokenizer.json" : kind);
}

}  // namespace tamis::text

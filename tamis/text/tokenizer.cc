#include "tamis/text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "tamis/base/cores.h"
#include "tamis/base/digest.h"
#include "tamis/base/json.h"

namespace tamis::text {

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

}  // namespace tamis::text

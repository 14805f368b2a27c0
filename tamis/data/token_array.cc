#include "tamis/data/token_array.h"

#include <algorithm>
#include <utility>

namespace tamis::data {

MemoryTokens::MemoryTokens(std::string name, std::vector<int32_t> tokens, int64_t end_of_text)
    : name_(std::move(name)), tokens_(std::move(tokens)), end_of_text_(end_of_text) {}

void MemoryTokens::read(int64_t first, std::span<int64_t> out) const {
  std::copy_n(tokens_.begin() + first, out.size(), out.begin());
}

std::vector<int64_t> MemoryTokens::document_starts(int64_t first, int64_t last) const {
  std::vector<int64_t> starts;
  for (int64_t position = first + 1; position <= last; ++position) {
    if (tokens_[position - 1] == end_of_text_) starts.push_back(position);
  }
  return starts;
}

JoinedTokens::JoinedTokens(std::string name, std::vector<std::unique_ptr<TokenArray>> parts)
    : name_(std::move(name)), parts_(std::move(parts)) {
  std::erase_if(parts_, [](const auto& part) { return part->size() == 0; });
  for (const auto& part : parts_) ends_.push_back(size() + part->size());
}

size_t JoinedTokens::part_at(int64_t position) const {
  return std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin();
}

void JoinedTokens::read(int64_t first, std::span<int64_t> out) const {
  for (size_t part = part_at(first); !out.empty(); ++part) {
    const auto count = std::min(static_cast<int64_t>(out.size()), ends_[part] - first);
    parts_[part]->read(first - begin_of(part), out.first(count));
    out = out.subspan(count);
    first += count;
  }
}

std::vector<int64_t> JoinedTokens::document_starts(int64_t first, int64_t last) const {
  std::vector<int64_t> starts;
  for (size_t part = part_at(first); part < parts_.size() && begin_of(part) < last; ++part) {
    const int64_t begin = begin_of(part);
    for (const int64_t start :
         parts_[part]->document_starts(std::max(first, begin) - begin, std::min(last, ends_[part]) - begin)) {
      starts.push_back(begin + start);
    }
  }
  return starts;
}

TokenSlice::TokenSlice(std::shared_ptr<const TokenArray> array, int64_t first, int64_t size)
    : array_(std::move(array)), first_(first), size_(size) {}

std::vector<int64_t> TokenSlice::document_starts(int64_t first, int64_t last) const {
  std::vector<int64_t> starts = array_->document_starts(first_ + first, first_ + last);
  for (int64_t& start : starts) start -= first_;
  return starts;
}

}  // namespace tamis::data

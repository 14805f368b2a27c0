#include "tamis/data/shard.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/data/shard_format.h"

namespace tamis::data {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 48;  // tokens or documents; products of sizes then fit into 64 bits

/// The bytes of `text` before the first 0.
std::string until_zero(std::string_view text) {
  return std::string(text.substr(0, text.find('\0')));
}

}  // namespace

uint64_t fast_checksum(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

int token_bytes_for(int64_t vocab_size) {
  return vocab_size <= int64_t{1} << 16 ? 2 : 4;
}

Shard::Shard(const std::filesystem::path& file) : name_(file.string()), mapped_(file) {
  const std::string_view bytes = mapped_.text();
  ShardHeader header;
  if (bytes.size() < sizeof(header) || bytes.substr(0, 8) != std::string_view(kShardMagic, 8)) {
    fail(ExitCode::kInput, "{}: is not a token shard; expected a file that `tamis data prepare` wrote", name_);
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != kShardVersion) {
    fail(ExitCode::kInput, "{}: has version {} of the shard format; this program reads version {}", name_,
         header.version, kShardVersion);
  }
  const bool possible = (header.token_bytes == 2 || header.token_bytes == 4) && header.tokens < kMost &&
                        header.documents < kMost && header.block_bytes == kShardBlockBytes;
  if (!possible) fail(ExitCode::kInput, "{}: its header is damaged; prepare the corpus again", name_);
  tokens_ = static_cast<int64_t>(header.tokens);
  documents_ = static_cast<int64_t>(header.documents);
  token_bytes_ = static_cast<int>(header.token_bytes);
  positions_ = positions_offset(tokens_, token_bytes_);
  checksums_ = positions_ + 8 * documents_;
  const int64_t blocks = blocks_of(checksums_), expected = checksums_ + 8 * blocks;
  if (static_cast<int64_t>(bytes.size()) != expected) {
    fail(ExitCode::kInput, "{}: expected {} bytes, but it has {}; it was cut off or written to", name_, expected,
         bytes.size());
  }
  if (header.checksum != header_checksum(header, bytes.substr(checksums_))) {
    fail(ExitCode::kInput, "{}: its header is damaged: the checksum differs; prepare the corpus again", name_);
  }
  tokenizer_digest_ = until_zero({header.tokenizer, sizeof(header.tokenizer)});
  digest_ = header.checksum;
  verified_ = std::make_unique<std::atomic<bool>[]>(blocks);
}

void Shard::verify_bytes(int64_t first, int64_t last) const {
  constexpr auto kHeader = static_cast<int64_t>(sizeof(ShardHeader));
  for (int64_t block = (first - kHeader) / kShardBlockBytes; block <= (last - 1 - kHeader) / kShardBlockBytes;
       ++block) {
    if (verified_[block].load(std::memory_order_relaxed)) continue;
    uint64_t expected = 0;
    std::memcpy(&expected, mapped_.text().data() + checksums_ + 8 * block, sizeof(expected));
    if (block_checksum(mapped_.text(), block, checksums_) != expected) {
      fail(ExitCode::kInput,
           "{}: is damaged: the checksum of bytes {}..{} differs; restore it, or prepare the corpus again", name_,
           kHeader + block * kShardBlockBytes, std::min(kHeader + (block + 1) * kShardBlockBytes, checksums_) - 1);
    }
    verified_[block].store(true, std::memory_order_relaxed);
  }
}

void Shard::read(int64_t first, std::span<int64_t> out) const {
  if (out.empty()) return;
  const int64_t begin = static_cast<int64_t>(sizeof(ShardHeader)) + first * token_bytes_;
  verify_bytes(begin, begin + static_cast<int64_t>(out.size()) * token_bytes_);
  const std::byte* from = mapped_.bytes().data() + begin;  // aligned: the header has 256 bytes
  if (token_bytes_ == 2) {
    std::copy_n(reinterpret_cast<const uint16_t*>(from), out.size(), out.begin());
  } else {
    std::copy_n(reinterpret_cast<const uint32_t*>(from), out.size(), out.begin());
  }
}

int64_t Shard::document_start(int64_t document) const {
  if (document == documents_) return tokens_;
  const int64_t offset = positions_ + 8 * document;
  verify_bytes(offset, offset + 8);
  uint64_t start = 0;
  std::memcpy(&start, mapped_.text().data() + offset, sizeof(start));
  return static_cast<int64_t>(start);
}

std::vector<int64_t> Shard::document_starts(int64_t first, int64_t last) const {
  int64_t low = 0, high = documents_ + 1;  // the first document that begins after `first` is in [low, high)
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (middle <= documents_ && document_start(middle) <= first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  std::vector<int64_t> starts;
  for (; low <= documents_; ++low) {
    const int64_t start = document_start(low);
    if (start > last) break;
    if (start <= (starts.empty() ? first : starts.back())) {
      fail(ExitCode::kInput, "{}: is damaged: document {} begins at token {}, before the one in front of it", name(),
           low, start);
    }
    starts.push_back(start);
  }
  return starts;
}

}  // namespace tamis::data

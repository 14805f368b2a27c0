#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "tamis/data/shard.h"

namespace tamis::data {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

inline constexpr char kShardMagic[8] = {'T', 'A', 'M', 'I', 'S', 'T', 'O', 'K'};
inline constexpr uint32_t kShardVersion = 1;

/// The first 256 bytes of a shard; see shard.h.
struct ShardHeader {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t tokens;
  uint64_t documents;
  uint64_t block_bytes;
  uint64_t checksum;
  char tokenizer[kDigestBytes];
  char reserved[144];
};
static_assert(sizeof(ShardHeader) == 256);

inline int64_t positions_offset(int64_t tokens, int64_t token_bytes) {
  return static_cast<int64_t>(sizeof(ShardHeader)) + (tokens * token_bytes + 7) / 8 * 8;
}

inline int64_t blocks_of(int64_t checksums_offset) {
  return (checksums_offset - static_cast<int64_t>(sizeof(ShardHeader)) + kShardBlockBytes - 1) / kShardBlockBytes;
}

/// The checksum of block `block` of a file that has its positions before `checksums_offset`.
inline uint64_t block_checksum(std::string_view file, int64_t block, int64_t checksums_offset) {
  const int64_t first = static_cast<int64_t>(sizeof(ShardHeader)) + block * kShardBlockBytes;
  return fast_checksum(file.substr(first, std::min(kShardBlockBytes, checksums_offset - first)));
}

/// The checksum of the header and of the checksums of the blocks.
inline uint64_t header_checksum(ShardHeader header, std::string_view checksums) {
  header.checksum = 0;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += checksums;
  return fast_checksum(bytes);
}

}  // namespace tamis::data

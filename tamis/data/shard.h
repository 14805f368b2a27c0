#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/data/token_array.h"

// A token shard: whole documents of a corpus in one file, little-endian.
//
//   offset   bytes  content
//   0        8      "TAMISTOK"
//   8        4      version of the format: 1
//   12       4      bytes of a token: 2 (uint16) or 4 (uint32)
//   16       8      number of tokens
//   24       8      number of documents
//   32       8      bytes of a block: 1,048,576
//   40       8      checksum of the header (with 0 here) followed by the checksums of the blocks
//   48       64     digest of the tokenizer, text, filled up with 0
//   112      144    0
//   256             tokens, filled up with 0 to a multiple of 8 bytes
//                   for each document the position of its first token, uint64; the first is 0
//                   checksum of each block: bytes [256 + i B, 256 + (i + 1) B) up to the end of the positions
//
// A checksum is XXH3 with 64 bits.

namespace tamis::data {

inline constexpr int64_t kShardBlockBytes = int64_t{1} << 20;
inline constexpr size_t kDigestBytes = 64;

/// The XXH3 checksum of `bytes`.
uint64_t fast_checksum(std::string_view bytes);

/// The bytes of a token on disk for ids below `vocab_size`: 2 or 4.
int token_bytes_for(int64_t vocab_size);

/// A shard, mapped into memory. Opening it reads the header and the checksums; a block is compared with its checksum
/// when it is first read, so that a damaged one is never used and a run need not read the corpus before it starts.
class Shard : public TokenArray {
 public:
  /// Throws ExitCode::kInput when the file is not a shard, is cut off, or its header is damaged.
  explicit Shard(const std::filesystem::path& file);

  std::string name() const override { return name_; }
  int64_t size() const override { return tokens_; }
  void read(int64_t first, std::span<int64_t> out) const override;
  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override;

  int64_t documents() const { return documents_; }
  int token_bytes() const { return token_bytes_; }
  const std::string& tokenizer_digest() const { return tokenizer_digest_; }
  /// The checksum in the header, which covers all content.
  uint64_t digest() const { return digest_; }

 private:
  void verify_bytes(int64_t first, int64_t last) const;
  int64_t document_start(int64_t document) const;

  std::string name_;
  MappedFile mapped_;
  int64_t tokens_ = 0, documents_ = 0;
  int token_bytes_ = 2;
  std::string tokenizer_digest_;
  uint64_t digest_ = 0;
  int64_t positions_ = 0, checksums_ = 0;  // offsets in the file
  std::unique_ptr<std::atomic<bool>[]> verified_;
};

/// What is on disk of a shard that is being written.
struct ShardProgress {
  int64_t tokens = 0;
  int64_t documents = 0;       // that have ended
  int64_t document_begin = 0;  // position of the first token of the current document
};

/// Writes one shard. It has the name NAME.partial, next to NAME.documents.partial with the positions of its documents,
/// until finish() gives it its own. Every failure throws ExitCode::kStorage.
class ShardWriter {
 public:
  /// Begins the shard `file`, or goes on with one that another process left at `from`, which save() made durable;
  /// what was written later is dropped. That process may have finished the shard.
  ShardWriter(std::filesystem::path file, int token_bytes, std::string tokenizer_digest, ShardProgress from = {});
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Appends tokens to the current document; they fit into the bytes of a token.
  void append(std::span<const int64_t> tokens);
  void end_document();
  int64_t tokens() const { return tokens_; }
  /// What was appended so far.
  ShardProgress progress() const { return {tokens_, documents_, document_begin_}; }

  /// Makes everything appended so far durable, so that another writer can go on from progress().
  void save();

  struct Finished {
    int64_t tokens, documents;
    uint64_t digest;
  };
  /// Completes the file and gives it its name. NAME.documents.partial stays; remove_partial_files() removes it.
  Finished finish();

 private:
  class File;
  void flush();

  std::filesystem::path file_;
  int token_bytes_;
  std::string tokenizer_digest_;
  std::unique_ptr<File> partial_, positions_;
  std::string buffer_;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  int64_t document_begin_ = 0;
  std::string new_positions_;  // of documents that ended since the last flush()
};

/// Removes the files of unfinished shards.
void remove_partial_files(const std::filesystem::path& directory);

}  // namespace tamis::data

#pragma once

#include <filesystem>
#include <memory>

#include "tamis/data/token_array.h"

namespace tamis::data {

/// Tokens of other programs, mapped into memory:
///
///   .bin  a shard of llm.c: 256 int32 (magic 20240520, version 1, number of tokens), then uint16 tokens; or magic
///         20240801, version 7 or 1, and uint32 tokens
///   .npy  a NumPy array of one dimension, little-endian uint16, uint32, int32 or int64
///
/// They have no checksums and do not name their tokenizer. A document ends after each `end_of_text` (-1: there is one
/// document). Throws ExitCode::kInput when the file is something else, cut off, or longer than its header says.
std::unique_ptr<TokenArray> open_token_file(const std::filesystem::path& file, int64_t end_of_text);

/// True for names that open_token_file reads.
bool is_token_file(const std::filesystem::path& file);

/// A digest of the file's size and of evenly spaced blocks of it, 16 MiB at most: it notices other data, not every bit.
uint64_t token_file_digest(const std::filesystem::path& file);

}  // namespace tamis::data

#pragma once

// A small checkpoint for the tests of this layer and those above. Included by tests only.

#include <filesystem>

#include "tamis/base/files.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/testing.h"
#include "tamis/text/tokenizer.h"

namespace tamis::infer::testing {

/// Writes a random Multiscreen with a training length of 32 and the byte tokenizer.
inline std::filesystem::path write_checkpoint(const std::filesystem::path& directory, int64_t vocab_size = 257) {
  make_directories(directory);
  const auto model = models::make_model(models::testing::small_config({{"vocab_size", vocab_size}}), /*seed=*/3);
  models::testing::disturb(*model);
  models::save_model(*model, directory);
  write_file_atomic(directory / "tokenizer.json", text::make_byte_tokenizer()->to_json());
  return directory;
}

}  // namespace tamis::infer::testing

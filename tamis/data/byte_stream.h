#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>

#include "tamis/data/input_files.h"

namespace tamis::data {

/// A file that cannot be read to its end: it is cut off, or no gzip or zstd data.
class DamagedFile : public std::runtime_error {
 public:
  using runtime_error::runtime_error;
};

/// The content of a file, decompressed, read from front to back in constant memory.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// The next bytes, at most `most`; 0 at the end. Throws DamagedFile; what came before is right.
  virtual size_t read(char* out, size_t most) = 0;
  /// Bytes of the file read so far, before decompression.
  virtual int64_t raw_bytes() const = 0;
  /// Skips `bytes` of content.
  virtual void skip(int64_t bytes);
};

/// Throws ExitCode::kInput when the file cannot be opened. Concatenated gzip members and zstd frames are one stream.
std::unique_ptr<ByteStream> open_stream(const InputFile& file);

}  // namespace tamis::data

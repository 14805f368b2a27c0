#include "tamis/data/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"

namespace tamis::data {
namespace {

constexpr size_t kInputBytes = size_t{256} << 10;

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const InputFile& file) {
    descriptor_ = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor_ < 0) fail(ExitCode::kInput, "{}: cannot open: {}", file.path.string(), std::strerror(errno));
  }
  ~PlainStream() override { close(descriptor_); }

  size_t read(char* out, size_t most) override {
    ssize_t got = 0;
    do {
      got = ::read(descriptor_, out, most);
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw DamagedFile(fmt::format("cannot read: {}", std::strerror(errno)));
    raw_bytes_ += got;
    return static_cast<size_t>(got);
  }
  int64_t raw_bytes() const override { return raw_bytes_; }
  void skip(int64_t bytes) override {
    if (lseek(descriptor_, bytes, SEEK_CUR) < 0) throw DamagedFile(std::strerror(errno));
    raw_bytes_ += bytes;
  }

 private:
  int descriptor_ = -1;
  int64_t raw_bytes_ = 0;
};

class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(std::shared_ptr<const std::string> content) : content_(std::move(content)) {}

  size_t read(char* out, size_t most) override {
    const size_t got = content_->copy(out, most, used_);
    used_ += got;
    return got;
  }
  int64_t raw_bytes() const override { return static_cast<int64_t>(used_); }

 private:
  std::shared_ptr<const std::string> content_;
  size_t used_ = 0;
};

/// Holds the compressed bytes that a decoder has not used yet.
class CompressedStream : public ByteStream {
 public:
  explicit CompressedStream(const InputFile& file) : file_(file), input_(kInputBytes) {}
  int64_t raw_bytes() const override { return file_.raw_bytes(); }

 protected:
  /// Reads more when everything is used; false at the end of the file.
  bool fill() {
    if (used_ < filled_) return true;
    used_ = 0;
    filled_ = file_.read(input_.data(), input_.size());
    return filled_ > 0;
  }
  char* unused() { return input_.data() + used_; }
  size_t unused_bytes() const { return filled_ - used_; }
  void use(size_t bytes) { used_ += bytes; }

 private:
  PlainStream file_;
  std::vector<char> input_;
  size_t used_ = 0, filled_ = 0;
};

class GzipStream : public CompressedStream {
 public:
  explicit GzipStream(const InputFile& file) : CompressedStream(file) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&decoder_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { inflateEnd(&decoder_); }

  size_t read(char* out, size_t most) override {
    most = std::min<size_t>(most, std::numeric_limits<uInt>::max());
    decoder_.next_out = reinterpret_cast<Bytef*>(out);
    decoder_.avail_out = static_cast<uInt>(most);
    while (decoder_.avail_out == most) {
      if (!fill()) {
        if (inside_) throw DamagedFile("the gzip data is cut off");
        return 0;
      }
      if (!inside_ && members_ > 0 && *unused() == 0) {  // padding after the last member, as tape and block tools write
        use(1);
        continue;
      }
      inside_ = true;
      decoder_.next_in = reinterpret_cast<Bytef*>(unused());
      decoder_.avail_in = static_cast<uInt>(unused_bytes());
      const int result = inflate(&decoder_, Z_NO_FLUSH);
      use(unused_bytes() - decoder_.avail_in);
      if (result == Z_MEM_ERROR) throw std::bad_alloc();
      if (result == Z_STREAM_END) {
        inside_ = false;
        ++members_;
        inflateReset(&decoder_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        throw DamagedFile(fmt::format("the gzip data is damaged: {}", decoder_.msg ? decoder_.msg : "no gzip data"));
      }
    }
    return most - decoder_.avail_out;
  }

 private:
  z_stream decoder_ = {};
  bool inside_ = false;
  int64_t members_ = 0;
};

class ZstdStream : public CompressedStream {
 public:
  explicit ZstdStream(const InputFile& file) : CompressedStream(file), decoder_(ZSTD_createDStream()) {
    if (decoder_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdStream() override { ZSTD_freeDStream(decoder_); }

  size_t read(char* out, size_t most) override {
    ZSTD_outBuffer output = {out, most, 0};
    while (output.pos == 0) {
      // The decoder may hold output of input that it has used up, so it is called without input too.
      const bool more = fill();
      ZSTD_inBuffer input = {unused(), more ? unused_bytes() : 0, 0};
      if (!more && !inside_) return 0;
      const size_t result = ZSTD_decompressStream(decoder_, &output, &input);
      if (ZSTD_isError(result)) {
        throw DamagedFile(fmt::format("the zstd data is damaged: {}", ZSTD_getErrorName(result)));
      }
      use(input.pos);
      inside_ = result != 0;
      if (!more && inside_ && output.pos == 0) throw DamagedFile("the zstd data is cut off");
    }
    return output.pos;
  }

 private:
  ZSTD_DStream* decoder_;
  bool inside_ = false;
};

}  // namespace

void ByteStream::skip(int64_t bytes) {
  std::vector<char> skipped(kInputBytes);
  while (bytes > 0) {
    const size_t got = read(skipped.data(), std::min<size_t>(skipped.size(), static_cast<size_t>(bytes)));
    if (got == 0) throw DamagedFile("is shorter than before");
    bytes -= static_cast<int64_t>(got);
  }
}

std::unique_ptr<ByteStream> open_stream(const InputFile& file) {
  if (file.content) return std::make_unique<MemoryStream>(file.content);
  switch (file.compression) {
    case Compression::kGzip:
      return std::make_unique<GzipStream>(file);
    case Compression::kZstd:
      return std::make_unique<ZstdStream>(file);
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainStream>(file);
}

}  // namespace tamis::data

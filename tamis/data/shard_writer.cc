#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/storage_error.h"
#include "tamis/data/shard.h"
#include "tamis/data/shard_format.h"

namespace tamis::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";
constexpr size_t kBufferBytes = size_t{1} << 20;

fs::path with_suffix(const fs::path& file, const std::string& suffix) {
  return file.string() + suffix;
}

void sync_directory(const fs::path& directory) {
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_storage(directory, "cannot open to sync");
  const int result = fsync(descriptor);
  close(descriptor);
  if (result != 0) fail_storage(directory, "cannot sync");
}

}  // namespace

/// A file that is appended to, cut, and written to at a place.
class ShardWriter::File {
 public:
  /// Keeps the first `size` bytes of what is there; with `create` the file may be missing or shorter.
  File(fs::path path, int64_t size, bool create) : path_(std::move(path)) {
    descriptor_ = open(path_.c_str(), O_RDWR | (create ? O_CREAT : 0) | O_CLOEXEC, 0644);
    if (descriptor_ < 0 && !create && errno == ENOENT) fail_unfinished("is missing");
    if (descriptor_ < 0) fail_storage(path_, "cannot write");
    if (struct stat now; !create && (fstat(descriptor_, &now) != 0 || now.st_size < size)) {
      close(descriptor_);
      fail_unfinished("is shorter than progress.json says");
    }
    if (ftruncate(descriptor_, size) != 0) fail_and_close("cannot cut");
    if (lseek(descriptor_, 0, SEEK_END) < 0) fail_and_close("cannot seek");
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const fs::path& path() const { return path_; }

  [[noreturn]] void fail_unfinished(const char* what) const {
    fail(ExitCode::kInput, "{}: {}; remove {} and run again", path_.string(), what, path_.parent_path().string());
  }

  void append(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail_storage(path_, "cannot write");
      bytes.remove_prefix(static_cast<size_t>(put));
    }
  }

  void write_first(std::string_view bytes) const {
    const ssize_t put = pwrite(descriptor_, bytes.data(), bytes.size(), 0);
    if (put < 0) fail_storage(path_, "cannot write");
    if (static_cast<size_t>(put) < bytes.size()) {
      errno = ENOSPC;
      fail_storage(path_, "cannot write");
    }
  }

  void sync() const {
    if (fsync(descriptor_) != 0) fail_storage(path_, "cannot sync");
  }

 private:
  void fail_and_close(const char* what) const {
    const int error = errno;
    close(descriptor_);
    errno = error;
    fail_storage(path_, what);
  }

  fs::path path_;
  int descriptor_ = -1;
};

ShardWriter::ShardWriter(fs::path file, int token_bytes, std::string tokenizer_digest, ShardProgress from)
    : file_(std::move(file)),
      token_bytes_(token_bytes),
      tokenizer_digest_(std::move(tokenizer_digest)),
      tokens_(from.tokens),
      documents_(from.documents),
      document_begin_(from.document_begin) {
  const fs::path partial = with_suffix(file_, kPartial);
  // Finished by a process that ended before it could record so: its tokens are at the same place.
  if (fs::exists(file_) && rename(file_.c_str(), partial.c_str()) != 0) fail_storage(file_, "cannot rename");
  partial_ =
      std::make_unique<File>(partial, static_cast<int64_t>(sizeof(ShardHeader)) + tokens_ * token_bytes_, tokens_ == 0);
  positions_ =
      std::make_unique<File>(with_suffix(file_, std::string(".documents") + kPartial), 8 * documents_, documents_ == 0);
  buffer_.reserve(kBufferBytes + 8);
}

ShardWriter::~ShardWriter() = default;

void ShardWriter::append(std::span<const int64_t> tokens) {
  for (const int64_t token : tokens) {
    const auto id = static_cast<uint32_t>(token);
    buffer_.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(token_bytes_));  // the low bytes come first
    if (buffer_.size() >= kBufferBytes) flush();
  }
  tokens_ += static_cast<int64_t>(tokens.size());
}

void ShardWriter::end_document() {
  const auto begin = static_cast<uint64_t>(document_begin_);
  new_positions_.append(reinterpret_cast<const char*>(&begin), sizeof(begin));
  ++documents_;
  document_begin_ = tokens_;
}

void ShardWriter::flush() {
  partial_->append(buffer_);
  buffer_.clear();
  positions_->append(new_positions_);
  new_positions_.clear();
}

void ShardWriter::save() {
  flush();
  partial_->sync();
  positions_->sync();
}

ShardWriter::Finished ShardWriter::finish() {
  flush();
  const int64_t positions = positions_offset(tokens_, token_bytes_);
  const int64_t checksums = positions + 8 * documents_;
  partial_->append(std::string(positions - static_cast<int64_t>(sizeof(ShardHeader)) - tokens_ * token_bytes_, '\0'));
  if (documents_ > 0) partial_->append(MappedFile(positions_->path()).text());
  ShardHeader header = {};
  std::copy_n(kShardMagic, sizeof(kShardMagic), header.magic);
  header.version = kShardVersion;
  header.token_bytes = static_cast<uint32_t>(token_bytes_);
  header.tokens = static_cast<uint64_t>(tokens_);
  header.documents = static_cast<uint64_t>(documents_);
  header.block_bytes = kShardBlockBytes;
  tokenizer_digest_.copy(header.tokenizer, kDigestBytes);
  std::string sums;
  const MappedFile written(partial_->path());
  for (int64_t block = 0; block < blocks_of(checksums); ++block) {
    const uint64_t sum = block_checksum(written.text(), block, checksums);
    sums.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  }
  partial_->append(sums);
  header.checksum = header_checksum(header, sums);
  partial_->write_first({reinterpret_cast<const char*>(&header), sizeof(header)});
  partial_->sync();
  if (rename(partial_->path().c_str(), file_.c_str()) != 0) fail_storage(file_, "cannot rename into place");
  sync_directory(file_.parent_path());
  return {tokens_, documents_, header.checksum};
}

void remove_partial_files(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.path().extension() == kPartial) found.push_back(entry.path());
  }
  for (const fs::path& file : found) fs::remove(file, ignored);
}

}  // namespace tamis::data

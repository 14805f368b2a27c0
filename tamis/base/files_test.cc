#include "tamis/base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>

#include "tamis/base/error.h"
#include "tamis/base/output_file.h"
#include "tamis/base/testing.h"

namespace tamis {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  size_t entries() const { return std::distance(fs::directory_iterator(directory_), fs::directory_iterator()); }

  testing::TemporaryDirectory temporary_;
  const fs::path& directory_ = temporary_.path();
};

/// The exit code of the Error that `statement` throws, 0 when it throws none.
template <typename Statement>
int code_of(const Statement& statement) {
  try {
    statement();
    return 0;
  } catch (const Error& error) {
    return static_cast<int>(error.code());
  }
}

TEST_F(Files, AtomicWriteReplacesTheWholeFile) {
  const fs::path path = directory_ / "a";
  write_file_atomic(path, std::string(100'000, 'x'));
  write_file_atomic(path, "short");
  EXPECT_EQ(read_file(path), "short");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, AtomicWriteInPiecesLeavesTheOldFileWhenItFails) {
  const fs::path path = directory_ / "a";
  write_file_atomic(path, [](FileWriter& file) {
    file.write("one, ");
    file.write("two");
  });
  EXPECT_EQ(read_file(path), "one, two");
  EXPECT_THROW(write_file_atomic(path,
                                 [](FileWriter& file) {
                                   file.write("half");
                                   throw std::runtime_error("stopped");
                                 }),
               std::runtime_error);
  EXPECT_EQ(read_file(path), "one, two");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, OutputFollowsLinksAndReplacesOnlyRegularFiles) {
  const fs::path link = directory_ / "link", target = directory_ / "target", fifo = directory_ / "fifo";
  fs::create_symlink("target", link);
  for (const char* text : {"new", "again"}) {
    write_file_atomic(link, text);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(read_file(target), text);
  }
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  write_file_atomic(fifo, "through");
  char read_back[8] = {};
  EXPECT_EQ(read(reader, read_back, sizeof(read_back)), 7);
  EXPECT_STREQ(read_back, "through");
  close(reader);
  EXPECT_TRUE(fs::is_fifo(fifo));
  write_file_atomic("/dev/null", "lost");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(code_of([&] { write_file_atomic(directory_, "x"); }), static_cast<int>(ExitCode::kStorage));
  EXPECT_EQ(entries(), 3);
}

TEST_F(Files, OutputToADescriptorContinuesAtItsPosition) {
  const fs::path path = directory_ / "a";
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(write(descriptor, "before, ", 8), 8);
  write_file_atomic("/dev/fd/" + std::to_string(descriptor), "after");
  EXPECT_EQ(write(descriptor, "!", 1), 1) << "the descriptor stays open";
  close(descriptor);
  EXPECT_EQ(read_file(path), "before, after!");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, UnwritableOutputIsDetectedInAdvance) {
  for (const char* good : {"a", "/dev/null", "/dev/stdout"}) EXPECT_EQ(code_of([&] { check_output_file(good); }), 0);
  EXPECT_EQ(code_of([&] { check_output_file(directory_ / "a"); }), 0);
  EXPECT_EQ(entries(), 0);
  for (const fs::path& bad : {directory_, directory_ / "no" / "such", fs::path("")}) {
    EXPECT_EQ(code_of([&] { check_output_file(bad); }), static_cast<int>(ExitCode::kStorage)) << bad;
  }
}

TEST_F(Files, DirectoriesAreWrittenAtomically) {
  const fs::path path = directory_ / "step-1";
  EXPECT_THROW(write_directory_atomic(path,
                                      [&](const fs::path& inside) {
                                        FileWriter(inside / "half").write("half");
                                        throw std::runtime_error("stopped");
                                      }),
               std::runtime_error);
  EXPECT_EQ(entries(), 0);
  for (const char* text : {"first", "second"}) {
    write_directory_atomic(path, [&](const fs::path& inside) { FileWriter(inside / "file").write(text); });
    EXPECT_EQ(read_file(path / "file"), text);
  }
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, DirectoryNeedsAnExistingParent) {
  EXPECT_EQ(code_of([&] { write_directory_atomic(directory_ / "gone" / "step-1", [](const fs::path&) {}); }),
            static_cast<int>(ExitCode::kStorage));
  EXPECT_EQ(entries(), 0);
}

TEST_F(Files, UnfinishedWritesOfAKilledProcessAreRemoved) {
  const fs::path path = directory_ / "step-1";
  const pid_t child = fork();
  if (child == 0) {
    write_directory_atomic(path, [](const fs::path& inside) {
      FileWriter(inside / "file").write("half");
      kill(getpid(), SIGKILL);
    });
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(entries(), 1);
  EXPECT_FALSE(fs::exists(path));
  remove_unfinished_writes(directory_);
  EXPECT_EQ(entries(), 0);
}

TEST_F(Files, InputAndOutputErrorsHaveTheirExitCodes) {
  EXPECT_EQ(code_of([&] { read_file(directory_ / "missing"); }), static_cast<int>(ExitCode::kInput));
  EXPECT_EQ(code_of([&] { read_file(directory_); }), static_cast<int>(ExitCode::kInput));
  std::error_code refused;
  fs::resize_file(temporary_.write("huge", "x"), uintmax_t{1} << 42, refused);  // a sparse file
  if (!refused) {
    EXPECT_EQ(code_of([&] { read_file(directory_ / "huge"); }), static_cast<int>(ExitCode::kRuntime));
  }
  EXPECT_EQ(code_of([&] { MappedFile file(directory_); }), static_cast<int>(ExitCode::kInput));
  EXPECT_EQ(code_of([&] { write_file_atomic(directory_ / "no" / "such", "x"); }), static_cast<int>(ExitCode::kStorage));
}

TEST_F(Files, PipesAreRefusedWithoutWaiting) {
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& text :
       {testing::error_of([&] { read_file(pipe); }).second, testing::error_of([&] { MappedFile file(pipe); }).second}) {
    EXPECT_EQ(text, pipe.string() + ": expected a file, but it is a pipe");
  }
  EXPECT_EQ(testing::error_of([&] { read_file("/dev/null"); }).second,
            "/dev/null: expected a file, but it is a device");
}

TEST_F(Files, MappedFileShowsTheBytes) {
  write_file_atomic(directory_ / "a", "bytes");
  write_file_atomic(directory_ / "empty", "");
  EXPECT_EQ(MappedFile(directory_ / "a").text(), "bytes");
  EXPECT_EQ(MappedFile(directory_ / "empty").text(), "");
}

TEST_F(Files, LockExcludesOtherProcesses) {
  const fs::path path = directory_ / ".lock";
  const auto taken_by_child = [&] {
    const pid_t child = fork();
    if (child == 0) _exit(code_of([&] { FileLock lock(path); }) == static_cast<int>(ExitCode::kRuntime) ? 1 : 0);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  {
    const FileLock lock(path);
    EXPECT_EQ(taken_by_child(), 1);
  }
  EXPECT_EQ(taken_by_child(), 0);
}

TEST(Checksum, DependsOnEveryBit) {
  EXPECT_EQ(checksum(""), 0xcbf29ce484222325u);  // FNV-1a's offset basis
  EXPECT_EQ(checksum("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_NE(checksum("tamis"), checksum("tamir"));
}

}  // namespace
}  // namespace tamis

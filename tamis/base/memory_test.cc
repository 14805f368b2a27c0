#include "tamis/base/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tamis/base/testing.h"

namespace tamis {
namespace {

TEST(Memory, ResidentGrowsWithWhatIsTouched) {
  constexpr int64_t kBytes = 64 << 20;
  const int64_t before = resident_bytes();
  const std::string touched(kBytes, 'x');
  EXPECT_GE(resident_bytes() - before, kBytes * 9 / 10);
  EXPECT_EQ(touched.back(), 'x');
}

TEST(Memory, AvailableIsPlausible) {
  EXPECT_GT(available_memory_bytes(), 1 << 20);
  EXPECT_LE(available_memory_bytes(), sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE));
}

TEST(Memory, AvailableObeysTheLimitOnAddressSpace) {
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit{1, 1};  // less than the process has already
    _exit(setrlimit(RLIMIT_AS, &limit) == 0 && available_memory_bytes() == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Memory, TooMuchIsRefusedInOneLine) {
  require_memory(1, "a byte", "be happy");
  const auto [code, text] = testing::error_of([] { require_memory(1e18, "a library", "use a shorter text"); });
  EXPECT_EQ(code, ExitCode::kRuntime);
  EXPECT_THAT(text, ::testing::StartsWith("a library needs 909494.7 TiB of memory, but "));
  EXPECT_THAT(text, ::testing::EndsWith(" are available; use a shorter text"));
}

}  // namespace
}  // namespace tamis

#include "tamis/base/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

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
  constexpr int64_t kRoom = 256 << 20;
  constexpr int kIgnored = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::ifstream statm("/proc/self/statm");
    int64_t pages = 0;
    statm >> pages;
    const auto most = static_cast<rlim_t>(pages * sysconf(_SC_PAGE_SIZE) + kRoom);
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    rlimit set{};
    getrlimit(RLIMIT_AS, &set);
    if (set.rlim_cur != most) _exit(kIgnored);
    const int64_t available = available_memory_bytes();
    _exit(available > kRoom / 2 && available <= kRoom ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kIgnored) GTEST_SKIP() << "qemu-user ignores this limit";
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

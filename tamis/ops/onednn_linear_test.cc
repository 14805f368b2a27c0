#include "tamis/ops/onednn_linear.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <new>
#include <thread>
#include <vector>

#include "tamis/base/memory.h"

namespace tamis::ops {
namespace {

bool leave_address_space(int64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = RLIM_INFINITY;
  if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = int64_t{1} << 46;
  if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur -= available_address_space() - bytes;
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

/// How often check_onednn_memory() throws in four threads that call it at the same time with so much left.
int64_t refusals_with(int64_t bytes) {
  constexpr int kThreads = 4, kChecks = 1000;
  if (!leave_address_space(int64_t{1} << 32)) return -1;
  std::atomic<int64_t> refusals = 0;
  std::barrier step(kThreads + 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      check_onednn_memory();  // the thread has allocated what it needs
      step.arrive_and_wait();
      step.arrive_and_wait();
      for (int check = 0; check < kChecks; ++check) {
        try {
          check_onednn_memory();
        } catch (const std::bad_alloc&) {
          ++refusals;
        }
      }
    });
  }
  step.arrive_and_wait();
  const bool limited = leave_address_space(bytes);
  step.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  return limited ? refusals.load() : -1;
}

/// oneDNN crashes where there is not enough, and a check must not take it from products of other threads.
TEST(OneDnnMemory, IsCheckedButNotTaken) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve address space";
#endif
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "a limit cannot be chosen";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(refusals_with(20 << 20) == 0 ? 0 : 1), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(_exit(refusals_with(8 << 20) == 4000 ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tamis::ops

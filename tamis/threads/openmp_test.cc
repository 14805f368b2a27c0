// OpenMP code, compiled like LibTorch's, runs on the team of tamis/threads/team.h.

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <deque>
#include <numeric>
#include <thread>
#include <vector>

#include "tamis/threads/openmp_library.h"
#include "tamis/threads/team.h"
#include "tamis/threads/testing.h"

namespace tamis::threads {
namespace {

constexpr int kItems = 1000;

/// For each worker of a region with `workers` threads: the number of workers that OpenMP reports to it.
std::vector<int> workers_of_region(int workers) {
  std::vector<int> seen(workers, 0);
#pragma omp parallel num_threads(workers)
  {
    seen[omp_get_thread_num()] += omp_get_num_threads();
    EXPECT_EQ(omp_in_parallel(), workers > 1);
  }
  return seen;
}

/// The result of many dependent steps, each a parallel region with a barrier inside.
std::vector<int64_t> sums_of_neighbours(int workers, int steps) {
  std::vector<int64_t> now(kItems), next(kItems);
  std::iota(now.begin(), now.end(), 0);
  for (int step = 0; step < steps; ++step) {
#pragma omp parallel num_threads(workers)
    {
#pragma omp for schedule(static)
      for (int i = 0; i < kItems; ++i) next[i] = (now[i] + now[(i + 1) % kItems]) % 1'000'003;
#pragma omp for schedule(static)
      for (int i = 0; i < kItems; ++i) now[i] = next[(i + kItems / 2) % kItems];
    }
  }
  return now;
}

TEST(OpenMp, ItsRegionsRunOnTheTeam) {
  ASSERT_TRUE(team_serves_openmp()) << "unset OMP_* and GOMP_* for this test";
  std::atomic<int> ours{0};
#pragma omp parallel num_threads(3)
  ours += Place::mine().region != nullptr ? 1 : 0;
  EXPECT_EQ(ours, 3);
  EXPECT_FALSE(omp_in_parallel());
  EXPECT_EQ(omp_get_num_threads(), 1);
}

TEST(OpenMp, EveryWorkerRunsOnceForAnyNumberOfThreads) {
  for (const int workers : {2, 5, 3, 1, 4, 64, 2}) {
    EXPECT_EQ(workers_of_region(workers), std::vector<int>(workers, workers));
  }
}

TEST(OpenMp, TheNumberOfThreadsIsTheDefault) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  std::atomic<int> workers{0};
#pragma omp parallel
  ++workers;
  omp_set_num_threads(before);
  EXPECT_EQ(workers, 3);
}

TEST(OpenMp, BarriersSeparateLoops) {
  EXPECT_EQ(sums_of_neighbours(4, 200), sums_of_neighbours(1, 200));
}

TEST(OpenMp, BarriersSeparateLoopsWhereOtherProgramsUseTheCores) {
  const std::vector<int64_t> expected = sums_of_neighbours(1, 200);
  const testing::BusyCores load;
  EXPECT_EQ(sums_of_neighbours(2, 200), expected);
  EXPECT_EQ(sums_of_neighbours(5, 200), expected);
}

TEST(OpenMp, DynamicLoopsDoEveryIterationOnce) {
  std::vector<std::atomic<int>> up(kItems), down(kItems);
#pragma omp parallel num_threads(4)
  {
#pragma omp for schedule(dynamic, 7) nowait
    for (int i = 0; i < kItems; ++i) ++up[i];
#pragma omp for schedule(monotonic : dynamic, 3)
    for (int i = kItems - 1; i >= 0; i -= 2) ++down[i];
  }
  for (int i = 0; i < kItems; ++i) {
    EXPECT_EQ(up[i], 1) << i;
    EXPECT_EQ(down[i], i % 2) << i;
  }
}

TEST(OpenMp, OrderedPartsRunInOrder) {
  std::vector<int> order;
#pragma omp parallel for ordered schedule(dynamic, 3) num_threads(4)
  for (int i = 0; i < kItems; ++i) {
    if (i % 7 == 0) continue;
#pragma omp ordered
    order.push_back(i);
  }
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order.size(), static_cast<size_t>(kItems - (kItems + 6) / 7));
}

TEST(OpenMp, SectionsAndSinglesRunOnce) {
  std::atomic<int> first{0}, second{0}, single{0};
#pragma omp parallel num_threads(3)
  {
#pragma omp sections
    {
#pragma omp section
      ++first;
#pragma omp section
      ++second;
    }
#pragma omp single
    ++single;
    EXPECT_EQ(first + second + single, 3);
  }
}

TEST(OpenMp, CriticalPartsRunOneAtATime) {
  std::atomic<int> inside{0}, passed{0};
#pragma omp parallel num_threads(3)
  for (int i = 0; i < kItems; ++i) {
#pragma omp critical
    {
      EXPECT_EQ(++inside, 1);
      ++passed;
      --inside;
    }
  }
  EXPECT_EQ(passed, 3 * kItems);
}

TEST(OpenMp, ANestedRegionHasOneWorker) {
  std::atomic<int> nested{0};
#pragma omp parallel num_threads(3)
  {
    const int outer = omp_get_thread_num();
#pragma omp parallel num_threads(4)
    {
      ++nested;
      EXPECT_EQ(omp_get_num_threads(), 1);
      EXPECT_EQ(omp_get_thread_num(), 0);
      EXPECT_TRUE(omp_in_parallel());
      int iterations = 0;
#pragma omp for schedule(dynamic)
      for (int i = 0; i < kItems; ++i) ++iterations;
      EXPECT_EQ(iterations, kItems);
    }
    EXPECT_EQ(omp_get_thread_num(), outer);
    EXPECT_EQ(omp_get_num_threads(), 3);
  }
  EXPECT_EQ(nested, 3);
}

TEST(OpenMp, ThreadsThatOpenRegionsAtOnceAllGetWorkers) {
  const std::vector<int64_t> expected = sums_of_neighbours(1, 100);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] { EXPECT_EQ(sums_of_neighbours(2, 100), expected); });
  }
  for (std::thread& caller : callers) caller.join();
}

/// Opens regions in which parts on other threads are slow, until this thread runs most of them alone.
void make_this_thread_compute_alone() {
  ASSERT_TRUE(team_serves_openmp()) << "unset OMP_* and GOMP_* for this test";
  const auto begin = std::chrono::steady_clock::now();
  std::deque<bool> alone(100, false);
  while (std::count(alone.begin(), alone.end(), true) < 80) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> others{false};
#pragma omp parallel num_threads(3)
    if (std::this_thread::get_id() != caller) {
      others = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 10'000;
      while (std::clock() < end) {
      }
    }
    alone.pop_front();
    alone.push_back(!others);
  }
}

TEST(OpenMp, WhereOtherThreadsAreSlowTheCallingThreadComputesAlone) {
  ASSERT_NO_FATAL_FAILURE(make_this_thread_compute_alone());
  for (const int workers : {3, 2, 5, 3}) {
    EXPECT_EQ(workers_of_region(workers), std::vector<int>(workers, workers));
    EXPECT_EQ(sums_of_neighbours(workers, 50), sums_of_neighbours(1, 50));
  }
}

TEST(OpenMp, PartsThatWaitForEachOtherAllRunWhereOneThreadComputesAlone) {
  ASSERT_NO_FATAL_FAILURE(make_this_thread_compute_alone());
  std::atomic<int> arrived{0};
#pragma omp parallel num_threads(3)
  for (++arrived; arrived < 3;) {  // as oneDNN's threads wait, without OpenMP
  }
  EXPECT_EQ(arrived, 3);
}

TEST(OpenMp, PartsThatSleepUntilAnotherIsDoneAllRunWhereOneThreadComputesAlone) {
  ASSERT_NO_FATAL_FAILURE(make_this_thread_compute_alone());
  std::atomic<int> arrived{0};
#pragma omp parallel num_threads(3)
  {
    ++arrived;
    arrived.notify_all();
    for (int seen = arrived; seen < 3; seen = arrived) arrived.wait(seen);
  }
  EXPECT_EQ(arrived, 3);
}

TEST(OpenMp, ThreadsThatSleepAfterAPauseLeaveLoneRegionsAlone) {
  ASSERT_NO_FATAL_FAILURE(make_this_thread_compute_alone());
  int shared = 0;
  for (int region = 0; region < 20; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> others{false};
#pragma omp parallel num_threads(3)
    if (std::this_thread::get_id() != caller) others = true;
    shared += others ? 1 : 0;
  }
  EXPECT_LE(shared, 5);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow threads that a forked child starts
TEST(OpenMp, AForkedChildHasATeamOfItsOwn) {
  workers_of_region(3);
  const pid_t child = fork();
  if (child == 0) _exit(workers_of_region(3) == std::vector<int>(3, 3) ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}
#endif

#if !defined(__SANITIZE_THREAD__)
TEST(OpenMp, RegionsRunWhereTheSystemRefusesThreads) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (geteuid() == 0 && setuid(kNobody) != 0)) _exit(2);
    for (const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 2; std::clock() < end;) {
      std::atomic<int> workers{0};
#pragma omp parallel num_threads(3)
      ++workers;
      if (workers != 1) _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}
#endif

}  // namespace
}  // namespace tamis::threads

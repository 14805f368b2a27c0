#include "tamis/distributed/process_group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tamis/distributed/testing.h"

namespace tamis::distributed {
namespace {

using ::testing::ElementsAre;
using testing::in_processes;

TEST(ProcessGroup, GathersInTheOrderOfRanks) {
  in_processes(3, [](ProcessGroup& group) {
    const std::vector<double> mine = {static_cast<double>(group.rank()), 0.5};
    EXPECT_THAT(group.gather(mine), ElementsAre(0, 0.5, 1, 0.5, 2, 0.5));
    EXPECT_THAT(group.gather(std::string(group.rank(), 'x')), ElementsAre("", "x", "xx"));
    EXPECT_EQ(group.broadcast(group.rank() == 0 ? "first" : "other"), "first");
  });
}

TEST(ProcessGroup, SendsEveryPartToItsProcess) {
  in_processes(4, [](ProcessGroup& group) {
    const auto rank = static_cast<double>(group.rank());
    const at::Tensor from = at::arange(8, at::kFloat) + 100 * rank;
    const at::Tensor to = at::empty_like(from);
    group.all_to_all(to, from).wait();
    for (int64_t r = 0; r < group.size(); ++r) {
      EXPECT_EQ(to[2 * r].item<double>(), 100.0 * static_cast<double>(r) + 2 * rank);
      EXPECT_EQ(to[2 * r + 1].item<double>(), 100.0 * static_cast<double>(r) + 2 * rank + 1);
    }
    EXPECT_EQ(group.bytes_sent(), 3 * 2 * 4);
  });
}

TEST(ProcessGroup, OperationsMayOverlap) {
  in_processes(2, [](ProcessGroup& group) {
    std::vector<at::Tensor> gathered;
    std::vector<ProcessGroup::Pending> pending;
    for (int i = 0; i < 20; ++i) {
      const at::Tensor from = at::full({1000}, static_cast<double>(100 * i + group.rank()), at::kFloat);
      gathered.push_back(at::empty({2, 1000}, at::kFloat));
      pending.push_back(group.all_gather(gathered.back().view({-1}), from));
    }
    for (int i = 0; i < 20; ++i) {
      pending[i].wait();
      EXPECT_TRUE(gathered[i][0].eq(100 * i).all().item<bool>());
      EXPECT_TRUE(gathered[i][1].eq(100 * i + 1).all().item<bool>());
    }
  });
}

TEST(ProcessGroup, FailsWhenAProcessDoesNotCome) {
  const tamis::testing::TemporaryDirectory directory;
  const auto [code, message] = tamis::testing::error_of([&] {
    ProcessGroup({.rank = 0, .size = 2, .rendezvous = "file://" + (directory.path() / "meet").string()},
                 std::chrono::seconds(1));
  });
  EXPECT_EQ(code, ExitCode::kLostProcess) << message;
  EXPECT_THAT(message, ::testing::HasSubstr("process 0 of 2: the 2 processes did not meet at file:///"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(ProcessGroup, RefusesAnotherVersionInEveryProcess) {
  const tamis::testing::TemporaryDirectory directory;
  std::vector<std::string> messages(3);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const Launch launch{.rank = rank,
                          .size = 3,
                          .rendezvous = "file://" + (directory.path() / "meet").string(),
                          .version = rank == 2 ? "0.2.0" : "0.1.0"};
      const auto [code, message] = tamis::testing::error_of([&] { ProcessGroup(launch, std::chrono::seconds(30)); });
      EXPECT_EQ(code, ExitCode::kUsage);
      messages[rank] = message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(messages,
              ::testing::Each("process 2 has the version 0.2.0, process 0 has 0.1.0; all must have the same"));
}

TEST(ProcessGroup, WaitsLessForTheMeetingThanForAnswers) {
  const tamis::testing::TemporaryDirectory directory;
  const Launch launch{.rank = 1, .size = 2, .rendezvous = "file://" + (directory.path() / "meet").string()};
  const auto [code, message] =
      tamis::testing::error_of([&] { ProcessGroup(launch, std::chrono::hours(1), std::chrono::seconds(1)); });
  EXPECT_EQ(code, ExitCode::kLostProcess) << message;
  EXPECT_THAT(message, ::testing::HasSubstr("not within 1 s"));
}

/// What earlier starts have left at the store: of all processes, of some, with other versions.
TEST(ProcessGroup, MeetsWhereEarlierStartsMet) {
  protect_process();
  const tamis::testing::TemporaryDirectory directory;
  const std::string file = (directory.path() / "meet").string(), kept = (directory.path() / "kept").string();
  const auto start = [&](const std::vector<int64_t>& ranks, const std::string& version) {
    std::vector<std::thread> threads;
    std::atomic<int64_t> met = 0;
    for (const int64_t rank : ranks) {
      threads.emplace_back([&, rank] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200 * (2 - rank)));  // process 0 comes last
        const Launch launch{.rank = rank, .size = 3, .rendezvous = "file://" + file, .version = version};
        const bool all = ranks.size() == 3;
        try {
          ProcessGroup group(launch, std::chrono::seconds(all ? 60 : 1));
          std::filesystem::copy_file(file, fmt::format("{}{}", kept, rank));
          group.barrier();
          ++met;
        } catch (const Error& error) {
          EXPECT_FALSE(all) << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // The last process that ends by itself removes the file, unless one was killed. As if all had been killed:
    if (std::filesystem::exists(kept + "0")) std::filesystem::rename(kept + "0", file);
    for (const char* rank : {"1", "2"}) std::filesystem::remove(kept + rank);
    return met.load();
  };
  EXPECT_EQ(start({0, 1, 2}, "0.1.0"), 3);
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(start({0, 1, 2}, "0.2.0"), 3);
  EXPECT_EQ(start({0, 2}, "0.1.0"), 0);
  EXPECT_EQ(start({1, 2}, "0.1.0"), 0);
  EXPECT_EQ(start({0, 1, 2}, "0.3.0"), 3);
}

/// No process ends the constructor before all others have connected.
TEST(ProcessGroup, MayLeaveAtOnce) {
  protect_process();
  for (int trial = 0; trial < 20; ++trial) {
    const tamis::testing::TemporaryDirectory directory;
    std::vector<std::thread> threads;
    std::atomic<int64_t> met = 0;
    for (int64_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const Launch launch{.rank = rank, .size = 3, .rendezvous = "file://" + (directory.path() / "meet").string()};
        try {
          ProcessGroup(launch, std::chrono::seconds(60));
          ++met;
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(met, 3);
  }
}

TEST(ProcessGroup, FailsWhenAnotherProcessLeaves) {
  std::string message;
  try {
    in_processes(2, [](ProcessGroup& group) {
      group.barrier();  // both have met
      if (group.rank() == 1) fail(ExitCode::kInput, "the cause");
      group.barrier();
    });
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.code(), ExitCode::kLostProcess);
  }
  EXPECT_THAT(message, ::testing::HasSubstr("process 0 of 2: another process was lost"));
}

}  // namespace
}  // namespace tamis::distributed

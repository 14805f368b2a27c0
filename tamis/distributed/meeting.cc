#include "tamis/distributed/meeting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::distributed {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kStart = "start";  // the name of the newest start

/// A text that no other process and no other start has.
std::string unique_name() {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", getpid(), random(), random());
}

std::string joined(const std::string& start, int64_t rank) {
  return fmt::format("{}/joined/{}", start, rank);
}
std::string read_by(const std::string& start, int64_t rank) {
  return fmt::format("{}/read/{}", start, rank);
}
std::string answer_to(const std::string& start) {
  return start + "/answer";
}

/// Calls `ready` until it is true or the time is over, and says which.
template <typename Ready>
bool wait_until(const Ready& ready, Clock::time_point deadline) {
  constexpr std::chrono::microseconds kShortest(20'000), kLongest(250'000);
  for (auto pause = kShortest; !ready(); pause = std::min(pause * 5 / 4, kLongest)) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

/// What a process says when it joins. Process 0 answers with the names of all who have joined and, if they do not fit,
/// why.
struct Hello {
  std::string name;
  int64_t size = 0;
  std::string version;
};
std::string text_of(const Hello& hello) {
  return fmt::format("{} {} {}", hello.name, hello.size, hello.version);
}
Hello hello_from(const std::string& text) {
  const size_t first = text.find(' '), second = text.find(' ', first + 1);
  return {text.substr(0, first), std::atoll(text.substr(first + 1).c_str()), text.substr(second + 1)};
}

/// How process `rank` differs from process 0; empty if it does not.
std::string difference_of(const Hello& hello, int64_t rank, const Launch& first) {
  if (hello.size != first.size) {
    return fmt::format("process {} was started as one of {}, process 0 as one of {}; start all with the same number",
                       rank, hello.size, first.size);
  }
  if (hello.version != first.version) {
    return fmt::format("process {} has the version {}, process 0 has {}; all must have the same", rank,
                       one_line(hello.version), first.version);
  }
  return "";
}

}  // namespace

std::string not_within(milliseconds timeout) {
  return fmt::format("not within {} s; check that all were started and that they can reach this address",
                     timeout.count() / 1000);
}

c10::intrusive_ptr<c10d::Store> meet_at(c10::intrusive_ptr<c10d::Store> store, const Launch& launch,
                                        milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const auto wait = [&](const auto& ready) {
    if (!wait_until(ready, deadline)) fail(ExitCode::kLostProcess, "{}", not_within(timeout));
  };
  const auto has = [&](const std::string& key) { return store->check({key}); };
  const std::string own = unique_name();
  std::string start, difference;
  if (launch.rank == 0) {
    start = own;
    store->set(kStart, start);
    std::vector<int64_t> listed;
    std::string names = " ";
    for (int64_t rank = 1; rank < launch.size; ++rank) {
      wait([&] { return has(joined(start, rank)); });
      const Hello hello = hello_from(store->get_to_str(joined(start, rank)));
      names += hello.name + " ";
      listed.push_back(rank);
      if (difference.empty()) difference = difference_of(hello, rank, launch);
      if (hello.size != launch.size) break;  // the others may never come
    }
    store->set(answer_to(start), names + "\n" + difference);
    if (!difference.empty()) {
      // The store may end with this process, so the others get some time to read the answer.
      const Clock::time_point soon = Clock::now() + std::chrono::seconds(10);
      try {
        for (const int64_t rank : listed) wait_until([&] { return has(read_by(start, rank)); }, soon);
      } catch (const std::exception&) {  // of the store; the answer matters more
      }
    }
  } else {
    // Until process 0 has come, the name may be that of an earlier start, whose answer does not name this process.
    wait([&] {
      if (!start.empty() && has(answer_to(start))) {
        const std::string answer = store->get_to_str(answer_to(start));
        const size_t line = answer.find('\n');
        if (answer.substr(0, line).find(" " + own + " ") != std::string::npos) {
          difference = answer.substr(line + 1);
          return true;
        }
      }
      if (!has(kStart)) return false;
      if (const std::string newest = store->get_to_str(kStart); newest != start) {
        start = newest;
        store->set(joined(start, launch.rank), text_of({own, launch.size, launch.version}));
      }
      return false;
    });
    if (!difference.empty()) store->set(read_by(start, launch.rank), "1");
  }
  if (!difference.empty()) fail(ExitCode::kUsage, "{}", difference);
  return c10::make_intrusive<c10d::PrefixStore>(start, std::move(store));
}

}  // namespace tamis::distributed

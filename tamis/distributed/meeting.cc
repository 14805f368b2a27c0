#include "tamis/distributed/meeting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

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

/// Calls `ready` until it is true.
template <typename Ready>
void wait_until(const Ready& ready, Clock::time_point deadline, milliseconds timeout) {
  while (!ready()) {
    if (Clock::now() > deadline) fail(ExitCode::kLostProcess, "{}", not_within(timeout));
    std::this_thread::sleep_for(milliseconds(20));
  }
}

/// What a process says when it joins. Process 0 answers with the names of all who have joined and, if their versions
/// differ, how.
struct Hello {
  std::string name, version;
};
std::string text_of(const Hello& hello) {
  return hello.name + " " + hello.version;
}
Hello hello_from(const std::string& text) {
  const size_t space = text.find(' ');
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

std::string not_within(milliseconds timeout) {
  return fmt::format("not within {} s; check that all were started and that they can reach this address",
                     timeout.count() / 1000);
}

c10::intrusive_ptr<c10d::Store> meet_at(c10::intrusive_ptr<c10d::Store> store, const Launch& launch,
                                        milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string own = unique_name();
  const auto has = [&](const std::string& key) { return store->check({key}); };
  std::string start, difference;
  if (launch.rank == 0) {
    start = own;
    store->set(kStart, start);
    std::string names = " ";
    for (int64_t rank = 1; rank < launch.size; ++rank) {
      wait_until([&] { return has(joined(start, rank)); }, deadline, timeout);
      const Hello hello = hello_from(store->get_to_str(joined(start, rank)));
      names += hello.name + " ";
      if (hello.version == launch.version || !difference.empty()) continue;
      difference = fmt::format("process {} has the version {}, process 0 has {}; all must have the same", rank,
                               one_line(hello.version), launch.version);
    }
    store->set(answer_to(start), names + "\n" + difference);
    for (int64_t rank = 1; rank < launch.size && !difference.empty(); ++rank) {
      // The store may end with this process.
      wait_until([&] { return has(read_by(start, rank)); }, deadline, timeout);
    }
  } else {
    // Until process 0 has come, the name may be that of an earlier start, whose answer does not name this process.
    wait_until(
        [&] {
          if (!has(kStart)) return false;
          if (const std::string newest = store->get_to_str(kStart); newest != start) {
            start = newest;
            store->set(joined(start, launch.rank), text_of({own, launch.version}));
          }
          if (!has(answer_to(start))) return false;
          const std::string answer = store->get_to_str(answer_to(start));
          const size_t line = answer.find('\n');
          if (answer.substr(0, line).find(" " + own + " ") == std::string::npos) return false;
          difference = answer.substr(line + 1);
          return true;
        },
        deadline, timeout);
    if (!difference.empty()) store->set(read_by(start, launch.rank), "1");
  }
  if (!difference.empty()) fail(ExitCode::kUsage, "{}", difference);
  return c10::make_intrusive<c10d::PrefixStore>(start, std::move(store));
}

}  // namespace tamis::distributed

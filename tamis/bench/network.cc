#include "tamis/bench/network.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/bench/measure.h"

namespace tamis::bench {
namespace {

using distributed::ProcessGroup;

/// Throws ExitCode::kRuntime unless every process receives the numbers of the others.
void check_exchange(ProcessGroup& group) {
  const at::Tensor sent = at::full({group.size()}, group.rank(), at::kFloat), received = at::empty_like(sent);
  group.all_to_all(received, sent).wait();
  if (received.equal(at::arange(group.size(), at::kFloat))) return;
  fail(ExitCode::kRuntime, "process {} of {} received other numbers than were sent", group.rank(), group.size());
}

/// The median time of an exchange of `numbers` with each process, in seconds, after one that is not measured: that of
/// the slowest process, which also decides how many there are.
double exchange_seconds(ProcessGroup& group, int64_t numbers, const MeasureOptions& options) {
  const at::Tensor sent = at::ones({group.size() * numbers}, at::kFloat), received = at::empty_like(sent);
  const auto exchange = [&] {
    const double begin = now_seconds();
    group.all_to_all(received, sent).wait();
    return now_seconds() - begin;
  };
  const auto slowest = [&](double value) {
    const std::vector<double> all = group.gather(std::span(&value, 1));
    return *std::ranges::max_element(all);
  };
  exchange();
  const double once = slowest(exchange());
  constexpr double kMostCalls = 1e5;
  const auto calls = std::max(options.repeat, static_cast<int64_t>(std::min(options.seconds / once, kMostCalls)));
  std::vector<double> seconds;
  for (int64_t i = 0; i < calls; ++i) seconds.push_back(exchange());
  return slowest(summarise(std::move(seconds)).median);
}

}  // namespace

double NetworkSpeed::bandwidth() const {
  return static_cast<double>(exchanged) / exchange_seconds;
}

NetworkSpeed measure_network(const NetworkBench& bench, ProcessGroup& group) {
  check_exchange(group);
  constexpr int64_t kBytes = sizeof(float);
  const int64_t numbers = std::max<int64_t>(bench.megabytes * 1'000'000 / kBytes / group.size(), 1);
  return {.processes = group.size(),
          .launcher = group.launch().launcher,
          .exchanged = (group.size() - 1) * numbers * kBytes,
          .exchange_seconds = exchange_seconds(group, numbers, bench.measure),
          .latency = exchange_seconds(group, 1, bench.measure)};
}

nlohmann::json to_json(const NetworkSpeed& speed) {
  return {{"bench", "network"},
          {"processes", speed.processes},
          {"launcher", speed.launcher},
          {"exchanged_bytes", speed.exchanged},
          {"exchange_seconds", speed.exchange_seconds},
          {"bytes_per_second", speed.bandwidth()},
          {"latency_seconds", speed.latency}};
}

std::string to_text(const NetworkSpeed& speed) {
  const double gigabits = speed.bandwidth() * 8 / 1e9, microseconds = speed.latency * 1e6;
  return fmt::format(
      "{} processes{}, exchanges among all of them, medians of the slowest process\n"
      "  {:.3g} Gbit/s of each process in each direction ({:.1f} MB in {:.3g} ms)\n"
      "  {:.0f} µs a message of 4 bytes\n"
      "tamis plan RECIPE --processes {} --bandwidth {:.3g} --latency {:.0f}\n",
      speed.processes, speed.launcher.empty() ? "" : ", started by " + speed.launcher, gigabits,
      static_cast<double>(speed.exchanged) / 1e6, speed.exchange_seconds * 1e3, microseconds, speed.processes, gigabits,
      microseconds);
}

}  // namespace tamis::bench

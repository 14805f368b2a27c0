#include "tamis/distributed/process_group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#define USE_C10D_GLOO
#include <netdb.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/process.h"
#include "tamis/distributed/meeting.h"

C10_DECLARE_int(caffe2_log_level);

namespace tamis::distributed {
namespace {

using std::chrono::milliseconds;

/// Every failure comes as an exception; c10d also logs it, with a stack trace. TORCH_CPP_LOG_LEVEL brings that back.
void silence_c10d() {
  constexpr int kFatal = 3;
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatal;
}

/// The first line of what c10d or Gloo says, without its place in their sources and without Gloo's advice.
std::string reason_of(const std::exception& error) {
  std::string text = error.what();
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) text = torch->what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  text = text.substr(0, text.find(" This is typically caused by"));
  if (text.starts_with("[")) {
    if (const size_t end = text.find("] "); end != std::string::npos) text = text.substr(end + 2);
  }
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return one_line(text);
}

bool is_local(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, milliseconds timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  if (launch.rendezvous.starts_with("tcp://")) {
    const auto [host, port] = tcp_address(launch.rendezvous);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = launch.rank == 0 && !launch.hosted;
    options.numWorkers = static_cast<size_t>(launch.size);
    options.waitWorkers = false;
    options.timeout = timeout;
    store = c10::make_intrusive<c10d::TCPStore>(host, options);
  } else {
    const std::filesystem::path path = launch.rendezvous.substr(std::string_view("file://").size());
    if (!std::filesystem::is_directory(path.parent_path())) {  // FileStore would wait for it
      fail(ExitCode::kUsage, "--rendezvous {}: {} is no directory", one_line(launch.rendezvous),
           one_line(path.parent_path().string()));
    }
    store = c10::make_intrusive<c10d::FileStore>(path.string(), static_cast<int>(launch.size));
    store->setTimeout(timeout);
  }
  return c10::make_intrusive<c10d::PrefixStore>("tamis", std::move(store));
}

/// The network interface: that of GLOO_SOCKET_IFNAME, else loopback when the processes meet there, else that of the
/// host's name.
auto open_device(const Launch& launch) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface && *interface) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (launch.rendezvous.starts_with("tcp://") && is_local(tcp_address(launch.rendezvous).host)) {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

struct ProcessGroup::Pending::Impl {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor to, from;   // kept alive
  at::Tensor on_device;  // where `to` goes; undefined if `to` is the caller's
  std::string process;   // for messages
};

namespace {

[[noreturn]] void fail_lost(const std::string& process, const std::exception& error) {
  fail(ExitCode::kLostProcess, "{}: another process was lost or does not answer: {}", process, reason_of(error));
}

/// What went wrong at the store where the processes meet.
std::string meeting_problem(const std::exception& error, const Launch& launch, milliseconds timeout) {
  const std::string reason = reason_of(error);
  if (reason.find("EADDRINUSE") != std::string::npos) {
    return "another program uses this port; choose another, with MASTER_PORT or --rendezvous";
  }
  if (reason.find("timeout") != std::string::npos || reason.find("timed out") != std::string::npos) {
    return not_within(timeout);
  }
  if (launch.rendezvous.starts_with("file://")) return reason;
  return reason + "; if another program uses this port, choose another, with MASTER_PORT or --rendezvous";
}

std::string name_of(const Launch& launch) {
  return fmt::format("process {} of {}", launch.rank, launch.size);
}

bool is_known(const std::string& host) {
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

std::string not_met(const Launch& launch, const std::string& problem) {
  return fmt::format("{}: the {} processes did not meet at {}: {}", name_of(launch), launch.size, launch.rendezvous,
                     problem);
}

/// While it exists, a thread says after ten seconds what this process is waiting for. The name of a host that is not
/// known is no error, because the machines of a cluster may start at different times. Ten seconds after the time-out
/// it ends the process: a store that is connected but does not answer would block it without end.
class MeetingWatch {
 public:
  MeetingWatch(const Launch& launch, milliseconds timeout)
      : thread_([this, launch, timeout](const std::stop_token& stop) {
          if (ended_within(std::chrono::seconds(10), stop)) return;
          say(launch, timeout);
          if (ended_within(timeout, stop)) return;
          end_process(not_met(launch, not_within(timeout)).c_str(), ExitCode::kLostProcess);
        }) {}

 private:
  bool ended_within(milliseconds time, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, stop, time, [] { return false; });
    return stop.stop_requested();
  }

  static void say(const Launch& launch, milliseconds timeout) {
    const std::string host =
        launch.rendezvous.starts_with("tcp://") ? tcp_address(launch.rendezvous).host : std::string();
    print_message(
        stderr,
        fmt::format("tamis: {}: waiting at {} for the other processes, {} s at most{}\n", name_of(launch),
                    launch.rendezvous, timeout.count() / 1000,
                    host.empty() || is_known(host)
                        ? ""
                        : "; the name of this host is not known here (MASTER_ADDR or --rendezvous choose another "
                          "address)"));
  }

  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // the last member, so that it ends first
};

}  // namespace

template <typename Work>
auto ProcessGroup::checked(const Work& work) const {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_lost(name_of(launch_), error);
  }
}

struct ProcessGroup::Impl {
  Impl(c10::intrusive_ptr<c10d::Store> store, const Launch& launch, milliseconds timeout) : store(std::move(store)) {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(open_device(launch));
    gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(this->store, static_cast<int>(launch.rank),
                                                       static_cast<int>(launch.size), options);
  }

  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

ProcessGroup::ProcessGroup(const Launch& launch, milliseconds timeout, std::optional<milliseconds> meeting_timeout)
    : launch_(launch), timeout_(timeout) {
  silence_c10d();
  const milliseconds meeting = meeting_timeout.value_or(timeout);
  const MeetingWatch watch(launch, meeting);
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = meet_at(open_store(launch, meeting), launch, meeting);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kUsage) throw;
    fail(ExitCode::kLostProcess, "{}", not_met(launch, error.what()));
  } catch (const std::exception& error) {
    fail(ExitCode::kLostProcess, "{}", not_met(launch, meeting_problem(error, launch, meeting)));
  }
  try {
    impl_ = std::make_unique<Impl>(store, launch, meeting);
  } catch (const std::exception& error) {
    fail(ExitCode::kLostProcess,
         "{}: the {} processes met at {} but cannot connect: {}; GLOO_SOCKET_IFNAME chooses the network interface",
         name_of(launch), launch.size, launch.rendezvous, reason_of(error));
  }
  barrier();  // the others have connected too: only now may one of them end
  impl_->gloo->setTimeout(timeout);
  store->setTimeout(timeout);
}

ProcessGroup::ProcessGroup(const ProcessGroup& all, int64_t size, const std::string& name)
    : launch_(all.launch_), timeout_(all.timeout_) {
  launch_.rank = all.rank() % size;
  launch_.size = size;
  all.checked([&] {
    impl_ = std::make_unique<Impl>(
        c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", name, all.rank() / size), all.impl_->store),
        launch_, timeout_);
  });
}

ProcessGroup::~ProcessGroup() = default;

ProcessGroup::Pending::Pending() = default;
ProcessGroup::Pending::Pending(Pending&&) noexcept = default;
ProcessGroup::Pending& ProcessGroup::Pending::operator=(Pending&&) noexcept = default;
ProcessGroup::Pending::~Pending() = default;

void ProcessGroup::Pending::wait() {
  if (!impl_) return;
  const std::unique_ptr<Impl> impl = std::move(impl_);
  try {
    impl->work->wait();
  } catch (const std::exception& error) {
    fail_lost(impl->process, error);
  }
  if (impl->on_device.defined()) impl->on_device.copy_(impl->to);
}

template <typename Start>
ProcessGroup::Pending ProcessGroup::begin(const at::Tensor& to, const at::Tensor& from, const Start& start) const {
  Pending pending;
  pending.impl_ = std::make_unique<Pending::Impl>();
  pending.impl_->from = from.cpu();
  if (to.defined()) {
    pending.impl_->to = to.is_cpu() ? to : at::empty_like(to, at::kCPU);
    if (!to.is_cpu()) pending.impl_->on_device = to;
  }
  pending.impl_->process = name_of(launch_);
  pending.impl_->work = checked([&] { return start(pending.impl_->to, pending.impl_->from); });
  return pending;
}

// Of the collectives with two names this file uses the older, which LibTorch 2.11 has, too.

at::Tensor ProcessGroup::gathered(const at::Tensor& from) const {
  const at::Tensor to = at::empty({size(), from.numel()}, from.options());
  const auto start = [&](at::Tensor& received, at::Tensor& sent) {
    return impl_->gloo->_allgather_base(received, sent);
  };
  begin(to.view({-1}), from, start).wait();
  return to;
}

ProcessGroup::Pending ProcessGroup::all_to_all(const at::Tensor& to, const at::Tensor& from) {
  return all_to_all(to, from, std::vector<int64_t>(size(), to.numel() / size()),
                    std::vector<int64_t>(size(), from.numel() / size()));
}

ProcessGroup::Pending ProcessGroup::all_to_all(const at::Tensor& to, const at::Tensor& from,
                                               std::vector<int64_t> to_counts, std::vector<int64_t> from_counts) {
  bytes_sent_ += (from.numel() - from_counts[rank()]) * static_cast<int64_t>(from.element_size());
  return begin(to, from, [&](at::Tensor& received, at::Tensor& sent) {
    // alltoall_base moves from the vectors of counts.
    return impl_->gloo->alltoall_base(received, sent, to_counts, from_counts);
  });
}

ProcessGroup::Pending ProcessGroup::all_gather(const at::Tensor& to, const at::Tensor& from) {
  bytes_sent_ += static_cast<int64_t>(from.nbytes()) * (size() - 1);
  return begin(to, from,
               [&](at::Tensor& received, at::Tensor& sent) { return impl_->gloo->_allgather_base(received, sent); });
}

ProcessGroup::Pending ProcessGroup::start_send(const at::Tensor& tensor, int64_t rank) {
  bytes_sent_ += static_cast<int64_t>(tensor.nbytes());
  return begin(/*to=*/at::Tensor(), tensor, [&](at::Tensor& /*received*/, at::Tensor& sent) {
    std::vector<at::Tensor> tensors = {sent};
    return impl_->gloo->send(tensors, static_cast<int>(rank), /*tag=*/0);
  });
}

void ProcessGroup::receive(const at::Tensor& tensor, int64_t rank) {
  std::vector<at::Tensor> tensors = {tensor.is_cpu() ? tensor : at::empty_like(tensor, at::kCPU)};
  checked([&] { impl_->gloo->recv(tensors, static_cast<int>(rank), /*tag=*/0)->wait(); });
  if (!tensor.is_cpu()) tensor.copy_(tensors[0]);
}

std::vector<double> ProcessGroup::gather(std::span<const double> values) {
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor from = at::empty({count}, at::kDouble);
  std::copy(values.begin(), values.end(), from.mutable_data_ptr<double>());
  const at::Tensor to = gathered(from);
  const double* all = to.const_data_ptr<double>();
  return {all, all + count * size()};
}

std::vector<std::string> ProcessGroup::gather(const std::string& text) {
  const auto length = static_cast<double>(text.size());
  const std::vector<double> lengths = gather(std::span(&length, 1));
  const auto longest = static_cast<int64_t>(*std::max_element(lengths.begin(), lengths.end()));
  const at::Tensor from = at::zeros({std::max<int64_t>(longest, 1)}, at::kByte);
  std::copy(text.begin(), text.end(), from.mutable_data_ptr<uint8_t>());
  const at::Tensor to = gathered(from);
  std::vector<std::string> texts;
  for (int64_t r = 0; r < size(); ++r) {
    const auto* first = to.const_data_ptr<uint8_t>() + r * from.numel();
    texts.emplace_back(first, first + static_cast<int64_t>(lengths[r]));
  }
  return texts;
}

std::string ProcessGroup::broadcast(const std::string& text) {
  return gather(rank() == 0 ? text : "").front();
}

void ProcessGroup::barrier() {
  const double nothing = 0;
  gather(std::span(&nothing, 1));
}

}  // namespace tamis::distributed

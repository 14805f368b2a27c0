#include "tamis/study/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"

namespace tamis::study {
namespace {

std::string last_line(const std::filesystem::path& file) {
  std::string text = std::filesystem::exists(file) ? read_file(file) : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text = text.substr(text.rfind('\n') + 1);                    // npos + 1 is 0
  return text.starts_with("tamis: ") ? text.substr(7) : text;  // main() writes it again
}

}  // namespace

Workers::~Workers() {
  stop_all(SIGTERM);
  for (const auto& [pid, worker] : running_) waitpid(pid, nullptr, 0);
}

void Workers::start(const std::string& name, const std::vector<std::string>& arguments,
                    const std::filesystem::path& output) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  make_directories(output.parent_path());
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int messages = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (messages < 0) fail(ExitCode::kStorage, "{}: cannot be written: {}", output.string(), std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {  // only system calls from here on: other threads may have held locks at the fork
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    dup2(nothing, 0);
    dup2(nothing, 1);
    dup2(messages, 2);
    execv(program.c_str(), argv.data());
    _exit(1);
  }
  close(nothing);
  close(messages);
  if (pid < 0) fail(ExitCode::kRuntime, "{}: cannot start {}: {}", name, program, std::strerror(errno));
  running_[pid] = {name, output};
}

/// Interprets the status that waitpid returned.
Workers::Ended Workers::ended(const Worker& worker, int status) {
  if (WIFEXITED(status)) return {worker.name, WEXITSTATUS(status), last_line(worker.output)};
  return {worker.name, static_cast<int>(ExitCode::kRuntime),
          fmt::format("killed by signal {}{}; its messages are in {}", WTERMSIG(status),
                      WTERMSIG(status) == SIGKILL ? " (out of memory?)" : "", worker.output.string())};
}

Workers::Ended Workers::wait(const std::function<int()>& signal_received) {
  while (true) {
    for (const auto& [pid, worker] : running_) {
      int status = 0;
      const pid_t found = waitpid(pid, &status, WNOHANG);
      if (found == 0 || (found < 0 && errno == EINTR)) continue;
      Ended result = found == pid ? ended(worker, status) : Ended{worker.name, 1, "its exit status is lost"};
      running_.erase(pid);
      return result;
    }
    if (const int signal = signal_received(); signal != 0) stop_all(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void Workers::stop_all(int signal) {
  for (auto& [pid, worker] : running_) {
    if (!std::exchange(worker.stopping, true)) kill(pid, signal);
  }
}

}  // namespace tamis::study

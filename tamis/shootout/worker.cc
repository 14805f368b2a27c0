#include "tamis/shootout/worker.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "tamis/base/error.h"
#include "tamis/base/files.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace tamis::shootout {
namespace {

std::string last_line(const std::filesystem::path& file) {
  std::string text = std::filesystem::exists(file) ? read_file(file) : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
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
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, 2, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) fail(ExitCode::kRuntime, "{}: cannot start {}: {}", name, program, std::strerror(error));
  running_[pid] = {name, output};
}

Workers::Ended Workers::wait(const std::function<int()>& signal_received) {
  bool asked = false;
  while (true) {
    for (const auto& [pid, worker] : running_) {
      int status = 0;
      if (waitpid(pid, &status, WNOHANG) != pid) continue;
      Ended ended{.name = worker.name,
                  .status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                  .last_words = last_line(worker.output)};
      running_.erase(pid);
      return ended;
    }
    if (const int signal = signal_received(); signal != 0 && !asked) {
      stop_all(signal);
      asked = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void Workers::stop_all(int signal) const {
  for (const auto& [pid, worker] : running_) kill(pid, signal);
}

}  // namespace tamis::shootout

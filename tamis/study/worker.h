#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tamis::study {

/// Child processes that each run one job: the same program with other arguments. Each has its own process group, so
/// that it receives signals from the terminal only through this process, and gets SIGTERM when this process ends.
class Workers {
 public:
  Workers() = default;
  ~Workers();  // sends SIGTERM to the remaining processes and waits for them
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Starts this program with `arguments`; its standard error is written to the file `output`. Throws
  /// ExitCode::kRuntime or kStorage.
  void start(const std::string& name, const std::vector<std::string>& arguments, const std::filesystem::path& output);

  struct Ended {
    std::string name;
    int status;             // exit code; kRuntime when a signal killed it
    std::string last_line;  // the last line of its output without `tamis: `, or the signal that killed it
  };
  /// Waits for the next process to end. Once `signal_received` returns a signal, passes it on to each process, once.
  Ended wait(const std::function<int()>& signal_received);

  size_t running() const { return running_.size(); }

 private:
  struct Worker {
    std::string name;
    std::filesystem::path output;
    bool stopping = false;  // was sent a signal; a second one would kill it at once
  };
  void stop_all(int signal);
  static Ended ended(const Worker& worker, int status);

  std::map<pid_t, Worker> running_;
};

}  // namespace tamis::study

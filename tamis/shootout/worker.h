#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tamis::shootout {

/// Jobs that run as processes of their own: the same program with other arguments. Each belongs to a process group of
/// its own, so that a signal from the terminal reaches it through this one alone, and is asked to stop when this one
/// dies.
class Workers {
 public:
  Workers() = default;
  ~Workers();  // stops what still runs, and waits for it
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Starts this program with `arguments`; what it says goes to the file `output`. Throws ExitCode::kRuntime.
  void start(const std::string& name, const std::vector<std::string>& arguments, const std::filesystem::path& output);

  struct Ended {
    std::string name;
    int status;              // exit code; kRuntime when a signal killed it
    std::string last_words;  // the last line of its output, or how it was killed
  };
  /// Waits for the next one to end. After a signal it asks each to stop, once, and goes on waiting.
  Ended wait(const std::function<int()>& signal_received);

  size_t running() const { return running_.size(); }

 private:
  struct Worker {
    std::string name;
    std::filesystem::path output;
    bool asked = false;  // to stop: a second time would be to kill it
  };
  void stop_all(int signal);
  static Ended ended(const Worker& worker, int status);

  std::map<pid_t, Worker> running_;
};

}  // namespace tamis::shootout

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tamis::distributed {

/// Which of several processes this one is, and where they meet.
struct Launch {
  int64_t rank = 0;  // 0 ... size - 1
  int64_t size = 1;
  int64_t local_rank = 0;  // among the processes on this machine
  int64_t local_size = 1;
  std::string rendezvous;     // tcp://HOST:PORT or file:///PATH
  std::string launcher = "";  // for messages: "torchrun", "srun", ...
  bool hosted = false;        // the launcher serves the store at the rendezvous, so that no process has to
  std::string version = "";   // of the program: all have the same
};

/// The value of an environment variable, or none.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

/// Reads the variables of torchrun (also set by hand: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), of Slurm's srun, of
/// Open MPI and of launchers with PMI (MPICH, Intel MPI). None when this is the only process. `rendezvous` replaces the
/// address that they give, and is needed where they give none. Throws ExitCode::kUsage with the name of the variable.
std::optional<Launch> find_launch(const Environment& environment, const std::string& rendezvous = "");

/// The number of this process among those on the same machine, by the same variables: 0 for a process without a
/// launcher, none if the launcher does not say.
std::optional<int64_t> local_rank(const Environment& environment);

/// The first name of a Slurm node list: "node[003-004,7],login" gives "node003".
std::string first_host(const std::string& node_list);

/// "tcp://HOST:PORT" as host and port. Throws ExitCode::kUsage.
struct Address {
  std::string host;
  int64_t port = 0;
};
Address tcp_address(const std::string& rendezvous);

}  // namespace tamis::distributed

#include "tamis/distributed/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::distributed {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";
constexpr int64_t kDefaultPort = 29500;  // as torchrun
constexpr int64_t kMostProcesses = 1 << 20;

/// The variables in which a launcher gives the numbers of a process.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

std::optional<int64_t> number_at_start(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

int64_t number(const Environment& environment, const std::string& name, int64_t least, int64_t most) {
  const std::string text = environment(name).value_or("");
  const std::optional<int64_t> value = number_at_start(text);
  if (!value || *value < least || *value > most || std::to_string(*value) != text) {
    fail(ExitCode::kUsage, "{}={}: expected a number from {} to {}; unset it to run a single process", name,
         quoted_name(text), least, most);
  }
  return *value;
}

/// The number that a variable begins with ("2(x4)" of Slurm), or `otherwise`.
int64_t number_or(const Environment& environment, const char* name, int64_t otherwise) {
  return number_at_start(environment(name).value_or("")).value_or(otherwise);
}

/// Where the launcher says that the processes meet; empty when it says nothing.
std::string default_rendezvous(const Environment& environment, const std::string& launcher, const Launch& launch) {
  const int64_t port = environment("MASTER_PORT") ? number(environment, "MASTER_PORT", 1, 65535) : kDefaultPort;
  if (const auto host = environment("MASTER_ADDR")) return fmt::format("{}{}:{}", kTcp, *host, port);
  if (const auto nodes = environment("SLURM_STEP_NODELIST"); nodes && launcher == "srun") {
    // Jobs on the same node need different ports.
    const int64_t job = number_or(environment, "SLURM_JOB_ID", 0);
    return fmt::format("{}{}:{}", kTcp, first_host(*nodes), environment("MASTER_PORT") ? port : port + job % 1000);
  }
  if (launch.local_size == launch.size) return fmt::format("{}127.0.0.1:{}", kTcp, port);
  return "";
}

void check_rendezvous(const std::string& rendezvous) {
  if (rendezvous.starts_with(kTcp)) {
    tcp_address(rendezvous);
  } else if (!rendezvous.starts_with(std::string(kFile) + "/")) {
    fail(ExitCode::kUsage, "--rendezvous {}: expected tcp://HOST:PORT, or file:///PATH on a disk that all share",
         quoted_name(rendezvous));
  }
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::string first_host(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const size_t end = node_list.find_first_of(",-]", bracket);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

Address tcp_address(const std::string& rendezvous) {
  const std::string rest = rendezvous.substr(kTcp.size());
  const size_t colon = rest.rfind(':');
  const std::string port = colon == std::string::npos ? "" : rest.substr(colon + 1);
  const std::optional<int64_t> value = number_at_start(port);
  if (colon == 0 || !value || *value < 1 || *value > 65535 || std::to_string(*value) != port) {
    fail(ExitCode::kUsage, "{}: expected tcp://HOST:PORT with a port from 1 to 65535", quoted_name(rendezvous));
  }
  std::string host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);  // IPv6
  return {.host = host, .port = *value};
}

namespace {

/// The launcher of this process; null if there is none.
const Launcher* find_launcher(const Environment& environment) {
  for (const Launcher& each : kLaunchers) {
    // Inside a job of Slurm mpirun may start its own processes by srun: then only the variables of mpirun are right.
    const bool outer =
        each.name == std::string_view("srun") && environment("PMI_RANK") &&
        (environment("PMI_RANK") != environment(each.rank) || environment("PMI_SIZE") != environment(each.size));
    if (!outer && environment(each.rank) && environment(each.size)) return &each;
  }
  return nullptr;
}

}  // namespace

std::optional<int64_t> local_rank(const Environment& environment) {
  const Launcher* launcher = find_launcher(environment);
  if (!launcher) return 0;
  const auto rank = number_at_start(environment(launcher->local_rank).value_or(""));
  return rank && *rank >= 0 ? rank : std::nullopt;
}

std::optional<Launch> find_launch(const Environment& environment, const std::string& rendezvous) {
  const Launcher* launcher = find_launcher(environment);
  if (!launcher) {
    if (rendezvous.empty()) return std::nullopt;
    fail(ExitCode::kUsage,
         "--rendezvous {}: the number of this process is unknown; start it with torchrun, srun or mpirun, or set RANK "
         "and WORLD_SIZE",
         quoted_name(rendezvous));
  }
  Launch launch{.size = number(environment, launcher->size, 1, kMostProcesses), .launcher = launcher->name};
  if (launch.size == 1) return std::nullopt;
  launch.rank = number(environment, launcher->rank, 0, launch.size - 1);
  launch.local_rank = local_rank(environment).value_or(0);
  launch.local_size = std::max<int64_t>(number_or(environment, launcher->local_size, 1), 1);
  launch.rendezvous = rendezvous.empty() ? default_rendezvous(environment, launcher->name, launch) : rendezvous;
  if (launch.rendezvous.empty()) {
    fail(ExitCode::kUsage,
         "{} processes were started by {}, which does not say where they meet; add --rendezvous tcp://HOST:PORT with "
         "the host of process 0",
         launch.size, launch.launcher);
  }
  check_rendezvous(launch.rendezvous);
  launch.hosted = rendezvous.empty() && environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return launch;
}

}  // namespace tamis::distributed

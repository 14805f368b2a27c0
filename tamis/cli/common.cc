#include "tamis/cli/common.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/output_file.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/cli/values.h"
#include "tamis/distributed/launch.h"
#include "tamis/models/checkpoint.h"
#include "tamis/train/machine.h"

namespace tamis::cli {

void add_run_options(CLI::App& command, RunOptions& options) {
  add_number(command, "--threads", options.threads, "Threads to compute with; 0: one per core");
  command.add_option("--device", options.device, "Where to compute; cuda:1 is the second GPU")
      ->type_name("cpu|cuda|xpu")
      ->capture_default_str();
}

void add_set_model_option(CLI::App& command, std::vector<std::string>& changes) {
  command
      .add_option("--set-model", changes,
                  "Override a key of config.json, such as window=256 or rope_factor=4; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void add_weights_option(CLI::App& command, infer::WeightFormat& weights) {
  const auto read = [&weights](const std::string& name) { weights = infer::weight_format_named(name); };
  command.add_option_function<std::string>("--weights", read, "Read the model's matrices in this format")
      ->type_name("float32|bfloat16|int8")
      ->default_str("float32");
}

void add_json_option(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print one line of JSON instead of text");
}

void refuse_other_names(CLI::App& app, const std::string& kind, const std::string& placeholder) {
  // An unknown first word lands in this option, which is there only to name the nearest subcommand.
  app.add_option(placeholder, "One of the names below")->group("")->check([&app, kind](const std::string& name) {
    std::vector<std::string> known;
    for (const CLI::App* each : app.get_subcommands({})) known.push_back(each->get_name());
    fail(ExitCode::kUsage, "{}", unknown_name(kind, name, known));
    return std::string();
  });
}

void refuse_empty_names(CLI::App& app) {
  static const std::set<std::string> kNames = {"FILE", "DIR", "NAME", "TOML", "URL"};
  for (CLI::Option* option : app.get_options()) {
    if (!kNames.contains(option->get_type_name())) continue;
    option->check(CLI::Validator(
        [](const std::string& value) { return value.empty() ? "expected a name, but it is empty" : ""; }, ""));
  }
  for (CLI::App* command : app.get_subcommands({})) refuse_empty_names(*command);
}

namespace {

/// "cpu", or a type of device with a number or without. Throws ExitCode::kUsage.
at::Device device_named(const std::string& name) {
  static const std::array<std::string, 3> kDevices = {"cpu", "cuda", "xpu"};  // also ROCm is "cuda"
  const size_t colon = name.find(':');
  const std::string type = name.substr(0, colon), number = colon == std::string::npos ? "" : name.substr(colon + 1);
  if (std::ranges::find(kDevices, type) == kDevices.end() && type != "privateuseone") {
    throw Error(ExitCode::kUsage, unknown_name("device", name, kDevices));
  }
  if (colon == std::string::npos) return at::Device(type);
  const bool is_number = !number.empty() && number.size() < 3 &&
                         std::ranges::all_of(number, [](unsigned char c) { return std::isdigit(c) != 0; });
  if (type == "cpu" || !is_number) {
    fail(ExitCode::kUsage, "--device {}: expected cpu, or cuda or xpu with or without a number, such as cuda:1",
         quoted_name(name));
  }
  return {at::Device(type).type(), static_cast<at::DeviceIndex>(std::stoi(number))};
}

}  // namespace

void check_options(const RunOptions& options) {
  constexpr int64_t kMostThreads = 4096;
  if (options.threads < 0 || options.threads > kMostThreads) {
    fail(ExitCode::kUsage, "--threads must be in 0..{}, but is {}", kMostThreads, options.threads);
  }
  device_named(options.device);
}

at::Device start(const RunOptions& options) {
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  const at::Device device = device_named(options.device);
  if (device.is_cpu()) return device;
  const int64_t count = train::device_count(device.type());
  if (count == 0) {
    fail(ExitCode::kUsage, "--device {}: this build of LibTorch has no such device or sees none; use --device cpu",
         options.device);
  }
  if (device.index() >= count) {
    fail(ExitCode::kUsage, "--device {}: LibTorch sees {}; the numbers begin with 0", options.device, count);
  }
  if (device.has_index() || count == 1) return device;
  const auto place = distributed::local_rank(distributed::process_environment());
  if (!place) {
    fail(ExitCode::kUsage,
         "--device {0}: of the {1} devices each process takes the one of its LOCAL_RANK, which is not set; set it, or "
         "name a device, such as {0}:1",
         options.device, count);
  }
  if (*place % count == 0) return device;  // LibTorch's default
  return {device.type(), static_cast<at::DeviceIndex>(*place % count)};
}

void add_process_options(CLI::App& command, ProcessOptions& options) {
  command
      .add_option("--rendezvous", options.rendezvous,
                  "Where several processes meet, if the launcher does not say: tcp://HOST:PORT, or file:///PATH on a "
                  "shared disk")
      ->type_name("URL");
  options.timeout_option =
      add_number(command, "--timeout", options.timeout_seconds, "Seconds that a process waits for another", whole(1));
}

std::unique_ptr<distributed::ProcessGroup> meet(const ProcessOptions& options) {
  auto launch = distributed::find_launch(distributed::process_environment(), options.rendezvous);
  if (!launch) return nullptr;
  launch->version = fmt::format("{} ({})", kVersion, train::build_commit());
  const std::chrono::seconds timeout(options.timeout_seconds), usual = std::chrono::minutes(10);
  return std::make_unique<distributed::ProcessGroup>(
      *launch, timeout, options.timeout_option->empty() ? std::min(timeout, usual) : timeout);
}

std::unique_ptr<distributed::ProcessMesh> join_processes(const ProcessOptions& options, const RunOptions& run) {
  auto group = meet(options);
  if (!group) return nullptr;
  auto mesh = std::make_unique<distributed::ProcessMesh>(std::move(group));
  if (run.threads == 0) {
    at::set_num_threads(static_cast<int>(std::max<int64_t>(usable_cores() / mesh->sharing_cores(), 1)));
  }
  return mesh;
}

nlohmann::json model_changes(const RunOptions& options) {
  return models::read_changes(options.model_changes);
}

std::string to_line(const nlohmann::json& json) {
  return json_text(json);
}

std::FILE* summary_stream(const std::filesystem::path& written) {
  return descriptor_behind(written) == STDOUT_FILENO ? stderr : stdout;
}

std::function<void(double done, double total)> progress_with_eta(const std::string& what) {
  const std::shared_ptr<ProgressLine> line(new ProgressLine(stderr), [](ProgressLine* ended) {
    ended->clear();
    delete ended;
  });
  return [line, what, begun = now_seconds()](double done, double total) {
    const double left = (now_seconds() - begun) * (total - done) / done;
    line->update(fmt::format("{} {} {:3.0f}%  {} left", what, progress_bar(done, total), 100 * done / total,
                             format_duration(left)));
  };
}

}  // namespace tamis::cli

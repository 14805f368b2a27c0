#pragma once

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/distributed/process_mesh.h"
#include "tamis/infer/options.h"

namespace tamis::cli {

/// What every command that runs a model takes.
struct RunOptions {
  int64_t threads = 0;                          // of ATen; 0: one per core
  std::string device = "cpu";                   // or cuda, cuda:1, xpu
  std::vector<std::string> model_changes = {};  // KEY=VALUE, each in place of what config.json says
};

/// `--threads` and `--device`.
void add_run_options(CLI::App& command, RunOptions& options);

/// What every command that several processes can share takes.
struct ProcessOptions {
  std::string rendezvous;         // tcp://HOST:PORT or file:///PATH; empty: as the launcher says
  int64_t timeout_seconds = 600;  // that a process waits for another
  const CLI::Option* timeout_option = nullptr;
};

/// `--rendezvous` and `--timeout`.
void add_process_options(CLI::App& command, ProcessOptions& options);

/// `--set-model KEY=VALUE`.
void add_set_model_option(CLI::App& command, std::vector<std::string>& changes);

/// `--weights float32 | bfloat16 | int8`.
void add_weights_option(CLI::App& command, infer::WeightFormat& weights);

/// `--json`.
void add_json_option(CLI::App& command, bool& json);

/// Refuses any first word that is not a subcommand: `unknown task "abc_digit"; did you mean "abc_digits"?`. `kind`
/// names what is unknown. The help and the completion scripts call a subcommand `placeholder`, one word, in capitals.
void refuse_other_names(CLI::App& app, const std::string& kind, const std::string& placeholder = "command");

/// Refuses empty names of files, folders and the like in all options of the command and its subcommands.
void refuse_empty_names(CLI::App& app);

/// Throws ExitCode::kUsage on a number of threads that is out of range or an unknown device.
void check_options(const RunOptions& options);

/// Sets the number of threads and returns the device. Of several processes on a machine with several devices, each gets
/// one, in turn, unless `--device` says which. Throws ExitCode::kUsage on a device that this machine or build lacks.
at::Device start(const RunOptions& options);

/// Meets the processes that a launcher started together with this one; none if it is the only one. Waits for them as
/// long as `--timeout` says, and by default ten minutes at most. Commands call it as soon as they have read their
/// command line, so that the others end at once when something is wrong here. Throws as distributed::ProcessGroup.
std::unique_ptr<distributed::ProcessGroup> meet(const ProcessOptions& options);

/// The same for commands that share their work evenly: also divides the threads among the processes on the same cores,
/// unless `--threads` is given. Throws as distributed::ProcessMesh.
std::unique_ptr<distributed::ProcessMesh> join_processes(const ProcessOptions& options, const RunOptions& run);

/// What `--set-model` changes; throws ExitCode::kUsage.
nlohmann::json model_changes(const RunOptions& options);

/// One line of JSON; text in it that is not UTF-8 becomes U+FFFD.
std::string to_line(const nlohmann::json& json);

/// Where to say that `written` was written: standard output, or standard error where the file itself is standard output
/// (`--out /dev/stdout`).
std::FILE* summary_stream(const std::filesystem::path& written);

/// A progress line on stderr with the share done and the time left, for the `Progress` of a long evaluation. It is
/// cleared when the last copy is destroyed.
std::function<void(double done, double total)> progress_with_eta(const std::string& what);

}  // namespace tamis::cli

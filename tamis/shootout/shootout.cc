#include "tamis/shootout/shootout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/report/page.h"
#include "tamis/shootout/job.h"
#include "tamis/shootout/summary.h"
#include "tamis/shootout/tables.h"
#include "tamis/shootout/worker.h"
#include "tamis/train/stop_signals.h"

namespace tamis::shootout {
namespace {

class Shootout {
 public:
  Shootout(const ShootoutOptions& options, at::Device device, std::FILE* messages)
      : options_(options),
        recipe_(load_shootout(options.recipe, options.overrides)),
        device_(device),
        messages_(messages) {}

  std::string go() {
    if (options_.plan) return options_.json ? to_line(plan()) : plan_text(plan());
    make_directories(recipe_.dir);
    find_results();
    signals_.emplace();
    if (!options_.only.empty()) {
      const nlohmann::json result = run_one(options_.only);
      return options_.json ? to_line(result) : "";
    }
    const FileLock lock(recipe_.dir / ".lock");
    write_file_atomic(workers_recipe(), read_file(options_.recipe));
    write();
    start_seconds_ = now_seconds();
    if (options_.jobs == 1) {
      while (const auto job = next_job()) {
        run_here(*job);
        stop_if_asked(recipe_.dir.string(), *signals_);
      }
    } else {
      run_processes();
    }
    const nlohmann::json summary = write();
    return options_.json ? to_line(summary) : to_markdown(summary);
  }

 private:
  nlohmann::json plan() const {
    const train::TrainRecipe& train = recipe_.mixers.front().recipe.train;
    nlohmann::json plan = {{"dir", recipe_.dir.string()},
                           {"tokens", train.steps * train.batch_tokens},
                           {"search_tokens", recipe_.search_steps * train.batch_tokens},
                           {"jobs", count_jobs(recipe_)},
                           {"mixers", nlohmann::json::array()}};
    for (size_t mixer = 0; mixer < recipe_.mixers.size(); ++mixer) {
      const MixerRecipe& each = recipe_.mixers[mixer];
      nlohmann::json jobs = nlohmann::json::array();
      for (const Job& job : all_jobs(mixer)) jobs.push_back(job.name);
      plan["mixers"].push_back({{"name", each.name},
                                {"parameters", each.parameters.total},
                                {"parameters_without_embedding", each.parameters.without_embedding},
                                {"model", each.recipe.model},
                                {"matched_by", each.fit ? nlohmann::json(each.fit->key) : nlohmann::json()},
                                {"jobs", std::move(jobs)}});
    }
    return plan;
  }

  static std::string plan_text(const nlohmann::json& plan) {
    const auto count = [&](const char* key) { return format_count(plan[key].get<double>()); };
    std::string text =
        fmt::format("{}: {} jobs of {} tokens each, those named lr-... of {}\n\n", plan["dir"].get<std::string>(),
                    plan["jobs"].get<int64_t>(), count("tokens"), count("search_tokens"));
    for (const nlohmann::json& mixer : plan["mixers"]) {
      const nlohmann::json& key = mixer["matched_by"];
      text += fmt::format("{:<20} {:>10} parameters without the embedding{}\n", mixer["name"].get<std::string>(),
                          mixer["parameters_without_embedding"].get<int64_t>(),
                          key.is_null() ? ""
                                        : fmt::format(", with {} = {}", key.get<std::string>(),
                                                      mixer["model"][key.get<std::string>()].dump()));
      for (const nlohmann::json& job : mixer["jobs"]) text += fmt::format("  {}\n", job.get<std::string>());
    }
    return text;
  }

  static std::string to_line(const nlohmann::json& json) {
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  /// A copy of the recipe for the worker processes, so that they do not depend on later changes of the original.
  std::filesystem::path workers_recipe() const { return recipe_.dir / "recipe.toml"; }

  /// All jobs of a mixer. While its learning rate is not chosen, the final jobs have the first rate of the grid.
  std::vector<Job> all_jobs(size_t mixer) const {
    std::vector<Job> jobs = search_jobs(recipe_, mixer);
    const double lr = choose_lr(recipe_, mixer, results_).value_or(recipe_.lr.front());
    std::ranges::copy(final_jobs(recipe_, mixer, lr), std::back_inserter(jobs));
    return jobs;
  }

  /// Loads the results of earlier calls.
  void find_results() {
    for (size_t mixer = 0; mixer < recipe_.mixers.size(); ++mixer) {
      for (const Job& job : ready_jobs(mixer)) find_result(job);
      for (const Job& job : ready_jobs(mixer)) find_result(job);  // final jobs, once the learning rate is chosen
    }
  }

  void find_result(const Job& job) {
    if (auto result = finished(recipe_, job)) keep(job, std::move(*result));
  }

  void keep(const Job& job, nlohmann::json result) { results_[job.name] = std::move(result); }

  /// A mixer's jobs that can run now or have already run. If all runs of the search diverged, the final jobs count as
  /// diverged too.
  std::vector<Job> ready_jobs(size_t mixer) {
    if (!searched(recipe_, mixer, results_)) return search_jobs(recipe_, mixer);
    const auto lr = choose_lr(recipe_, mixer, results_);
    if (lr) return final_jobs(recipe_, mixer, *lr);
    for (const Job& job : final_jobs(recipe_, mixer, recipe_.lr.front())) keep(job, {{"status", "diverged"}});
    return {};
  }

  /// The first job that is neither done nor running.
  std::optional<Job> next_job() {
    for (size_t mixer = 0; mixer < recipe_.mixers.size(); ++mixer) {
      for (Job& job : ready_jobs(mixer)) {
        if (!results_.contains(job.name) && !running_.contains(job.name)) return std::move(job);
      }
    }
    return std::nullopt;
  }

  void announce(const Job& job) {
    const auto all = count_jobs(recipe_);
    const auto done = static_cast<int64_t>(results_.size());
    std::string left;
    if (done_here_ > 0) {
      const double each = (now_seconds() - start_seconds_) / static_cast<double>(done_here_);
      left = fmt::format(", about {} left", format_duration(each * static_cast<double>(all - done)));
    }
    print_message(messages_, fmt::format("shootout: {} of {} jobs done{}; now {}\n", done, all, left, job.name));
  }

  void run_here(const Job& job) {
    announce(job);
    done(job, run_job(recipe_, job, device_, messages_, *signals_));
  }

  void done(const Job& job, nlohmann::json result) {
    if (result.value("status", "") == "diverged") {
      print_message(messages_, fmt::format("shootout: {} diverged: {}\n", job.name, result.value("reason", "")));
    }
    keep(job, std::move(result));
    ++done_here_;
    write();
  }

  nlohmann::json run_one(const std::string& name) {
    std::vector<std::string> known;
    for (size_t mixer = 0; mixer < recipe_.mixers.size(); ++mixer) {
      for (const Job& job : all_jobs(mixer)) {
        known.push_back(job.name);
        if (job.name != name) continue;
        if (job.final && !choose_lr(recipe_, mixer, results_)) {
          const bool diverged = searched(recipe_, mixer, results_);
          fail(ExitCode::kUsage, "{}: its learning rate is chosen by the runs {}/lr-...; {}", name,
               recipe_.mixers[mixer].name, diverged ? "all of them diverged" : "run these first");
        }
        return run_job(recipe_, job, device_, messages_, *signals_);
      }
    }
    throw Error(ExitCode::kUsage, "--only: " + unknown_name("job", name, known));
  }

  /// Runs options_.jobs jobs at a time in processes of their own, with the CPU threads divided among them.
  void run_processes() {
    Workers workers;
    while (true) {
      while (signals_->received() == 0 && workers.running() < static_cast<size_t>(options_.jobs)) {
        const auto job = next_job();
        if (!job) break;
        announce(*job);
        running_.emplace(job->name, *job);
        workers.start(job->name, arguments_of(*job), job->run().string() + ".out");
      }
      if (workers.running() == 0) break;
      const Workers::Ended ended = workers.wait([&] { return signals_->received(); });
      const Job job = running_.extract(ended.name).mapped();
      if (auto result = ended.status == 0 ? finished(recipe_, job) : std::nullopt) {
        done(job, std::move(*result));
      } else if (signals_->received() == 0) {
        const auto code = ended.status == 0 ? ExitCode::kRuntime : static_cast<ExitCode>(ended.status);
        throw Error(code, fmt::format("{}: ended without a result: {}", job.name, ended.last_line));
      }
    }
    stop_if_asked(recipe_.dir.string(), *signals_);
  }

  std::vector<std::string> arguments_of(const Job& job) const {
    std::vector<std::string> arguments = {"shootout", workers_recipe().string(), "--only", job.name};
    const auto add = [&](const std::string& option, const std::string& value) {
      arguments.insert(arguments.end(), {option, value});
    };
    for (const std::string& assignment : options_.overrides) add("--set", assignment);
    add("--set", "shootout.dir=" + recipe_.dir.string());
    const int64_t given = recipe_.mixers[job.mixer].recipe.train.threads;
    const int64_t threads = std::max<int64_t>(1, (given > 0 ? given : usable_cores()) / options_.jobs);
    add("--threads", std::to_string(threads));
    add("--device", device_.is_cuda() ? "cuda" : "cpu");
    return arguments;
  }

  nlohmann::json write() const {
    nlohmann::json summary = summarise(recipe_, results_);
    write_file_atomic(recipe_.dir / "shootout.json",
                      summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    write_file_atomic(recipe_.dir / "table.md", to_markdown(summary));
    write_file_atomic(recipe_.dir / "report.html", report::make_page("shootout.html", summary));
    return summary;
  }

  const ShootoutOptions& options_;
  const ShootoutRecipe recipe_;
  const at::Device device_;
  std::FILE* messages_;
  std::optional<train::StopSignals> signals_;
  Results results_;
  std::map<std::string, Job> running_;
  double start_seconds_ = 0;
  int64_t done_here_ = 0;
};

}  // namespace

std::string run_shootout(const ShootoutOptions& options, at::Device device, std::FILE* messages) {
  return Shootout(options, device, messages).go();
}

}  // namespace tamis::shootout

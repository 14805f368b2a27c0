#include "tamis/study/study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/study/claims.h"
#include "tamis/study/figures.h"
#include "tamis/study/job.h"
#include "tamis/study/measure.h"
#include "tamis/study/page.h"
#include "tamis/study/plan.h"
#include "tamis/study/recipe.h"
#include "tamis/study/stored.h"
#include "tamis/study/summary.h"
#include "tamis/study/worker.h"
#include "tamis/train/machine.h"
#include "tamis/train/stop_signals.h"

namespace tamis::study {
namespace {

using nlohmann::json;

constexpr auto kPollInterval = std::chrono::seconds(1);

/// The lock, unless another process holds it.
std::unique_ptr<FileLock> try_lock(const std::filesystem::path& file) {
  try {
    return std::make_unique<FileLock>(file);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kRuntime) throw;
    return nullptr;
  }
}

class Study {
 public:
  Study(const StudyOptions& options, at::Device device, std::FILE* messages)
      : options_(options),
        recipe_(load_study(options.recipe, options.overrides, options.tier,
                           options.plan ? train::RecipeUse::kPlan : train::RecipeUse::kRun)),
        device_(device),
        messages_(messages) {}

  std::string go() {
    if (options_.plan) return options_.json ? json_text(plan()) : plan_text(plan());
    make_directories(recipe_.dir);
    make_directories(recipe_.runs / "locks");
    if (!options_.worker) forget_failures();
    find_results();
    signals_.emplace();
    start_seconds_ = now_seconds();
    done_before_ = static_cast<int64_t>(results_.size());
    if (!options_.worker) note_claims();
    announce_tier();
    if (options_.jobs == 1) {
      run_jobs();
    } else {
      run_processes();
    }
    if (options_.worker) return "";
    const json study = write(/*figures=*/true);
    stop_if_asked(recipe_.dir.string(), *signals_);  // the signal may have ended the drawing
    refuse_failures();
    if (options_.json) return json_text(study);
    return to_markdown(study, rows(), "figures") + fmt::format("{}\n", (recipe_.dir / "report.html").string());
  }

 private:
  // Jobs

  /// Those of earlier calls are tried again.
  void forget_failures() {
    for (size_t point = 0; point < recipe_.points.size(); ++point) {
      for (const Job& job : search_jobs(recipe_, point)) forget_failure(recipe_, job);
    }
    for (const Job& job : possible_final_jobs()) forget_failure(recipe_, job);
  }

  /// With every value of [choose].
  std::vector<Job> possible_final_jobs() const {
    std::vector<Job> possible;
    for (size_t point = 0; point < recipe_.points.size(); ++point) {
      for (size_t option = 0; option < std::max<size_t>(1, recipe_.points[point].options.size()); ++option) {
        std::ranges::move(final_jobs(recipe_, point, option), std::back_inserter(possible));
      }
    }
    return possible;
  }

  /// Throws when jobs failed, after everything else is done and written.
  void refuse_failures() const {
    const auto is_failed = [](const auto& result) { return text_at(result.second, "status") == "failed"; };
    if (std::ranges::none_of(results_, is_failed)) return;
    const auto first = std::ranges::find_if(results_, [&](const auto& result) {
      return is_failed(result) && result.second.contains("job");  // it was tried, unlike those that start from it
    });
    fail(ExitCode::kRuntime, "{} of {} jobs failed; {}: {}; the same command tries them again, {} has the others",
         std::ranges::count_if(results_, is_failed), results_.size(), first->first, text_at(first->second, "reason"),
         (recipe_.dir / "report.html").string());
  }

  /// Jobs that can run now or have run. If no run of [choose] is done, the final jobs count as diverged or failed too.
  std::vector<Job> ready_jobs(size_t point) {
    if (!searched(recipe_, point, results_)) return search_jobs(recipe_, point);
    if (const auto option = chosen_option(recipe_, point, results_)) return begun(final_jobs(recipe_, point, *option));
    const bool diverged = std::ranges::all_of(search_jobs(recipe_, point), [&](const Job& job) {
      return text_at(results_.at(job.name), "status") == "diverged";
    });
    const std::string status = diverged ? "diverged" : "failed";
    for (const Job& job : final_jobs(recipe_, point, 0)) note(job, status, "all runs of [choose] " + status);
    return {};
  }

  /// Those whose run to start from is done. If that one diverged or failed, so did the job.
  std::vector<Job> begun(const std::vector<Job>& jobs) {
    std::vector<Job> ready;
    for (const Job& job : jobs) {
      const auto before = results_.find(job.after);
      if (!job.after.empty() && before == results_.end()) continue;
      if (!job.after.empty() && !is_done(before->second)) {
        const std::string status = text_at(before->second, "status");
        note(job, status, fmt::format("{}, from which it starts, {}", job.after, status));
      } else {
        ready.push_back(job);
      }
    }
    return ready;
  }

  void note(const Job& job, const std::string& status, const std::string& reason) {
    results_[job.name] = {
        {"status", status}, {"reason", reason}, {"rows", status == "diverged" ? diverged_rows(recipe_, job) : Rows()}};
  }

  /// Reads results of earlier calls and of other processes.
  void find_results() {
    for (size_t point = 0; point < recipe_.points.size(); ++point) {
      for (int pass = 0; pass < 2; ++pass) {  // the second finds the final jobs of a choice that the first found
        for (const Job& job : ready_jobs(point)) {
          if (results_.contains(job.name)) continue;
          if (auto result = finished(recipe_, job)) results_[job.name] = std::move(*result);
        }
      }
    }
  }

  /// Jobs that can run now.
  std::vector<Job> open_jobs() {
    std::vector<Job> open;
    for (size_t point = 0; point < recipe_.points.size(); ++point) {
      for (Job& job : ready_jobs(point)) {
        if (!results_.contains(job.name)) open.push_back(std::move(job));
      }
    }
    return open;
  }

  /// Runs jobs until all are done, those of other processes included.
  void run_jobs() {
    while (true) {
      stop_if_asked(recipe_.dir.string(), *signals_);
      find_results();
      if (!options_.worker) warn_of_edges();
      const std::vector<Job> open = open_jobs();
      if (open.empty()) return;
      if (!run_one_of(open)) std::this_thread::sleep_for(kPollInterval);
    }
  }

  /// Runs the first job that no other process runs; false if there is none.
  bool run_one_of(const std::vector<Job>& open) {
    for (const Job& job : open) {
      const auto lock = try_lock(lock_file(job));
      if (!lock) continue;
      run_here(job);
      return true;
    }
    return false;
  }

  std::filesystem::path lock_file(const Job& job) const {
    std::string name = job.directory.lexically_relative(recipe_.runs).string();
    std::ranges::replace(name, '/', '_');
    return recipe_.runs / "locks" / name;
  }

  int64_t count_jobs() const {
    int64_t count = 0;
    for (size_t point = 0; point < recipe_.points.size(); ++point) {
      count += static_cast<int64_t>(all_jobs(recipe_, point, results_).size());
    }
    return count;
  }

  void announce(const std::string& what) {
    const auto done = static_cast<int64_t>(results_.size()), all = count_jobs();
    std::string left;
    if (done > done_before_) {
      const double each = (now_seconds() - start_seconds_) / static_cast<double>(done - done_before_);
      left = fmt::format(", about {} left", format_duration(each * static_cast<double>(all - done)));
    }
    print_message(messages_, fmt::format("study: {} of {} jobs done{}{}\n", done, all, left, what));
  }

  void run_here(const Job& job) {
    announce("; now " + job.name);
    json result = run_job(recipe_, job, device_, messages_, *signals_);
    if (!is_done(result)) {
      print_message(messages_, fmt::format("study: {} {}: {}\n", job.name, text_at(result, "status"),
                                           one_line(text_at(result, "reason"))));
    }
    results_[job.name] = std::move(result);
    if (!options_.worker) write(/*figures=*/false);
  }

  /// Starts processes that share the jobs, and waits for them.
  void run_processes() {
    const std::filesystem::path copy = recipe_.dir / "recipe.toml";  // workers do not see later edits of the original
    write_file_atomic(copy, read_file(options_.recipe));
    Workers workers;
    for (int64_t i = 1; i <= options_.jobs; ++i) {
      workers.start(fmt::format("worker {}", i), worker_arguments(copy, i),
                    recipe_.dir / fmt::format("worker-{}.out", i));
    }
    std::optional<Error> failed;
    while (workers.running() > 0) {
      const Workers::Ended ended = workers.wait([&] {
        report_progress();
        return signals_->received();
      });
      if (ended.status != 0 && !failed) {
        failed = Error(static_cast<ExitCode>(ended.status), ended.last_line);
      }
    }
    find_results();
    stop_if_asked(recipe_.dir.string(), *signals_);
    if (failed) throw Error(*failed);
  }

  void report_progress() {
    if (now_seconds() - reported_seconds_ < 10) return;
    reported_seconds_ = now_seconds();
    const size_t before = results_.size();
    find_results();
    if (results_.size() == before) return;
    announce("");
    write(/*figures=*/false);
  }

  /// Of several devices the workers take one after the other, unless the study was given one.
  std::string device_of_worker(int64_t i) const {
    const int64_t count = train::device_count(device_.type());
    if (device_.is_cpu() || device_.has_index() || count < 2) return device_.str();
    return fmt::format("{}:{}", device_.str(), (i - 1) % count);
  }

  std::vector<std::string> worker_arguments(const std::filesystem::path& copy, int64_t i) const {
    std::vector<std::string> arguments = {"study", copy.string(), "--worker", "--tier", options_.tier};
    const auto add = [&](const std::string& option, const std::string& value) {
      arguments.insert(arguments.end(), {option, value});
    };
    for (const std::string& assignment : options_.overrides) add("--set", assignment);
    add("--set", "study.dir=" + json(recipe_.dir.string()).dump());  // quoted: a name may look like a number
    add("--set", "study.id=" + json(recipe_.id).dump());
    add("--threads", std::to_string(std::max<int64_t>(1, usable_cores() / options_.jobs)));
    add("--device", device_of_worker(i));
    return arguments;
  }

  // Plan

  json plan() const { return plan_study(recipe_, options_.tier, results_); }

  /// Before the first job of a tier that may take days.
  void announce_tier() {
    if (options_.worker || options_.tier == tiers().front() || done_before_ == count_jobs()) return;
    const json planned = plan();
    double peak_flops = 0;
    if (planned["flops"] > 0.0) {
      const std::string precision = recipe_.points.front().recipe().train.precision;
      const std::string used = precision == "auto" ? train::fastest_precision(device_) : precision;
      peak_flops = train::measure_matmul_flops(train::compute_dtype(used), device_);
    }
    print_message(messages_, fmt::format("study: tier {}: {}; the same command with --plan lists them and runs none\n",
                                         options_.tier, planned_work(planned, peak_flops)));
  }

  // Claims

  /// Final jobs that have a result of this study, even if it was measured with other settings or by another version.
  int64_t count_stored() const {
    return std::ranges::count_if(possible_final_jobs(),
                                 [&](const Job& job) { return std::filesystem::exists(result_file(recipe_, job)); });
  }

  /// Keeps the claims as they were when the first job began, and notes later changes.
  void note_claims() {
    const std::filesystem::path file = recipe_.dir / "claims.json";
    json now = json::object();
    for (const Claim& claim : recipe_.claims) now[claim.id] = claim.stated;
    const int64_t results = count_stored();
    json kept = try_read_object(file).value_or(json::object());
    const bool known = kept.value("claims", json()).is_object() && kept.value("changes", json()).is_array();
    if (results == 0) {
      kept = {{"claims", now}, {"changes", json::array()}};
    } else if (!known || kept["claims"] != now) {
      std::vector<std::string> what;
      if (!known) {
        kept = {{"claims", json::object()}, {"changes", json::array()}};
        what.push_back("claims.json was missing or damaged");
      }
      std::ranges::copy(claim_changes(kept["claims"], now), std::back_inserter(what));
      kept["changes"].push_back({{"time", train::utc_now()},
                                 {"results", results},
                                 {"what", fmt::format("{}", fmt::join(what, ", "))},
                                 {"before", kept["claims"]}});
      kept["claims"] = now;
    }
    claim_changes_ = kept["changes"];
    write_file_atomic(file, json_text(kept, 1));
  }

  // Results

  /// In the order of the recipe.
  Rows rows() const {
    Rows rows;
    for (size_t point = 0; point < recipe_.points.size(); ++point) {
      for (const Job& job : all_jobs(recipe_, point, results_)) {
        const auto found = results_.find(job.name);
        if (found == results_.end()) continue;
        for (const json& row : found->second["rows"]) rows.push_back(row);
      }
    }
    return rows;
  }

  std::string command() const {
    const std::string start = options_.command.empty() ? "tamis study " + options_.recipe.string() : options_.command;
    return start + (options_.tier == tiers().front() ? "" : " --tier " + options_.tier) +
           (options_.jobs > 1 ? fmt::format(" --jobs {}", options_.jobs) : "");
  }

  json summarise(const Rows& rows) const {
    json study = {{"id", recipe_.id},
                  {"title", recipe_.title},
                  {"paper", recipe_.paper},
                  {"question", recipe_.question},
                  {"assumptions", recipe_.assumptions},
                  {"prepare", recipe_.prepare},
                  {"tier", options_.tier},
                  {"command", command()},
                  {"has_model", recipe_.model},
                  {"seeds", recipe_.seeds},
                  {"version", kVersion},
                  {"commit", train::build_commit()},
                  {"time", train::utc_now()},
                  {"machine", train::describe_machine()},
                  {"jobs", count_jobs()},
                  {"done", results_.size()},
                  {"figures", recipe_.figures},
                  {"tables", recipe_.tables},
                  {"claim_changes", claim_changes_},
                  {"recipe", recipe_.toml},
                  {"evaluation_texts", evaluation_texts(recipe_)},
                  {"points", json::array()},
                  {"failed", json::array()},
                  {"drawn", drawn_}};
    double seconds = 0;
    for (size_t p = 0; p < recipe_.points.size(); ++p) {
      study["points"].push_back(summarise_point(recipe_, p, results_));
      seconds += study["points"].back()["seconds"].get<double>();
    }
    study["seconds"] = seconds;
    study["processor_seconds"] = processor_seconds_of(results_);
    study["threads"] = threads_of(results_);
    study["claims"] = judge_all(recipe_.claims, rows);
    study["verdict"] = overall_verdict(study["claims"]);
    for (const auto& [name, result] : results_) {
      if (!is_done(result)) study["failed"].push_back(name + ": " + text_at(result, "reason"));
    }
    return study;
  }

  /// Warns of each chosen value beyond which a better one may lie, once it is chosen.
  void warn_of_edges() {
    for (size_t p = 0; recipe_.choose && p < recipe_.points.size(); ++p) {
      const Point& point = recipe_.points[p];
      const auto option = chosen_option(recipe_, p, results_);
      const std::string edge = option ? edge_of(point, *option) : "";
      if (edge.empty() || !warned_of_.insert(p).second) continue;
      const char* more = edge == "largest" ? "larger" : "smaller";
      print_message(messages_,
                    fmt::format("study: warning: {}: the best {} = {} is the {} of its values; add {} ones\n",
                                point.name, recipe_.choose->key, plain_text(point.options[*option].value), edge, more));
    }
  }

  json write(bool figures) {
    warn_of_edges();
    const Rows all = rows();
    if (figures) drawn_ = draw(recipe_.figures, all, recipe_.dir / "figures", messages_);
    json study = summarise(all);
    if (std::ssize(results_) == done_before_) keep_origin(study, recipe_.dir);  // no run was added
    write_file_atomic(recipe_.dir / "results.csv", to_csv(all));
    write_file_atomic(recipe_.dir / "results.json", json_text(json(all), 0));
    write_file_atomic(recipe_.dir / "study.json", json_text(study, 1));
    write_file_atomic(recipe_.dir / "report.md", to_markdown(study, all, "figures"));
    write_file_atomic(recipe_.dir / "report.html", to_html(study, all, recipe_.dir / "figures"));
    return study;
  }

  const StudyOptions& options_;
  const StudyRecipe recipe_;
  const at::Device device_;
  std::FILE* messages_;
  std::optional<train::StopSignals> signals_;
  Results results_;
  json claim_changes_ = json::array();
  std::vector<std::string> drawn_;
  std::set<size_t> warned_of_;  // points
  int64_t done_before_ = 0;
  double start_seconds_ = 0;
  double reported_seconds_ = 0;
};

}  // namespace

std::string run_study(const StudyOptions& options, at::Device device, std::FILE* messages) {
  return Study(options, device, messages).go();
}

}  // namespace tamis::study

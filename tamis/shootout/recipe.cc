#include "tamis/shootout/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/names.h"
#include "tamis/data/registry.h"
#include "tamis/train/data_set.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/table_reader.h"
#include "tamis/train/toml.h"

namespace tamis::shootout {
namespace {

using nlohmann::json;
using train::TableReader;
using train::TomlDocument;

/// Keys of [train] and [model] that a mixer must not set: they are the same for all mixers, or come from [shootout].
constexpr std::array kShared = {"lr",           "seed",         "steps",           "length",    "batch_size",
                                "batch_tokens", "accumulation", "validate_tokens", "precision", "threads"};
constexpr std::array kSharedOfModel = {"vocab_size", "max_position_embeddings"};

/// Names are used as directory names.
bool is_plain(const std::string& name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), plain);
}

/// Overrides keys of `table` with those of `over`, which is `from`.`table` in the document, and their positions.
void put_over(TomlDocument& document, const std::string& table, const json& over, const std::string& from) {
  for (const auto& [key, value] : over.items()) {
    document.values[table][key] = value;
    document.positions[table + "." + key] = document.position(from + "." + table + "." + key);
  }
}

class Reader {
 public:
  explicit Reader(const TomlDocument& document) : document_(document) {}

  ShootoutRecipe read() {
    refuse_other_tables();
    read_shootout();
    read_evaluation();
    const json mixers = document_.values.value("mixers", json::array());
    if (!mixers.is_array() || mixers.empty()) {
      refuse("mixers", "expected at least one table [[mixers]] with a name and a model");
    }
    for (size_t i = 0; i < mixers.size(); ++i) read_mixer(mixers[i], fmt::format("mixers.{}", i));
    if (recipe_.lr.empty()) recipe_.lr = {first().train.lr};
    if (recipe_.search_steps == 0) recipe_.search_steps = first().train.steps;
    if (recipe_.match == "parameters") match_sizes();
    check_sizes();
    check_search();
    resolve_tasks();
    const train::Recipe& any = first();
    recipe_.checksums = train::open_data(any, *train::open_tokenizer(any.data.tokenizer)).checksums;
    return std::move(recipe_);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& text) const {
    throw Error(ExitCode::kUsage, document_.position(path) + ": " + text);
  }

  const train::Recipe& first() const { return recipe_.mixers.front().recipe; }

  void refuse_other_tables() const {
    const std::vector<std::string> tables = {"shootout", "evaluation", "mixers", "model", "data", "train"};
    for (const auto& [key, value] : document_.values.items()) {
      if (std::find(tables.begin(), tables.end(), key) == tables.end()) refuse(key, unknown_name("table", key, tables));
      if (key != "mixers" && !value.is_object()) refuse(key, fmt::format("[{}] must be a table", key));
    }
  }

  void read_shootout() {
    const json from = document_.values.value("shootout", json::object());
    TableReader reader(document_, "shootout", from);
    std::string dir = (std::filesystem::path("runs") / std::filesystem::path(document_.name).stem()).string();
    recipe_.seeds = {1};
    reader("dir", dir, Allowed{});
    reader("seeds", recipe_.seeds, Allowed{.least = 0});
    reader("lr", recipe_.lr, Allowed{.least = 0.0});
    reader("match", recipe_.match, Allowed{.choices = {"none", "parameters"}});
    reader("search_steps", recipe_.search_steps, Allowed{.least = 0, .most = train::kMostSteps});
    reader.refuse_other_keys();
    if (recipe_.seeds.empty()) refuse("shootout.seeds", "shootout.seeds is empty; give at least one");
    refuse_twice("shootout.seeds", recipe_.seeds);
    refuse_twice("shootout.lr", recipe_.lr);
    const bool grid_given = from.contains("lr");
    if (grid_given && recipe_.lr.empty())
      refuse("shootout.lr", "shootout.lr is empty; give at least one, or leave it out");
    if (std::ranges::find(recipe_.lr, 0.0) != recipe_.lr.end()) {
      refuse("shootout.lr", "shootout.lr: 0 trains nothing; give rates above 0");
    }
    recipe_.dir = dir;
  }

  template <typename Value>
  void refuse_twice(const std::string& path, const std::vector<Value>& values) const {
    for (auto value = values.begin(); value != values.end(); ++value) {
      if (std::find(values.begin(), value, *value) == value) continue;
      refuse(path, fmt::format("{} holds {} twice; give each once", path, *value));
    }
  }

  void read_evaluation() {
    EvaluationRecipe& evaluation = recipe_.evaluation;
    const json from = document_.values.value("evaluation", json::object());
    TableReader reader(document_, "evaluation", from);
    const Allowed count{.least = 1, .most = train::kMostTokens};
    reader("tasks", evaluation.tasks, Allowed{.choices = task_names()});
    reader("multiples", evaluation.multiples, Allowed{.least = 1, .most = 1 << 20});
    reader("instances", evaluation.instances, count);
    reader("cell_tokens", evaluation.cell_tokens, count);
    reader("seed", evaluation.seed, Allowed{.least = 0});
    reader("expand_windows", evaluation.expand_windows, Allowed{});
    reader.refuse_other_keys();
    refuse_twice("evaluation.tasks", evaluation.tasks);
    refuse_twice("evaluation.multiples", evaluation.multiples);
    if (evaluation.multiples.empty())
      refuse("evaluation.multiples", "evaluation.multiples is empty; give at least one");
  }

  static std::vector<std::string> task_names() {
    std::vector<std::string> names;
    for (const data::Task& task : data::tasks()) names.push_back(task.name);
    return names;
  }

  void read_mixer(const json& from, const std::string& path) {
    if (!from.is_object() || !from.contains("name") || !from["name"].is_string()) {
      refuse(path, path + ": a name is missing; give name = \"...\"");
    }
    const std::string name = from["name"];
    if (!is_plain(name)) refuse(path, fmt::format("{}.name: {:?} must be letters, digits, - and _", path, name));
    for (const MixerRecipe& other : recipe_.mixers) {
      if (other.name == name) refuse(path, fmt::format("{}.name: \"{}\" is used twice", path, name));
    }
    TomlDocument document = document_;
    for (const char* own : {"shootout", "evaluation", "mixers"}) document.values.erase(own);
    for (const auto& [key, value] : from.items()) {
      if (key == "name") continue;
      const std::vector<std::string> known = {"name", "model", "train"};
      if (key != "model" && key != "train") refuse(path + "." + key, unknown_name("key of [[mixers]]", key, known));
      if (!value.is_object()) refuse(path + "." + key, fmt::format("{}.{} must be a table", path, key));
      put_over(document, key, value, path);
    }
    const auto refuse_own = [&](const std::string& table, const char* key) {
      if (!from.value(table, json::object()).contains(key)) return;
      refuse(path + "." + table + "." + key,
             fmt::format("{0}.{1}.{2} must be the same for all mixers; give it in [{1}] or, as a list, in [shootout]",
                         path, table, key));
    };
    for (const char* key : kShared) refuse_own("train", key);
    for (const char* key : kSharedOfModel) refuse_own("model", key);
    MixerRecipe mixer{.name = name, .recipe = {}, .parameters = {}, .fit = std::nullopt};
    try {
      mixer.recipe = train::read_recipe(document);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{} (mixer {})", error.what(), name));
    }
    mixer.parameters = models::count_parameters(mixer.recipe.model);
    recipe_.mixers.push_back(std::move(mixer));
  }

  /// Changes one key of every model whose size differs from the first mixer's.
  void match_sizes() {
    const int64_t target = recipe_.mixers.front().parameters.without_embedding;
    for (MixerRecipe& mixer : recipe_.mixers) {
      if (size_difference(mixer.parameters.without_embedding, target) < 0.45 * kMostDifference) continue;
      mixer.fit = nearest_fit(mixer.recipe.model, target);
      mixer.recipe.model = mixer.fit->config;
      mixer.parameters = mixer.fit->parameters;
    }
  }

  /// Values that match the first mixer's size: `wide fits with model.intermediate_size = 42`.
  std::string fitting_values() const {
    const int64_t target = recipe_.mixers.front().parameters.without_embedding;
    std::vector<std::string> texts;
    for (const MixerRecipe& mixer : recipe_.mixers) {
      if (size_difference(mixer.parameters.without_embedding, target) <= kMostDifference) continue;
      const SizeFit fit = nearest_fit(mixer.recipe.model, target);
      const bool fits = size_difference(fit.parameters.without_embedding, target) <= kMostDifference;
      texts.push_back(
          fmt::format("{} {} with model.{} = {}", mixer.name, fits ? "fits" : "comes nearest", fit.key, fit.value));
    }
    const std::string values = fmt::format("{}", fmt::join(texts, ", "));
    if (recipe_.match == "parameters") return values + "; change other sizes of the model";
    return values + (values.empty() ? "" : "; ") + "shootout.match = \"parameters\" chooses such values itself";
  }

  void check_sizes() const {
    const auto size = [](const MixerRecipe& mixer) { return mixer.parameters.without_embedding; };
    const auto [least, most] = std::ranges::minmax_element(recipe_.mixers, {}, size);
    if (static_cast<double>(size(*most)) <= (1 + kMostDifference) * static_cast<double>(size(*least))) return;
    std::vector<std::string> sizes;
    for (const MixerRecipe& mixer : recipe_.mixers) sizes.push_back(fmt::format("{} {}", mixer.name, size(mixer)));
    refuse(
        "mixers",
        fmt::format("mixers must have equal numbers of parameters without the embedding, within {}%, but have: {}; {}",
                    100 * kMostDifference, fmt::join(sizes, ", "), fitting_values()));
  }

  void check_search() const {
    const train::TrainRecipe& train = first().train;
    if (recipe_.search_steps > train.steps) {
      refuse("shootout.search_steps", fmt::format("shootout.search_steps = {} is more than train.steps = {}",
                                                  recipe_.search_steps, train.steps));
    }
    if (train.validate_tokens == 0) {
      refuse("train.validate_tokens", "train.validate_tokens = 0: the learning rate is chosen by the validation loss");
    }
    for (const train::SourceRecipe& source : first().data.sources) {
      if (source.kind != "text" || source.validation_fraction > 0) continue;
      const std::string path = fmt::format("data.sources.{}.validation_fraction", source.name);
      refuse(path, fmt::format("{} = 0: the learning rate is chosen by the validation loss", path));
    }
    for (const MixerRecipe& mixer : recipe_.mixers) {
      const double least = *std::ranges::min_element(recipe_.lr);
      if (mixer.recipe.train.min_lr <= least) continue;
      refuse("shootout.lr", fmt::format("shootout.lr: {} is less than the train.min_lr = {} of {}", least,
                                        mixer.recipe.train.min_lr, mixer.name));
    }
  }

  /// Fills in the tasks and their options. A task that is trained on is evaluated with its training settings; ABCDigits
  /// always has the paper's form.
  void resolve_tasks() {
    EvaluationRecipe& evaluation = recipe_.evaluation;
    for (const train::SourceRecipe& source : first().data.sources) {
      if (!source.is_task() || document_.values.contains("/evaluation/tasks"_json_pointer)) continue;
      if (std::ranges::find(evaluation.tasks, source.kind) == evaluation.tasks.end()) {
        evaluation.tasks.push_back(source.kind);
      }
    }
    for (const std::string& name : evaluation.tasks) {
      eval::TaskEvalOptions options = task_options(data::find_task(name));
      try {
        eval::check_options(options);
        check_vocabulary(data::find_task(name), options.settings);
      } catch (const Error& error) {
        refuse("evaluation", fmt::format("{} (evaluation of {})", error.what(), name));
      }
      recipe_.tasks.push_back(std::move(options));
    }
  }

  /// A task that is not trained on may have more ids than the models' vocabulary.
  void check_vocabulary(const data::Task& task, const data::Settings& settings) const {
    const int64_t ids = data::vocab_size(task, settings);
    const int64_t most = first().model["vocab_size"];
    if (ids <= most) return;
    fail(ExitCode::kUsage,
         "{}: its {} ids are more than model.vocab_size = {}; add it to [data.sources] with a vocab of at most that",
         task.name, ids, most);
  }

  eval::TaskEvalOptions task_options(const data::Task& task) const {
    const EvaluationRecipe& evaluation = recipe_.evaluation;
    eval::TaskEvalOptions options{.task = task.name};
    if (task.takes_depth) options.depths = {0.1, 0.3, 0.5, 0.7, 0.9};
    const auto depths = std::max<int64_t>(1, static_cast<int64_t>(options.depths.size()));
    options.instances = std::max<int64_t>(1, evaluation.instances / depths);
    options.cell_tokens = std::max<int64_t>(1, evaluation.cell_tokens / depths);
    options.seed = static_cast<uint64_t>(evaluation.seed);
    options.expand_windows = evaluation.expand_windows;
    int64_t trained = first().train.length;
    for (const train::SourceRecipe& source : first().data.sources) {
      if (source.kind != task.name) continue;
      options.settings = source.task.settings;
      options.haystack = source.task.haystack;
      if (source.task.length > 0) trained = source.task.length;
    }
    for (const int64_t multiple : evaluation.multiples) options.lengths.push_back(multiple * trained);
    return options;
  }

  const TomlDocument& document_;
  ShootoutRecipe recipe_;
};

}  // namespace

ShootoutRecipe load_shootout(const std::filesystem::path& file, std::span<const std::string> overrides) {
  TomlDocument document = train::read_toml(file);
  std::string toml = read_file(file);
  for (const std::string& assignment : overrides) {
    train::override_value(document, assignment);
    toml += fmt::format("# --set {}\n", assignment);
  }
  ShootoutRecipe recipe = Reader(document).read();
  recipe.toml = std::move(toml);
  return recipe;
}

}  // namespace tamis::shootout

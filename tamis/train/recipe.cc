#include "tamis/train/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/utf8.h"
#include "tamis/data/corpus.h"
#include "tamis/data/registry.h"
#include "tamis/data/task.h"
#include "tamis/models/mixer.h"
#include "tamis/models/model.h"
#include "tamis/models/model_config.h"
#include "tamis/train/data_set.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/table_reader.h"
#include "tamis/train/toml.h"

namespace tamis::train {
namespace {

using nlohmann::json;

/// Reads a recipe from a document and checks it; errors give the position in the document.
class RecipeReader {
 public:
  RecipeReader(const TomlDocument& document, RecipeUse use) : document_(document), use_(use) {}

  Recipe read() {
    if (document_.values.contains("study")) {
      const std::string command = "tamis study " + (document_.name == input_name("-") ? "FILE" : document_.name);
      const bool has_paper = table("tiers").is_object() && table("tiers").contains("paper");
      refuse("study", fmt::format("[study] makes this a recipe of a study; run it with: {}; to list its runs and "
                                  "sizes only: {}{} --plan",
                                  command, command, has_paper ? " --tier paper" : ""));
    }
    const std::vector<std::string> tables = {"model", "data", "train", "run"};
    for (const auto& [key, value] : document_.values.items()) {
      if (std::find(tables.begin(), tables.end(), key) == tables.end()) refuse(key, unknown_name("table", key, tables));
      if (!value.is_object()) refuse(key, fmt::format("[{}] must be a table", key));
    }
    read_table("train", recipe_.train);
    read_table("run", recipe_.run);
    read_data();
    resolve_train();
    resolve_model();
    if (recipe_.run.dir.empty()) recipe_.run.dir = default_directory();
    if (!is_utf8(recipe_.run.dir)) refuse("run.dir", "run.dir must be UTF-8, but is " + quoted_name(recipe_.run.dir));
    return std::move(recipe_);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& text) const {
    throw Error(ExitCode::kUsage, document_.position(path) + ": " + text);
  }

  /// runs/<name of the recipe file>; empty for a plan of standard input, which has no name and writes nothing.
  std::string default_directory() const {
    if (given("run", "dir")) refuse("run.dir", "run.dir is empty; name a directory, or leave it out");
    if (document_.name != input_name("-")) {
      return (std::filesystem::path("runs") / std::filesystem::path(document_.name).stem()).string();
    }
    if (use_ == RecipeUse::kPlan) return "";
    refuse("run.dir", "run.dir is missing, and this recipe has no file name; add --set run.dir=runs/NAME");
  }

  json table(const std::string& name) const { return document_.values.value(name, json::object()); }
  bool given(const std::string& table_name, const std::string& key) const { return table(table_name).contains(key); }

  template <typename T>
  void read_table(const std::string& name, T& values) const {
    const json from = table(name);
    TableReader reader(document_, name, from);
    visit_fields(values, reader);
    reader.refuse_other_keys();
  }

  void read_data() {
    const json from = table("data");
    TableReader reader(document_, "data", from);
    reader("tokenizer", recipe_.data.tokenizer, Allowed{});
    const json sources = from.value("sources", json::object());
    if (!sources.is_object() || sources.empty()) {
      refuse("data.sources", "expected at least one table [data.sources.NAME]; its kind is one of " + known_kinds());
    }
    for (const auto& [name, values] : sources.items()) read_source(name, values);
    if (recipe_.data.sources.empty()) {
      refuse("data.sources", "data.sources: expected at least one source with a weight above 0");
    }
    if (!given("data", "tokenizer")) recipe_.data.tokenizer = default_tokenizer();
    reader.accept("sources");
    reader.refuse_other_keys();
  }

  /// The tokenizer of the first prepared corpus, else of the model that the run starts from, else "byte". The ids of a
  /// corpus have to be those that the model knows.
  std::string default_tokenizer() const {
    const std::string prepared = tokenizer_of_sources(), &start = recipe_.train.start_from;
    const std::unique_ptr<text::Tokenizer> known = start.empty() ? nullptr : find_tokenizer(start);
    if (prepared.empty()) return !known || known->name() == "byte" ? "byte" : start;
    if (known && open_tokenizer(prepared)->digest() != known->digest()) {
      refuse(
          "train.start_from",
          fmt::format("the tokenizer of the corpus, {0}, is not that of train.start_from = {1}, whose embeddings would "
                      "get other tokens; prepare the corpus with the tokenizer of {1}, or set data.tokenizer = {0} "
                      "to learn them again",
                      shown(prepared), shown(start)));
    }
    return prepared;
  }

  /// That of the first prepared corpus; empty without one.
  std::string tokenizer_of_sources() const {
    for (const SourceRecipe& source : recipe_.data.sources) {
      for (const std::string& path : source.path) {
        if (std::filesystem::exists(std::filesystem::path(path) / data::kCorpusManifest))
          return (std::filesystem::path(path) / "tokenizer.json").string();
      }
    }
    return "";
  }

  static std::string known_kinds() { return fmt::format("{}", fmt::join(source_kinds(), ", ")); }

  void read_source(const std::string& name, const json& values) {
    const std::string path = "data.sources." + name;
    if (!is_plain(name)) {
      refuse(path,
             fmt::format("the name of a source must be 1 to 64 letters, digits, ., +, - and _, and not begin with a "
                         "dot, but is {}",
                         quoted_name(name)));
    }
    TableReader reader(document_, path, values);
    if (!values.contains("kind")) refuse(path, path + ": kind is missing; give one of " + known_kinds());
    SourceRecipe source;
    source.name = name;
    visit_fields(source, reader);
    reader.refuse_other_keys();
    if (source.weight == 0) return;  // left out
    if ((source.kind == "text" || source.kind == "prompts") && source.files.empty() && use_ == RecipeUse::kRun) {
      refuse(path + ".files", fmt::format("{0}: files is missing; give it here, or with --set {0}.files=FILE", path));
    }
    if (source.kind == "corpus" && source.path.empty() && use_ == RecipeUse::kRun) {
      refuse(path + ".path", fmt::format("{0}: path is missing; give it here, or with --set {0}.path=DIR", path));
    }
    recipe_.data.sources.push_back(std::move(source));
  }

  void resolve_train() {
    TrainRecipe& train = recipe_.train;
    train.steps_given = given("train", "steps");
    if (train.epochs > 0 && recipe_.data.sources.size() > 1) {
      refuse("train.epochs", fmt::format("train.epochs needs a single source, but the recipe has {}; give train.steps",
                                         recipe_.data.sources.size()));
    }
    if (train.start_state == "all" && train.start_from.empty()) {
      refuse("train.start_state", "train.start_state = \"all\" needs train.start_from, the run to continue");
    }
    if (train.batch_size == 0) {
      if (given("train", "batch_size")) {
        refuse("train.batch_size",
               "train.batch_size must be at least 1, but is 0; leave it out to get it from train.batch_tokens");
      }
      train.batch_size = train.batch_tokens / train.length;
      if (train.batch_size == 0) {
        refuse("train.batch_tokens",
               fmt::format("train.batch_tokens = {} is less than one sequence of train.length = {}", train.batch_tokens,
                           train.length));
      }
    } else if (given("train", "batch_tokens") && train.batch_tokens / train.length != train.batch_size) {
      refuse("train.batch_size",
             fmt::format("train.batch_size = {} and train.batch_tokens = {} disagree at train.length = {}; give one",
                         train.batch_size, train.batch_tokens, train.length));
    }
    train.batch_tokens = train.batch_size * train.length;
    if (train.batch_size % train.accumulation != 0) {
      refuse("train.accumulation", fmt::format("train.accumulation = {} must divide the {} sequences of a step",
                                               train.accumulation, train.batch_size));
    }
    if (train.min_lr > train.lr) {
      refuse("train.min_lr", fmt::format("train.min_lr = {} must be at most train.lr = {}", train.min_lr, train.lr));
    }
  }

  void resolve_model() {
    json model = table("model");
    if (!model.contains("vocab_size")) {
      model["vocab_size"] = default_vocab_size();
      if (use_ == RecipeUse::kPlan && !given("data", "tokenizer")) note_missing_corpora(model["vocab_size"]);
    }
    if (!model.contains("max_position_embeddings")) model["max_position_embeddings"] = recipe_.train.length;
    if (model["max_position_embeddings"] != recipe_.train.length) {
      refuse(
          "model.max_position_embeddings",
          fmt::format("model.max_position_embeddings is the length of the training sequences, train.length = {}, but "
                      "is {}; leave it out",
                      recipe_.train.length, shown(model["max_position_embeddings"])));
    }
    try {
      recipe_.model = models::complete_config(model);
    } catch (const Error& error) {
      refuse(model_key(model, error.what()), error.what());
    }
    if (recipe_.data.tokenizer == "byte") {  // a file is not opened before the run needs it
      try {
        check_vocab_size(recipe_, *open_tokenizer("byte"));
      } catch (const Error& error) {
        refuse("model.vocab_size", error.what());
      }
    }
    const TrainRecipe& train = recipe_.train;
    const models::ModelConfig config = models::read_model_config(recipe_.model);
    if (train.unit_deviation > 0 && !config.has_unit_embedding() && config.pattern.find('s') == std::string::npos) {
      refuse("train.unit_deviation",
             fmt::format("train.unit_deviation = {} needs a model with screening layers or the embedding \"unit\"; "
                         "leave it out",
                         train.unit_deviation));
    }
    if (train.window_short > 0 && !(train.window_short < recipe_.model.value("window", int64_t{0}))) {
      refuse("train.window_short",
             fmt::format("train.window_short = {} needs a model.pattern with sliding windows (w) and a longer "
                         "model.window; choose 0 for none",
                         train.window_short));
    }
  }

  /// As many as the ids of the tokenizer and of every generated task.
  int64_t default_vocab_size() const {
    int64_t most = open_tokenizer(recipe_.data.tokenizer)->vocab_size();
    for (const SourceRecipe& source : recipe_.data.sources) {
      if (!source.is_task()) continue;
      most = std::max(most, data::vocab_size(data::find_task(source.kind), source.task.settings));
    }
    return most;
  }

  /// Says what the vocabulary of a plan assumes when a corpus that would have a tokenizer is missing.
  void note_missing_corpora(int64_t vocab_size) {
    if (recipe_.data.tokenizer != "byte") return;
    for (const SourceRecipe& source : recipe_.data.sources) {
      const auto missing =
          std::ranges::find_if(source.path, [](const std::string& path) { return !std::filesystem::exists(path); });
      if (source.kind != "corpus" || (!source.path.empty() && missing == source.path.end())) continue;
      recipe_.notes.push_back(fmt::format(
          "data.sources.{}: {}, so the byte tokenizer and model.vocab_size = {} are assumed; give model.vocab_size, or "
          "the corpus",
          source.name, source.path.empty() ? "path is not given" : shown(*missing) + " does not exist", vocab_size));
      return;
    }
  }

  /// The path of the [model] key that an error text mentions first, either in quotes or after "unknown".
  static std::string model_key(const json& model, const std::string& text) {
    std::string path = "model";
    size_t first = std::string::npos;
    for (const auto& [key, value] : model.items()) {
      const size_t at = std::min(text.find("\"" + key + "\""), text.find("unknown " + key + " "));
      if (at >= first) continue;
      first = at;
      path = "model." + key;
    }
    return path;
  }

  const TomlDocument& document_;
  const RecipeUse use_;
  Recipe recipe_;
};

/// Whether `value` is the default of a key of a source that an earlier version did not have.
bool is_new_default(const std::string& path, const json& value) {
  static const json kNew = {{"sampling", "random"}, {"documents", false}};
  return kNew.value(path.substr(path.rfind('/') + 1), json()) == value;
}

}  // namespace

/// A visitor for visit_fields that writes the values to a JSON object.
struct JsonWriter {
  json& table;
  template <typename T>
  void operator()(const std::string& key, const T& value, const Allowed&) const {
    table[key] = value;
  }
};

Recipe load_recipe(const std::filesystem::path& file, std::span<const std::string> overrides, RecipeUse use) {
  TomlDocument document = read_toml(file);
  for (const std::string& assignment : overrides) override_value(document, assignment);
  return read_recipe(document, use);
}

Recipe read_recipe(const TomlDocument& document, RecipeUse use) {
  return RecipeReader(document, use).read();
}

json to_json(const Recipe& recipe) {
  Recipe copy = recipe;  // visit_fields reads and writes
  json values = {{"model", recipe.model}, {"data", {{"tokenizer", recipe.data.tokenizer}}}};
  visit_fields(copy.train, JsonWriter{values["train"]});
  visit_fields(copy.run, JsonWriter{values["run"]});
  for (SourceRecipe& source : copy.data.sources) {
    visit_fields(source, JsonWriter{values["data"]["sources"][source.name]});
  }
  return values;
}

void keep_stored_defaults(Recipe& recipe, const json& stored) {
  const char* const key = "output_scale";  // the only such key; see models::complete_stored_config
  if (stored.contains(key) || !recipe.model.contains(key)) return;
  const json before = models::complete_stored_config(stored);
  if (before.contains(key)) recipe.model[key] = before[key];
}

std::string first_difference(const json& before, const json& now) {
  static const std::vector<std::string> kIgnored = {
      "/train/threads",        "/train/context_parallel", "/train/shard",
      "/train/reduction",      "/train/save_every",       "/train/keep",
      "/train/keep_every",     "/train/log_every",        "/train/tensorboard",
      "/train/validate_every", "/train/validate_tokens",  "/train/sample_every",
      "/train/sample_prompt",  "/train/sample_tokens",    "/train/sample_temperature"};
  static const json kDefaults = to_json(Recipe()).flatten();  // for keys that an earlier version did not have
  json old_recipe = before;  // an earlier version may have written settings that no layer uses
  if (old_recipe.contains("model")) old_recipe["model"] = models::complete_stored_config(old_recipe["model"]);
  const json old_values = old_recipe.flatten();
  const json new_values = now.flatten();
  // Whether the steps done so far would have been different with another total number of steps.
  const bool steps_matter =
      new_values.value("/train/schedule", "constant") != "constant" ||
      new_values.value("/train/acceptance_margin", 0.0) > 0 ||
      (new_values.value("/train/window_short", int64_t{0}) > 0 && new_values.value("/train/window_long_last", 0.0) > 0);
  json all = old_values;
  all.update(new_values);
  std::vector<std::string> paths = {"/model/model_type"};  // first, because it explains other differences of models
  for (const auto& [path, ignored] : all.items()) paths.push_back(path);
  for (const std::string& path : paths) {
    const json was = old_values.value(path, json());
    const json is = new_values.value(path, json());
    if (was == is || std::find(kIgnored.begin(), kIgnored.end(), path) != kIgnored.end()) continue;
    if (path.starts_with("/run/") || (path == "/train/steps" && !steps_matter)) continue;
    if (path.starts_with("/train/") && was.is_null() && is == kDefaults.value(path, json())) continue;
    if (path.starts_with("/data/sources/") && was.is_null() && is_new_default(path, is)) continue;
    std::string key = path.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    return fmt::format("{} was {}, is {}", key, was.is_null() ? "absent" : shown(was),
                       is.is_null() ? "absent" : shown(is));
  }
  return "";
}

}  // namespace tamis::train

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/study/match.h"
#include "tamis/study/recipe_reader.h"
#include "tamis/train/data_set.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/table_reader.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using train::TableReader;
using train::TomlDocument;

constexpr size_t kMostPoints = 10000;

/// Tables of a training recipe, which variants, axes and tiers may change.
const std::vector<std::string> kRecipeTables = {"model", "data", "train"};

std::string joined(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

/// {"model": {"hidden_size": 64}} of `model.hidden_size` and 64.
json nested(std::string_view path, const json& value) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return {{std::string(path), value}};
  return {{std::string(path.substr(0, dot)), nested(path.substr(dot + 1), value)}};
}

struct Variant {
  std::string name;
  json columns;
  json over;         // tables of a training recipe
  std::string from;  // their path in the document
  std::vector<json> choose;
  std::string start_from = "";  // another variant
  int64_t start_step = 0;       // 0: its last
};

struct AxisValue {
  json label;
  json over;
  std::string from;
};

struct Axis {
  std::string name;
  std::vector<AxisValue> values;
};

class PointsReader : RecipeReader {
 public:
  using RecipeReader::RecipeReader;

  void read() {
    read_choose();
    read_equal();
    const std::vector<Axis> axes = read_axes();
    make_points(read_variants(), axes);
    if (recipe_.model) check_points();
  }

 private:
  std::vector<json> values_at(const json& from, const std::string& path) const {
    const json found = from.is_object() ? from.value("values", json()) : json();
    if (!found.is_array() || found.empty()) refuse(path, path + ": expected values = [...] with at least one");
    std::vector<json> values(found.begin(), found.end());
    refuse_twice(path, values);
    for (const json& value : values) {
      const std::string name = plain_text(value);
      if (name.find('/') == std::string::npos && name.size() <= 100) continue;
      refuse(path, fmt::format("{}: values are names of directories, which {} cannot be; give [[axes]] a name, plain "
                               "values and set = [{{...}}, ...]",
                               path, quoted_name(name)));
    }
    return values;
  }

  /// `key` must begin with one of the tables of a training recipe.
  void check_key(const std::string& key, const std::string& path) const {
    const std::string table = key.substr(0, key.find('.'));
    if (table == key || std::ranges::find(kRecipeTables, table) == kRecipeTables.end()) {
      refuse(path, fmt::format("{}: {} is not a key of a training recipe; give one such as \"train.lr\"", path,
                               quoted_name(key)));
    }
  }

  void read_choose() {
    if (!document_.values.contains("choose")) return;
    const json from = document_.values["choose"];
    if (!recipe_.train) refuse("choose", "[choose] compares runs, but this study trains none");
    TableReader reader(document_, "choose", from);
    Choose choose{.key = "train.lr", .values = {}};
    reader("key", choose.key);
    reader("steps", choose.steps, Allowed{.least = 0, .most = train::kMostSteps});
    reader.accept("values");
    reader.refuse_other_keys();
    check_key(choose.key, "choose.key");
    choose.values = values_at(from, "choose");
    recipe_.choose = std::move(choose);
  }

  void read_equal() {
    const json from = document_.values.value("equal", json::object());
    TableReader reader(document_, "equal", from);
    double most = -1;
    reader("parameters_without_embedding", most, Allowed{.least = 0, .most = 1});
    reader("tokens", recipe_.equal.tokens);
    reader("within", recipe_.equal.within);
    reader("match", recipe_.equal.match);
    reader.refuse_other_keys();
    if (most >= 0) recipe_.equal.parameters_without_embedding = most;
    if (recipe_.equal.match && most < 0) {
      refuse("equal.match",
             "equal.match needs equal.parameters_without_embedding, the difference that remains allowed");
    }
  }

  std::vector<Axis> read_axes() const {
    std::vector<Axis> axes;
    const json from = list("axes");
    if (!from.empty() && !recipe_.model) refuse("axes", "[[axes]] change a [model], which this study does not have");
    for (size_t i = 0; i < from.size(); ++i) {
      const std::string path = fmt::format("axes.{}", i);
      TableReader reader(document_, path, from[i]);
      std::string name, key;
      reader("name", name);
      reader("key", key);
      for (const char* known : {"values", "set"}) reader.accept(known);
      reader.refuse_other_keys();
      if (!key.empty()) check_key(key, path + ".key");
      if (name.empty()) name = last_part(key);
      if (!is_plain(name)) refuse(path, path + ": expected key = \"table.key\", or a name with set = [{...}, ...]");
      check_column(name, path);
      if (std::ranges::find(axes, name, &Axis::name) != axes.end()) {
        refuse(path, fmt::format("{}: the name \"{}\" is used twice", path, name));
      }
      axes.push_back({name, axis_values(from[i], path, key)});
    }
    return axes;
  }

  std::vector<AxisValue> axis_values(const json& from, const std::string& path, const std::string& key) const {
    const std::vector<json> labels = values_at(from, path);
    const json sets = from.value("set", json::array());
    if (key.empty() && (!sets.is_array() || sets.size() != labels.size())) {
      refuse(path, fmt::format("{}.set must have a table for each of the {} values", path, labels.size()));
    }
    std::vector<AxisValue> values;
    for (size_t v = 0; v < labels.size(); ++v) {
      const std::string source = fmt::format("{}.set.{}", path, v);
      if (key.empty()) check_tables(sets[v], source);
      values.push_back({labels[v], key.empty() ? sets[v] : nested(key, labels[v]), key.empty() ? source : path});
    }
    return values;
  }

  /// Labels and axes may not have the names of the columns that every row has.
  void check_column(const std::string& name, const std::string& path) const {
    for (const char* own : {"metric", "value", "variant", "seed"}) {
      if (name == own)
        refuse(path, fmt::format("{}: all results have a column \"{}\"; choose another name", path, name));
    }
  }

  void check_tables(const json& over, const std::string& path) const {
    if (!over.is_object()) refuse(path, path + " must be a table such as {model = {hidden_size = 64}}");
    for (const auto& [table, value] : over.items()) {
      if (std::ranges::find(kRecipeTables, table) == kRecipeTables.end()) {
        refuse(path + "." + table, unknown_name("table of a training recipe", table, kRecipeTables));
      }
      if (!value.is_object()) refuse(path + "." + table, fmt::format("{}.{} must be a table", path, table));
    }
  }

  std::vector<Variant> read_variants() const {
    const json from = list("variants");
    std::vector<Variant> variants;
    for (size_t i = 0; i < from.size(); ++i) {
      const std::string path = fmt::format("variants.{}", i);
      TableReader reader(document_, path, from[i]);
      Variant variant{.name = "", .columns = json::object(), .over = json::object(), .from = path, .choose = {}};
      reader("name", variant.name);
      for (const std::string& table : kRecipeTables) reader.accept(table);
      for (const char* known : {"labels", "choose", "start_from"}) reader.accept(known);
      reader.refuse_other_keys();
      if (!is_plain(variant.name)) refuse(path, path + ": expected name = \"...\" of letters, digits, ., +, - and _");
      if (std::ranges::find(variants, variant.name, &Variant::name) != variants.end()) {
        refuse(path, fmt::format("{}: the name \"{}\" is used twice", path, variant.name));
      }
      for (const std::string& table : kRecipeTables) {
        if (from[i].contains(table)) variant.over[table] = from[i][table];
      }
      check_tables(variant.over, path);
      variant.columns = from[i].value("labels", json::object());
      if (!variant.columns.is_object()) refuse(path, path + ".labels must be a table");
      for (const auto& [label, unused] : variant.columns.items()) check_column(label, path + ".labels");
      variant.columns["variant"] = variant.name;
      if (from[i].contains("choose")) {
        if (!recipe_.choose) refuse(path, path + ".choose needs the table [choose]");
        variant.choose = values_at({{"values", from[i]["choose"]}}, path + ".choose");
      }
      if (from[i].contains("start_from")) read_start(from[i]["start_from"], variants, variant);
      variants.push_back(std::move(variant));
    }
    if (variants.empty()) {
      variants.push_back(
          {.name = "all", .columns = {{"variant", "all"}}, .over = json::object(), .from = "", .choose = {}});
    }
    return variants;
  }

  /// `start_from` of a variant, which must name one of those before it.
  void read_start(const json& from, const std::vector<Variant>& before, Variant& variant) const {
    const std::string path = variant.from + ".start_from";
    if (!recipe_.train) refuse(path, path + " names a trained model, but this study trains none");
    if (recipe_.choose) refuse(path, path + " cannot be used with [choose]; give the chosen values");
    if (!from.is_object()) refuse(path, path + " must be a table such as {variant = \"NAME\", step = 100}");
    TableReader reader(document_, path, from);
    reader("variant", variant.start_from);
    reader("step", variant.start_step, Allowed{.least = 1, .most = train::kMostSteps});
    reader.refuse_other_keys();
    if (variant.start_from.empty()) refuse(path, path + ": variant is missing, the name of an earlier one");
    if (variant.over.contains("/train/start_from"_json_pointer)) {
      refuse(path, path + " and train.start_from both say what the variant starts from; give one");
    }
    std::vector<std::string> names;
    for (const Variant& other : before) names.push_back(other.name);
    if (names.empty()) refuse(path, path + ": there is no variant before this one to start from");
    if (std::ranges::find(names, variant.start_from) == names.end()) {
      refuse(path, unknown_name("variant before this one", variant.start_from, names));
    }
  }

  void make_points(const std::vector<Variant>& variants, const std::vector<Axis>& axes) {
    size_t count = variants.size();
    for (const Axis& axis : axes) {
      count *= axis.values.size();
      if (count > kMostPoints)
        refuse("axes", fmt::format("the axes give more than {} points; use fewer values", kMostPoints));
    }
    for (const Variant& variant : variants) {
      std::vector<size_t> at(axes.size(), 0);
      do {
        add_point(variant, axes, at);
      } while (advance(axes, at));
    }
  }

  static bool advance(const std::vector<Axis>& axes, std::vector<size_t>& at) {
    for (size_t a = axes.size(); a-- > 0;) {
      if (++at[a] < axes[a].values.size()) return true;
      at[a] = 0;
    }
    return false;
  }

  void add_point(const Variant& variant, const std::vector<Axis>& axes, const std::vector<size_t>& at) {
    Point point{.name = variant.name, .columns = variant.columns};
    TomlDocument document = document_;
    put_over(document, document.values, "", variant.over, variant.from);
    std::vector<std::string> parts;
    for (size_t a = 0; a < axes.size(); ++a) {
      const AxisValue& value = axes[a].values[at[a]];
      put_over(document, document.values, "", value.over, value.from);
      point.columns[axes[a].name] = value.label;
      parts.push_back(fmt::format("{}-{}", axes[a].name, plain_text(value.label)));
    }
    const std::string values = parts.empty() ? "" : fmt::format("/{}", fmt::join(parts, "_"));
    point.name += values;
    if (!variant.start_from.empty()) start_point(variant, variant.start_from + values, document, point);
    if (recipe_.model) {
      for (const auto& [key, unused] : document_.values.items()) {
        if (std::ranges::find(kRecipeTables, key) == kRecipeTables.end()) document.values.erase(key);
      }
      add_options(document, variant, point);
      check_start(variant, point);
    }
    recipe_.points.push_back(std::move(point));
  }

  /// Finds the point that another one starts from, and writes into the recipe of the latter what it gets from it. Which
  /// run that is depends on the seed.
  void start_point(const Variant& variant, const std::string& from, TomlDocument& document, Point& point) const {
    const auto found = std::ranges::find(recipe_.points, from, &Point::name);
    const train::Recipe& before = found->recipe();
    point.start = Start{.point = static_cast<size_t>(found - recipe_.points.begin()),
                        .step = variant.start_step == 0 ? before.train.steps : variant.start_step};
    json taken = {{"train", {{"start_from", from}}}};
    const json& values = document.values;
    if (!values.contains("/data/tokenizer"_json_pointer)) taken["data"]["tokenizer"] = before.data.tokenizer;
    put_over(document, document.values, "", taken, variant.from);
  }

  /// The other run must keep the checkpoint, and this one must be able to go on after it.
  void check_start(const Variant& variant, const Point& point) const {
    if (!point.start) return;
    const std::string path = variant.from + ".start_from", step = fmt::format("{}.step = {}", path, point.start->step);
    const Point& before = recipe_.points[point.start->point];
    const train::TrainRecipe &train = before.recipe().train, &own = point.recipe().train;
    const int64_t at = point.start->step, taken_over = steps_taken_over(before);
    if (at > train.steps) refuse(path, fmt::format("{}: {} has only {} steps", step, before.name, train.steps));
    if (at <= taken_over) {
      refuse(path, fmt::format("{}: {} itself begins after step {}", step, before.name, taken_over));
    }
    const bool kept =
        at % train.save_every == 0 && (train.keep == 0 || (train.keep_every > 0 && at % train.keep_every == 0));
    if (at < train.steps && !kept) {
      refuse(path,
             fmt::format("{}: {} keeps no checkpoint of this step; set train.keep = 0, and train.save_every, which "
                         "is {}, to a divisor of it",
                         step, before.name, train.save_every));
    }
    if (before.recipe().model["vocab_size"] != point.recipe().model["vocab_size"]) {
      refuse(path, fmt::format("{}: {} has model.vocab_size = {}, but {} has {}", path, before.name,
                               before.recipe().model["vocab_size"].dump(), point.name,
                               point.recipe().model["vocab_size"].dump()));
    }
    if (own.start_state != "all") return;
    if (own_steps(point) <= 0) {
      refuse(path,
             fmt::format("{}: with train.start_state = \"all\" train.steps = {} must be larger", step, own.steps));
    }
    if (own.batch_size != train.batch_size || own.length != train.length) {
      refuse(path,
             fmt::format("{}: with train.start_state = \"all\" a step must have {} sequences of {} tokens, as of {}, "
                         "but has {} of {}",
                         path, train.batch_size, train.length, before.name, own.batch_size, own.length));
    }
  }

  void add_options(const TomlDocument& document, const Variant& variant, Point& point) const {
    std::vector<json> values = {json()};
    if (recipe_.choose) values = variant.choose.empty() ? recipe_.choose->values : variant.choose;
    for (const json& value : values) {
      TomlDocument own = document;
      if (!value.is_null()) put_over(own, own.values, "", nested(recipe_.choose->key, value), "choose");
      try {
        point.options.push_back({value, train::read_recipe(own, use_)});
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{} ({})", error.what(), point.name));
      }
    }
    point.parameters = models::count_parameters(point.recipe().model);
    if (point.recipe().train.epochs > 0) {
      refuse("train.epochs", fmt::format("train.epochs: the runs of a study are compared by their steps; give "
                                         "train.steps instead ({})",
                                         point.name));
    }
  }

  void check_points() {
    if (recipe_.equal.match) match_sizes();
    check_equal();
    std::map<std::string, std::map<std::string, std::string>> read;  // checksums by [data]
    for (Point& point : recipe_.points) {
      const train::Recipe& any = point.recipe();
      if (recipe_.choose) check_choose(point);
      json data = train::to_json(any)["data"];
      const std::string key = data.dump() + std::to_string(any.train.length);
      if (recipe_.train && use_ == train::RecipeUse::kRun && !read.contains(key)) {
        read[key] = train::open_data(any, *train::open_tokenizer(any.data.tokenizer)).checksums;
      }
      point.checksums = read[key];
    }
  }

  void check_choose(const Point& point) const {
    const train::TrainRecipe& train = point.recipe().train;
    if (recipe_.choose->steps > train.steps) {
      refuse("choose.steps", fmt::format("choose.steps = {} is more than train.steps = {} ({})", recipe_.choose->steps,
                                         train.steps, point.name));
    }
    if (train.validate_tokens > 0) return;
    refuse("train.validate_tokens",
           fmt::format("train.validate_tokens = 0: {} is chosen by the validation loss", recipe_.choose->key));
  }

  /// Points that must be equal, by the value of equal.within.
  std::map<std::string, std::vector<Point*>> groups() {
    std::map<std::string, std::vector<Point*>> groups;
    for (Point& point : recipe_.points) {
      json value;
      if (!recipe_.equal.within.empty()) {
        if (!point.columns.contains(recipe_.equal.within)) {
          refuse("equal.within",
                 fmt::format("equal.within: {} has no column {}", point.name, quoted_name(recipe_.equal.within)));
        }
        value = point.columns[recipe_.equal.within];
      }
      groups[value.dump()].push_back(&point);
    }
    return groups;
  }

  /// The change of the point that this one starts from, whose tensors it gets.
  std::optional<SizeFit> fit_of_start(const Point& point) const {
    std::optional<SizeFit> fit = recipe_.points[point.start->point].fit;
    if (!fit) return fit;
    fit->config = point.recipe().model;
    fit->config[fit->key] = fit->value;
    fit->config = models::complete_config(fit->config);
    fit->parameters = models::count_parameters(fit->config);
    return fit;
  }

  /// Changes one key of every model whose size differs from that of the first point of its group.
  void match_sizes() {
    std::map<const Point*, const Point*> first_of;
    for (const auto& [value, points] : groups()) {
      for (const Point* point : points) first_of[point] = points.front();
    }
    // In the order of the recipe: the first of a group and the point that another starts from come before it.
    for (Point& point : recipe_.points) {
      point.fit = point.start ? fit_of_start(point) : fit_to(point, first_of[&point]->parameters.without_embedding);
      if (!point.fit) continue;
      for (Option& option : point.options) option.recipe.model = point.fit->config;
      point.parameters = point.fit->parameters;
    }
  }

  /// None if the size is near enough already.
  std::optional<SizeFit> fit_to(const Point& point, int64_t target) const {
    const double near = 0.45 * *recipe_.equal.parameters_without_embedding;
    if (size_difference(point.parameters.without_embedding, target) < near) return std::nullopt;
    return nearest_fit(point.recipe().model, target);
  }

  void check_equal() {
    for (const auto& [value, points] : groups()) {
      const Point& first = *points.front();
      for (const Point* point : points) {
        check_tokens(first, *point);
        check_size(first, *point);
      }
    }
  }

  void check_tokens(const Point& first, const Point& point) const {
    const auto tokens = [&](const Point& each) { return tokens_read(recipe_, each); };
    if (!recipe_.equal.tokens || !recipe_.train || tokens(first) == tokens(point)) return;
    refuse("equal.tokens", fmt::format("equal.tokens: {} trains on {} tokens, but {} on {}; make them equal, or set "
                                       "equal.tokens = false if that is meant",
                                       first.name, tokens(first), point.name, tokens(point)));
  }

  void check_size(const Point& first, const Point& point) const {
    const auto& most = recipe_.equal.parameters_without_embedding;
    const int64_t target = first.parameters.without_embedding, size = point.parameters.without_embedding;
    if (!most || size_difference(size, target) <= *most) return;
    const SizeFit fit = nearest_fit(point.recipe().model, target);
    refuse("equal.parameters_without_embedding",
           fmt::format("{} has {} parameters without the embedding, but {} has {}, more than {}% apart; model.{} = {} "
                       "comes nearest; {}",
                       first.name, target, point.name, size, 100 * *most, fit.key, fit.value,
                       recipe_.equal.match ? "change other sizes of the model, or state equal.within"
                                           : "equal.match = true chooses such values itself"));
  }
};

}  // namespace

void put_over(TomlDocument& document, json& values, const std::string& path, const json& over,
              const std::string& from) {
  for (const auto& [key, value] : over.items()) {
    const std::string to = joined(path, key), source = joined(from, key);
    if (value.is_object() && values.value(key, json()).is_object()) {
      put_over(document, values[key], to, value, source);
      continue;
    }
    values[key] = value;
    document.positions[to] = document.position(source);
  }
}

void read_points(const TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe) {
  PointsReader(document, use, recipe).read();
}

}  // namespace tamis::study

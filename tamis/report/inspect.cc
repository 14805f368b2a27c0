#include "tamis/report/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/infer/load.h"
#include "tamis/models/checkpoint.h"
#include "tamis/report/map_picture.h"
#include "tamis/report/model_data.h"
#include "tamis/report/relevance_data.h"

namespace tamis::report {
namespace {

using nlohmann::json;

/// `12,345,678`
std::string grouped(int64_t count) {
  const std::string digits = std::to_string(count);
  std::string result;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

std::string number(const json& value, int decimals, std::string_view absent) {
  return value.is_number() ? fmt::format("{:.{}f}", value.get<double>(), decimals) : std::string(absent);
}

/// The window in at most seven characters.
std::string window_text(const json& window) {
  constexpr double kLong = 1e5;
  if (window.is_number() && window.get<double>() >= kLong) return fmt::format("{:.1e}", window.get<double>());
  return number(window, 1, "inf");
}

/// A table with a row per layer and a column per head, split into blocks of heads that fit into `columns`.
std::string head_table(const std::string& title, const json& entries, int columns,
                       const std::function<std::string(const json&)>& cell) {
  constexpr int kLayer = 5, kCell = 8;
  int64_t heads = 0;
  for (const json& entry : entries) heads = std::max(heads, entry["head"].get<int64_t>() + 1);
  const int64_t block = std::max<int64_t>((columns - kLayer) / kCell, 1);
  std::string text;
  for (int64_t first = 0; first < heads; first += block) {
    const int64_t last = std::min(first + block, heads);
    text += fmt::format("\n{}\nlayer", title);
    for (int64_t head = first; head < last; ++head) text += fmt::format("{:>{}}", fmt::format("head {}", head), kCell);
    for (const json& entry : entries) {
      const auto head = entry["head"].get<int64_t>();
      if (head < first || head >= last) continue;
      if (head == first) text += fmt::format("\n{:>{}}", entry["layer"].get<int64_t>(), kLayer);
      text += fmt::format("{:>{}}", cell(entry), kCell);
    }
    text += '\n';
  }
  return text;
}

/// The number of parameters, in total and by part.
std::string parameters_text(const json& model) {
  const auto line = [](std::string_view name, const json& count) {
    return fmt::format("{:<18} {:>15}\n", name, grouped(count));
  };
  std::string text = line("parameters", model["parameters"]);
  for (const auto& [key, name] :
       {std::pair("embedding", "  embedding"), std::pair("mixers", "  mixers"), std::pair("mlp", "  MLPs"),
        std::pair("norms", "  norms"), std::pair("head", "  head")}) {
    if (const json& count = model["parts"][key]; count != 0) text += line(name, count);
  }
  return text + line("without embedding", model["parameters_without_embedding"]);
}

std::string memory_text(const json& memory) {
  const auto bytes = [&](const char* key) { return format_bytes(memory[key].get<double>()); };
  return fmt::format(
      "training takes about {}: weights {}, gradients {}, optimizer {}, activations {} of {} tokens in {}\n",
      bytes("total"), bytes("weights"), bytes("gradients"), bytes("optimizer"), bytes("activations"),
      grouped(memory["tokens"]), memory["precision"].get<std::string>());
}

}  // namespace

json inspect(const InspectOptions& options, at::Device device) {
  const infer::LoadedModel loaded =
      infer::load(options.checkpoint, device, models::read_changes(options.model_changes));
  json result = inspect_config(loaded.model->config());
  result["title"] = loaded.checkpoint.string();
  result["tiles"] = describe_screening_heads(loaded.model->screening_heads());
  result["flops_per_token"] = describe_flops(*loaded.model, loaded.model->training_length());
  if (!options.text) return result;

  std::vector<int64_t> tokens = loaded.tokenizer->encode(*options.text);
  const size_t all = tokens.size();
  tokens.resize(std::min(all, static_cast<size_t>(options.most_tokens)));
  const Relevance found =
      find_relevance(*loaded.model, *loaded.tokenizer, tokens, {.expand_windows = options.expand_windows});
  if (!options.map.file.empty()) {
    write_file_atomic(options.map.file, draw_maps(found, options.map, loaded.checkpoint.string()));
  }
  json relevance = to_json(found);
  relevance["note"] = fmt::format("The weight of every key for every query, in all heads, for {}{}.",
                                  tokens.size() < all ? fmt::format("the first {} of {} tokens", tokens.size(), all)
                                                      : fmt::format("{} tokens", all),
                                  options.expand_windows ? "; windows beyond the training length are infinite" : "");
  result["relevance"] = std::move(relevance);
  return result;
}

json inspect_config(const json& config) {
  json model = describe_model(models::complete_config(config));
  return {{"version", kVersion}, {"title", model["type"]}, {"model", std::move(model)}};
}

std::string inspection_text(const json& inspection, int columns) {
  const json& model = inspection["model"];
  std::string text =
      fmt::format("{}\n{} layers x {} heads, width {}, vocabulary {}, training length {}\n",
                  one_line(inspection["title"].get<std::string>()), model["layers"].dump(), model["heads"].dump(),
                  model["hidden_size"].dump(), model["vocab_size"].dump(), model["training_length"].dump());
  text += parameters_text(model);
  if (inspection.contains("memory")) text += memory_text(inspection["memory"]);
  if (inspection.contains("flops_per_token")) {
    const json& flops = inspection["flops_per_token"];
    const auto count = [&](const char* key) { return format_count(flops[key].get<double>()); };
    text += fmt::format(
        "forward FLOPs per token at length {}: {} for weights, {} for similarities, at most {} for values\n",
        flops["length"].dump(), count("weights"), count("similarities"), count("values"));
  }
  if (const json heads = inspection.value("tiles", json::array()); !heads.empty()) {
    text +=
        head_table("window w, tokens", heads, columns, [](const json& head) { return window_text(head["window"]); });
    text += head_table("acceptance width r", heads, columns,
                       [](const json& head) { return number(head["accept"], 3, "-"); });
  }
  if (inspection.contains("relevance")) {
    const json& relevance = inspection["relevance"];
    const json& maps = relevance["maps"];
    const size_t tokens = relevance["tokens"].size();
    const auto selects = [](const json& map) { return map["selects"].get<bool>(); };
    if (std::ranges::any_of(maps, selects)) {
      text += head_table(fmt::format("keys accepted inside the window, % ({} tokens)", tokens), maps, columns,
                         [&](const json& map) {
                           return selects(map) ? fmt::format("{:.1f}", 100 * map["nonzero"].get<double>()) : "-";
                         });
    }
    if (!std::ranges::all_of(maps, selects)) {
      text += head_table(fmt::format("effective number of keys per query, exp(entropy) ({} tokens)", tokens), maps,
                         columns, [](const json& map) { return number(map["keys"], 1, "-"); });
    }
  }
  return text;
}

json inspection_json(const json& inspection) {
  const json& model = inspection["model"];
  json result = {{"parameters", model["parameters"]},
                 {"parameters_without_embedding", model["parameters_without_embedding"]},
                 {"parts", model["parts"]},
                 {"config", model["config"]}};
  if (inspection.contains("memory")) result["memory"] = inspection["memory"];
  if (inspection.contains("tiles")) result["tiles"] = inspection["tiles"];
  if (inspection.contains("flops_per_token")) result["flops_per_token"] = inspection["flops_per_token"];
  if (inspection.contains("relevance")) {
    result["tiles"] = json::array();
    for (const json& map : inspection["relevance"]["maps"]) {
      json head = map;
      head.erase("numbers");
      head.erase("scale");
      result["tiles"].push_back(std::move(head));
    }
  }
  return result;
}

}  // namespace tamis::report

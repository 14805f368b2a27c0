#include "tamis/data/generate.h"

#include "tamis/data/instance_memory.h"

namespace tamis::data {
namespace {

using Json = nlohmann::ordered_json;

void add(Json& json, const TextTask& task, const TextInstance& instance) {
  json["prompt_tokens"] = instance.prompt.size();
  if (instance.depth) json["depth"] = *instance.depth;
  json["max_new_tokens"] = said_bytes(task, instance);
  json["prompt"] = instance.prompt;
  json["answers"] = instance.answers;
  json["answer_spans"] = Json::array();
  for (const ByteSpan& span : instance.answer_spans) json["answer_spans"].push_back({span.begin, span.end});
}

void add(Json& json, const TokenTask&, const TokenInstance& instance) {
  json["prompt_tokens"] = instance.ids.size();
  json["ids"] = instance.ids;
  json["answer_positions"] = instance.answer_positions;
  json["answers"] = instance.answers;
}

}  // namespace

nlohmann::ordered_json to_json(const Task& task, const TaskRequest& request, uint64_t index, const Instance& instance) {
  Json json = {{"task", task.name}, {"index", index}, {"seed", request.seed}, {"length", request.length}};
  const Settings settings = check_request(task, request).settings;
  if (!settings.empty()) json["settings"] = settings;
  if (const auto* text = std::get_if<TextInstance>(&instance)) {
    add(json, std::get<TextTask>(task.kind), *text);
  } else {
    add(json, std::get<TokenTask>(task.kind), std::get<TokenInstance>(instance));
  }
  return json;
}

void generate(const Task& task, const TaskRequest& request, int64_t count,
              const std::function<void(std::string_view line)>& write) {
  check_request(task, request);
  require_memory_for(task, request.length, 1);
  for (int64_t index = 0; index < count; ++index) {
    write(to_json(task, request, index, make_instance(task, request, index)).dump() + "\n");
  }
}

}  // namespace tamis::data

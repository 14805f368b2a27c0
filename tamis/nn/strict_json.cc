#include "tamis/nn/strict_json.h"

#include <set>
#include <vector>

#include "tamis/base/error.h"

namespace tamis::nn {
namespace {

using nlohmann::json;

std::string cut(std::string text, size_t most) {
  if (text.size() > most) text = text.substr(0, most) + "...";
  return text;
}

}  // namespace

std::string quoted(const std::string& name) {
  return cut(json(name).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace), 80);
}

json parse_strict_json(std::string_view text, const std::string& where, int most_levels) {
  std::vector<std::set<std::string>> keys(static_cast<size_t>(most_levels) + 1);  // of the open object at each depth
  const auto check = [&](int depth, json::parse_event_t event, const json& parsed) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= most_levels) {
      fail(ExitCode::kInput, "{}: expected at most {} levels of nesting, but there are more", where, most_levels);
    }
    const auto level = static_cast<size_t>(depth);
    if (event == json::parse_event_t::object_start) keys[level + 1].clear();
    if (event == json::parse_event_t::key && !keys[level].insert(parsed.get<std::string>()).second) {
      fail(ExitCode::kInput, "{}: the key {} comes twice", where, quoted(parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    fail(ExitCode::kInput, "{}: expected JSON, but {}", where, cut(error.what(), 200));
  }
}

}  // namespace tamis::nn

#include "tamis/base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/names.h"

namespace tamis {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 16;  // of the unexpected text
constexpr size_t kMostFileBytes = 16u << 20;
constexpr int64_t kMostValuesOfAnItem = 100'000;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// Called with each item of the outermost object or list; the key of a list's entry is empty.
using TakeItem = std::function<void(const std::string& key, const json& value)>;

/// Builds values from the events of nlohmann's parser: the whole value, or with `take` each item of the outermost
/// object or list on its own.
class Builder {
 public:
  Builder(std::string_view text, std::string_view where, int most_levels, json::value_t root = json::value_t::null,
          TakeItem take = nullptr)
      : text_(text), where_(where), most_levels_(most_levels), root_(root), take_(std::move(take)) {}

  json parse() {
    if (text_.starts_with(kByteOrderMark)) refuse("begins with a byte order mark; expected plain UTF-8");
    if (const size_t at = text_.find('\0'); at != text_.npos) refuse(fmt::format("byte {} is a NUL", at));
    json::sax_parse(text_.begin(), text_.end(), this);
    return std::move(value_);
  }

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(json::number_integer_t value) { return scalar(value); }
  bool number_unsigned(json::number_unsigned_t value) { return scalar(value); }
  bool number_float(json::number_float_t value, const std::string&) { return scalar(value); }
  bool string(std::string& value) { return scalar(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // never called for JSON text
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (splits()) {
      if (!keys_.insert(name).second) refuse_twice(name);
      key_ = std::move(name);
      return true;
    }
    const auto [place, is_new] = open_.back()->get_ref<json::object_t&>().emplace(std::move(name), nullptr);
    if (!is_new) refuse_twice(place->first);
    slot_ = &place->second;
    return true;
  }

  bool parse_error(size_t position, const std::string& token, const json::exception& error) {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) refuse(fmt::format("the number {} is too large", quoted_name(token)));
    if (position > text_.size() || token.empty()) refuse(text_.empty() ? "it is empty" : "it ends too early");
    const std::string_view before = text_.substr(0, position == 0 ? 0 : position - 1);
    const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    const std::string_view rest = text_.substr(before.size(), kShownBytes);
    refuse(fmt::format("line {}, column {}: {} is not expected there",
                       std::count(before.begin(), before.end(), '\n') + 1, before.size() - line_start + 1,
                       quoted_name(rest.substr(0, std::max<size_t>(rest.find('\n'), 1)))));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::kInput, "{}: is not JSON: {}", where_, what);
  }
  [[noreturn]] void refuse_twice(const std::string& name) const {
    fail(ExitCode::kInput, "{}: the key {} comes twice", where_, quoted_name(name));
  }

  /// True when the next value is an item for `take_`.
  bool splits() const { return take_ && open_.size() == 1; }

  void check_root(const json& value) const {
    if (!take_ || !open_.empty() || value.type() == root_) return;
    const auto name = [](json::value_t type) { return type == json::value_t::object ? "an object" : "a list"; };
    fail(ExitCode::kInput, "{}: expected {}, but it is {}", where_, name(root_),
         value.is_structured() ? name(value.type()) : "a single value");
  }

  /// Stores a value at the parser's position and returns its address.
  json* place(json value) {
    check_root(value);
    if (open_.empty() || splits()) {
      values_ = 0;
      value_ = std::move(value);
      return &value_;
    }
    if (take_ && ++values_ > kMostValuesOfAnItem) {
      fail(ExitCode::kInput, "{}: {} holds more than {} values", where_, quoted_name(key_), kMostValuesOfAnItem);
    }
    if (json* list = open_.back(); list->is_array())
      return &list->get_ref<json::array_t&>().emplace_back(std::move(value));
    *slot_ = std::move(value);
    return slot_;
  }

  bool scalar(json value) {
    place(std::move(value));
    if (splits()) take_(key_, value_);
    return true;
  }

  bool open(json value) {
    if (static_cast<int>(open_.size()) == most_levels_) {
      fail(ExitCode::kInput, "{}: expected at most {} levels of nesting, but there are more", where_, most_levels_);
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    if (splits()) take_(key_, value_);
    return true;
  }

  std::string_view text_, where_;
  int most_levels_;
  json::value_t root_;
  TakeItem take_;
  json value_;                            // the whole value, or the item being built
  std::vector<json*> open_;               // objects and lists that are not closed yet, outermost first
  json* slot_ = nullptr;                  // where the value of the last key goes
  std::string key_;                       // of the item being built
  std::unordered_set<std::string> keys_;  // of the items
  int64_t values_ = 0;                    // inside the item being built
};

}  // namespace

json parse_json(std::string_view text, std::string_view where, int most_levels) {
  return Builder(text, where, most_levels).parse();
}

json try_parse_json(std::string_view text) try { return parse_json(text, ""); } catch (const Error&) {
  return json(json::value_t::discarded);
}

json read_json(const std::filesystem::path& file, int most_levels) {
  const MappedFile mapped(file);
  if (mapped.text().size() > kMostFileBytes) {
    fail(ExitCode::kInput, "{}: expected at most {} bytes of JSON, but it has {}", file.string(), kMostFileBytes,
         mapped.text().size());
  }
  return parse_json(mapped.text(), file.string(), most_levels);
}

std::optional<json> try_read_object(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  json found = try_parse_json(read_file(file));
  return found.is_object() ? std::optional(std::move(found)) : std::nullopt;
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n";
}

void parse_json_object(std::string_view text, std::string_view where, int most_levels, const TakeItem& take) {
  Builder(text, where, most_levels, json::value_t::object, take).parse();
}

void parse_json_list(std::string_view text, std::string_view where, int most_levels,
                     const std::function<void(const json& value)>& take) {
  Builder(text, where, most_levels, json::value_t::array, [&](const std::string&, const json& value) {
    take(value);
  }).parse();
}

std::string text_at(const json& object, const char* key, std::string_view fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string(fallback);
}

std::string plain_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string shown(const json& value) {
  if (value.is_string()) return quoted_name(value.get_ref<const std::string&>());
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return fmt::format("{}", value.get<double>());
  constexpr size_t kMost = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

}  // namespace tamis

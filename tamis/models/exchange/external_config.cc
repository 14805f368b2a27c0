#include "tamis/models/exchange/external_config.h"

#include "tamis/base/json.h"
#include "tamis/models/stored_config.h"

namespace tamis::models::exchange {

using nlohmann::json;

namespace {

constexpr double kMostSize = 1LL << 40;

}  // namespace

ExternalConfig::ExternalConfig(const json& config, std::string where) : ObjectReader(config), where_(std::move(where)) {
  check_object("config");
}

std::string ExternalConfig::name_of(const std::string& key) const {
  return fmt::format("\"{}\"", key);
}

std::string ExternalConfig::kind_of_choice(const std::string& key) const {
  return key;
}

std::string ExternalConfig::kind_of_key() const {
  return "key";
}

Error ExternalConfig::error_at(const std::string&, const std::string& text) const {
  return Error(ExitCode::kInput, where_ + ": " + text);
}

bool ExternalConfig::has(const std::string& key) const {
  return object().contains(key) && !object()[key].is_null();
}

const std::string* ExternalConfig::present(const Names& names) {
  for (const std::string& name : names) accept(name);
  for (const std::string& name : names) {
    if (has(name)) return &name;
  }
  return nullptr;
}

int64_t ExternalConfig::size(const Names& names, std::optional<int64_t> fallback) {
  const std::string* const key = present(names);
  if (key == nullptr && fallback) return *fallback;
  if (key == nullptr) fail_at(names.front(), name_of(names.front()) + " is missing");
  int64_t result = 0;
  read(*key, object()[*key], result, {.least = 1, .most = kMostSize});
  for (const std::string& other : names) {  // the same size under two names
    if (has(other) && object()[other] != object()[*key]) refuse(other, "equal to " + name_of(*key), object()[other]);
  }
  return result;
}

double ExternalConfig::number(const Names& names, std::optional<double> fallback) {
  const std::string* const key = present(names);
  if (key == nullptr && fallback) return *fallback;
  if (key == nullptr) fail_at(names.front(), name_of(names.front()) + " is missing");
  double result = 0;
  read(*key, object()[*key], result, {.least = 0, .most = 1e30, .above_least = true});
  return result;
}

bool ExternalConfig::boolean(const std::string& key, bool fallback) {
  bool result = fallback;
  if (present({key}) != nullptr) read(key, object()[key], result, {});
  return result;
}

std::string ExternalConfig::text(const std::string& key, const std::string& fallback) {
  std::string result = fallback;
  if (present({key}) != nullptr) read(key, object()[key], result, {});
  return result;
}

json ExternalConfig::value(const std::string& key) {
  return present({key}) != nullptr ? object()[key] : json();
}

void ExternalConfig::require(const std::string& key, const json& expected, const std::string& why) {
  if (present({key}) == nullptr || object()[key] == expected) return;
  refuse_value(key, fmt::format("must be {}, but is {}: {}", expected.dump(), shown(object()[key]), why));
}

void ExternalConfig::check_heads(const std::string& heads_key, int64_t heads, int64_t width) {
  if (width % heads != 0) refuse_value(heads_key, fmt::format("must divide the width {}, but is {}", width, heads));
  require("head_dim", width / heads, "the heads of Tamis's layers share the width equally");
}

void ExternalConfig::refuse_value(const std::string& key, const std::string& text) const {
  fail_at(key, name_of(key) + " " + text);
}

void ExternalConfig::finish() {
  for (const char* key : {"model_type", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"}) {
    accept(key);
  }
  refuse_other_keys(ignored_keys());
}

}  // namespace tamis::models::exchange

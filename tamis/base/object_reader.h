#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tamis/base/error.h"

namespace tamis {

/// The values that a key accepts. Numbers, also those in lists, lie in [least, most], or in (least, most] if
/// `above_least`. Strings are one of `choices`, unless that is empty.
struct Allowed {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
  std::vector<std::string> choices = {};
  bool above_least = false;
};

/// Reads the keys of a JSON object into typed variables and checks them. Configurations of models, tables of recipes
/// (TOML) and trainer.json are all read by it; the derived classes define only how errors name a key.
class ObjectReader {
 public:
  virtual ~ObjectReader() = default;
  ObjectReader(const ObjectReader&) = delete;
  ObjectReader& operator=(const ObjectReader&) = delete;

  /// Reads `key` into `value`, which is unchanged when the key is absent. T is bool, int64_t, double, std::string,
  /// std::array<double, 2>, or a vector of int64_t, double or std::string; a single value is accepted for a vector of
  /// one. Throws when the value has another type or is not allowed.
  template <typename T>
  void operator()(const std::string& key, T& value, const Allowed& allowed = {}) {
    accept(key);
    if (object_.contains(key)) read(key, object_[key], value, allowed);
  }

  /// Marks a key as known that is read by other code.
  void accept(const std::string& key);

  /// Throws when the object has a key that was neither read nor accepted nor is in `ignored`; the text suggests the
  /// closest of those read or accepted and lists them.
  void refuse_other_keys(std::span<const std::string> ignored = {}) const;

 protected:
  /// `object` must outlive the reader.
  explicit ObjectReader(const nlohmann::json& object) : object_(object) {}

  const nlohmann::json& object() const { return object_; }

  /// Throws when the value is not an object.
  void check_object(const std::string& name) const;

  void read(const std::string& key, const nlohmann::json& from, bool& value, const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, int64_t& value, const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, double& value, const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, std::string& value, const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, std::array<double, 2>& value,
            const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, std::vector<int64_t>& value,
            const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, std::vector<double>& value,
            const Allowed& allowed) const;
  void read(const std::string& key, const nlohmann::json& from, std::vector<std::string>& value,
            const Allowed& allowed) const;

  /// Throws error_at(key, text).
  [[noreturn]] void fail_at(const std::string& key, const std::string& text) const { throw error_at(key, text); }
  /// Throws `KEY must be EXPECTED, but is VALUE`.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const nlohmann::json& value) const;

 private:
  /// The name of a key in errors, such as `train.lr`.
  virtual std::string name_of(const std::string& key) const = 0;
  /// What a key's choices are called in `unknown schedule "cosin"`.
  virtual std::string kind_of_choice(const std::string& key) const = 0;
  /// What keys are called in `unknown key of [train] "stesp"`.
  virtual std::string kind_of_key() const = 0;
  /// The error, with the position of the key in its file if that is known. `key` is empty for the whole object.
  virtual Error error_at(const std::string& key, const std::string& text) const = 0;

  template <typename T>
  void read_list(const std::string& key, const nlohmann::json& from, std::vector<T>& list,
                 const Allowed& allowed) const;

  const nlohmann::json& object_;
  std::vector<std::string> known_;
};

}  // namespace tamis

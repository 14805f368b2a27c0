#include "tamis/base/object_reader.h"

#include <gtest/gtest.h>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"

namespace tamis {
namespace {

using nlohmann::json;

class TestReader : public ObjectReader {
 public:
  explicit TestReader(const json& object) : ObjectReader(object) { check_object("table"); }

 private:
  std::string name_of(const std::string& key) const override { return "table." + key; }
  std::string kind_of_choice(const std::string& key) const override { return key; }
  std::string kind_of_key() const override { return "key"; }
  Error error_at(const std::string&, const std::string& text) const override { return Error(ExitCode::kUsage, text); }
};

template <typename T>
T read(const json& object, T value, const Allowed& allowed = {}) {
  TestReader reader(object);
  reader("key", value, allowed);
  reader.refuse_other_keys();
  return value;
}

template <typename T>
std::string refusal(const json& object, T value, const Allowed& allowed = {}) {
  return testing::error_of([&] { read(object, value, allowed); }).second;
}

TEST(ObjectReader, ReadsEveryType) {
  EXPECT_EQ(read({{"key", true}}, false), true);
  EXPECT_EQ(read({{"key", -7}}, int64_t{1}), -7);
  EXPECT_EQ(read({{"key", 2}}, 0.5), 2.0);
  EXPECT_EQ(read({{"key", "text"}}, std::string()), "text");
  EXPECT_EQ(read({{"key", {0.5, 2}}}, std::array<double, 2>()), (std::array<double, 2>{0.5, 2}));
  EXPECT_EQ(read({{"key", {1, 2, 3}}}, std::vector<int64_t>{9}), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(read({{"key", 3}}, std::vector<double>()), std::vector<double>{3});
  EXPECT_EQ(read({{"key", "a"}}, std::vector<std::string>{"b", "c"}), std::vector<std::string>{"a"});
}

TEST(ObjectReader, AnAbsentKeyLeavesTheValueUnchanged) {
  EXPECT_EQ(read(json::object(), int64_t{42}), 42);
}

TEST(ObjectReader, RefusesOtherTypes) {
  EXPECT_EQ(refusal({{"key", 1}}, false), "table.key must be true or false, but is 1");
  EXPECT_EQ(refusal({{"key", 1.5}}, int64_t{0}), "table.key must be a whole number, but is 1.5");
  EXPECT_EQ(refusal({{"key", nullptr}}, int64_t{0}), "table.key must be a whole number, but is null");
  EXPECT_EQ(refusal({{"key", "1"}}, 0.0), "table.key must be a number, but is \"1\"");
  EXPECT_EQ(refusal({{"key", 1}}, std::string()), "table.key must be a string, but is 1");
  EXPECT_EQ(refusal({{"key", {1, 2, 3}}}, std::array<double, 2>()),
            "table.key must be a list of two numbers, but is [1,2,3]");
  EXPECT_EQ(refusal({{"key", "1"}}, std::vector<double>()), "table.key must be a list of numbers, but is \"1\"");
  EXPECT_EQ(refusal({{"key", 1}}, std::vector<std::string>()), "table.key must be a list of strings, but is 1");
  EXPECT_EQ(refusal({{"key", {1, "2"}}}, std::vector<int64_t>()), "table.key must be a whole number, but is \"2\"");
}

TEST(ObjectReader, RefusesNumbersOutOfRange) {
  EXPECT_EQ(refusal({{"key", 0}}, int64_t{1}, {.least = 1, .most = 8}),
            "table.key must be a whole number from 1 to 8, but is 0");
  EXPECT_EQ(refusal({{"key", {1, 9}}}, std::vector<int64_t>(), {.least = 1, .most = 8}),
            "table.key must be a whole number from 1 to 8, but is 9");
  EXPECT_EQ(refusal({{"key", -1}}, 0.0, {.least = 0}), "table.key must be a number of at least 0, but is -1");
  EXPECT_EQ(refusal({{"key", 0}}, 1.0, {.least = 0, .above_least = true}),
            "table.key must be a number above 0, but is 0");
  EXPECT_EQ(refusal({{"key", 0}}, 1.0, {.least = 0, .most = 1, .above_least = true}),
            "table.key must be a number above 0 and at most 1, but is 0");
  EXPECT_EQ(read({{"key", 1}}, 0.5, {.least = 0, .most = 1, .above_least = true}), 1.0);
}

TEST(ObjectReader, RefusesIntegersBeyond64Bits) {
  EXPECT_EQ(refusal({{"key", uint64_t{1} << 63}}, int64_t{0}),
            "table.key must be a whole number, but is 9223372036854775808");
  EXPECT_EQ(read({{"key", (uint64_t{1} << 63) - 1}}, int64_t{0}), std::numeric_limits<int64_t>::max());
}

TEST(ObjectReader, SuggestsTheClosestChoiceAndKey) {
  EXPECT_EQ(refusal({{"key", "cosin"}}, std::string(), {.choices = {"constant", "cosine"}}),
            "unknown key \"cosin\"; did you mean \"cosine\"? Known: constant, cosine");
  EXPECT_EQ(refusal({{"kye", 1}}, int64_t{0}), "unknown key \"kye\"; did you mean \"key\"? Known: key");
}

TEST(ObjectReader, RefusesWhatIsNotAnObject) {
  EXPECT_EQ(refusal(json::array(), int64_t{0}), "table: expected a table of keys, but got []");
}

}  // namespace
}  // namespace tamis

#include "tamis/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"

namespace tamis {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const std::string& text, int most_levels = kMostJsonLevels) {
  const auto [code, message] = testing::error_of([&] { parse_json(text, "file", most_levels); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(message, Not(HasSubstr("json.exception")));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 200u);
  return message;
}

TEST(Json, AgreesWithTheLibrary) {
  for (const char* text : {"null", "-3", "18446744073709551615", "1.5e3", R"("a\u00e9\n")", "[]", "{}",
                           " [1, [2, {}], \"x\"] ", R"({"b": {"c": [true, false, null], "d": {}}, "a": -0.5})"}) {
    EXPECT_EQ(parse_json(text, "file"), json::parse(text)) << text;
    EXPECT_EQ(try_parse_json(text), json::parse(text)) << text;
  }
}

TEST(Json, DeepNestingIsRefusedBeforeItOverflowsTheStack) {
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_NO_THROW(parse_json(nested(kMostJsonLevels), "file"));
  EXPECT_EQ(refusal(nested(kMostJsonLevels + 1)), "file: expected at most 64 levels of nesting, but there are more");
  EXPECT_THAT(refusal(nested(1'000'000)), HasSubstr("at most 64 levels"));
  EXPECT_THAT(refusal(R"({"a":{"b":1}})", 1), HasSubstr("at most 1 levels"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  EXPECT_THAT(refusal(objects), HasSubstr("at most 64 levels"));
  EXPECT_TRUE(try_parse_json(nested(1'000'000)).is_discarded());
}

TEST(Json, AByteOrderMarkIsRefused) {
  EXPECT_EQ(refusal("\xef\xbb\xbf{}"), "file: is not JSON: begins with a byte order mark; expected plain UTF-8");
  EXPECT_EQ(refusal("\xef\xbb{}"), R"(file: is not JSON: line 1, column 3: "{}" is not expected there)");
}

TEST(Json, NulsAreRefused) {
  EXPECT_EQ(refusal(std::string("{}\0 anything", 12)), "file: is not JSON: byte 2 is a NUL");
  EXPECT_EQ(refusal(std::string("[\"a\0\"]", 6)), "file: is not JSON: byte 3 is a NUL");
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_EQ(refusal(R"({"a": 1, "b": {"a": 2}, "a": 3})"), R"(file: the key "a" comes twice)");
  EXPECT_EQ(refusal(R"([{"x\u001b[2J": {"y": 1}, "x\u001b[2J": 1}])"), R"(file: the key "x\u001b[2J" comes twice)");
}

TEST(Json, ReportsThePositionOfASyntaxError) {
  EXPECT_EQ(refusal(""), "file: is not JSON: it is empty");
  EXPECT_EQ(refusal("  "), "file: is not JSON: it ends too early");
  EXPECT_EQ(refusal(R"({"a": [1, 2)"), "file: is not JSON: it ends too early");
  EXPECT_EQ(refusal("{\n  \"a\": 1,\n  b\n}"), R"(file: is not JSON: line 3, column 3: "b" is not expected there)");
  EXPECT_EQ(refusal("[1] 2"), R"(file: is not JSON: line 1, column 5: "2" is not expected there)");
  EXPECT_EQ(refusal("[1e999]"), R"(file: is not JSON: the number "1e999" is too large)");
  EXPECT_THAT(refusal("[\"\xff\"]"), HasSubstr("is not expected there"));
  EXPECT_THAT(refusal("[\"" + std::string(1'000'000, 'x') + "\x01\"]"), HasSubstr("column 1000003: "));
}

TEST(Json, ItemsAreStreamedOneByOne) {
  std::vector<std::string> items;
  parse_json_object(R"({"b": 1, "a": {"x": [1, {"y": 2}]}, "c": []})", "file", 4,
                    [&](const std::string& key, const json& value) { items.push_back(key + "=" + value.dump()); });
  EXPECT_THAT(items, ElementsAre("b=1", R"(a={"x":[1,{"y":2}]})", "c=[]"));
  std::vector<json> entries;
  parse_json_list(R"([1, [2], "x"])", "file", 2, [&](const json& value) { entries.push_back(value); });
  EXPECT_THAT(entries, ElementsAre(1, json::parse("[2]"), "x"));

  const auto refused = [](const std::string& text, int levels) {
    return testing::error_of([&] { parse_json_object(text, "file", levels, [](const std::string&, const json&) {}); })
        .second;
  };
  EXPECT_EQ(refused("[]", 3), "file: expected an object, but it is a list");
  EXPECT_EQ(refused("3", 3), "file: expected an object, but it is a single value");
  EXPECT_EQ(refused(R"({"a":1,"b":2,"a":3})", 3), R"(file: the key "a" comes twice)");
  EXPECT_EQ(refused(R"({"a":{"b":1,"b":2}})", 3), R"(file: the key "b" comes twice)");
  EXPECT_THAT(refused(R"({"a":[[1]]})", 2), HasSubstr("at most 2 levels"));
  EXPECT_THAT(refused(
                  "{\"a\": [0" +
                      [] {
                        std::string many;
                        for (int i = 0; i < 100'000; ++i) many += ",0";
                        return many;
                      }() +
                      "]}",
                  3),
              HasSubstr("\"a\" holds more than 100000 values"));
}

TEST(Json, FilesAreReadWhole) {
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(read_json(directory.write("a.json", R"({"a": 1})")), json({{"a", 1}}));
  const auto path = directory.write("b.json", "{");
  EXPECT_EQ(testing::error_of([&] { read_json(path); }).second, path.string() + ": is not JSON: it ends too early");
  std::filesystem::resize_file(path, (16 << 20) + 1);
  EXPECT_THAT(testing::error_of([&] { read_json(path); }).second, HasSubstr("expected at most 16777216 bytes of JSON"));
}

TEST(Json, TextAtAcceptsOnlyStrings) {
  const json object = {{"a", "x"}, {"b", 3}};
  EXPECT_EQ(text_at(object, "a"), "x");
  EXPECT_EQ(text_at(object, "b", "none"), "none");
  EXPECT_EQ(text_at(object, "c", "none"), "none");
}

TEST(Json, ShownValuesAreShortAndPrintable) {
  EXPECT_EQ(shown("a\x1b\n"), R"("a\u001b\n")");
  EXPECT_EQ(shown(json::parse(R"({"a": [1, "\u001b"]})")), R"({"a":[1,"\u001b"]})");
  EXPECT_EQ(shown(json("\xff")), R"("\xff")");
  EXPECT_EQ(shown(-std::numeric_limits<double>::infinity()), "-inf");  // has no representation in JSON
  EXPECT_LT(shown(json(std::vector<int>(100'000))).size(), 90u);
}

}  // namespace
}  // namespace tamis

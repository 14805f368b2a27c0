#include "tamis/train/toml.h"

#include <gtest/gtest.h>

#include "tamis/base/testing.h"

namespace tamis::train {
namespace {

using nlohmann::json;
using tamis::testing::TemporaryDirectory;

json round_trip(const json& values) {
  const TemporaryDirectory directory;
  return read_toml(directory.write("file.toml", to_toml(values))).values;
}

TEST(Toml, WritingAndReadingRoundTrips) {
  const json values = {
      {"top", 1},
      {"a", {{"number", 0.1}, {"small", 1e-8}, {"large", 1e38}, {"whole", 2.0}, {"list", {1, 2}}}},
      {"a b", {{"text", "two\nlines, \"quotes\", \\, \t, \u00e9"}, {"yes", true}, {"empty", json::array()}}},
      {"deep", {{"er", {{"er", {{"files", {"x", "y"}}}}}}}}};
  EXPECT_EQ(round_trip(values), values);
}

TEST(Toml, NumbersAreShort) {
  EXPECT_EQ(to_toml({{"train", {{"betas", {0.9, 0.95}}, {"eps", 1e-8}}}}),
            "[train]\nbetas = [0.9,0.95]\neps = 1e-08\n");
}

TEST(Toml, PositionsAreLines) {
  const TemporaryDirectory directory;
  const auto file = directory.write("file.toml", "[a]\n\nb = 1\n[a.c]\nd = [1,\n  2]\n");
  const TomlDocument document = read_toml(file);
  EXPECT_EQ(document.position("a.b"), file.string() + ":3");
  EXPECT_EQ(document.position("a.c.d.1"), file.string() + ":6");
  EXPECT_EQ(document.position("a.c.unknown"), file.string() + ":4");
}

}  // namespace
}  // namespace tamis::train

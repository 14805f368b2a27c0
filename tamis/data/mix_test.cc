#include "tamis/data/mix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/error.h"

namespace tamis::data {
namespace {

/// A source whose examples contain its number and the index.
class Constant : public Source {
 public:
  explicit Constant(int64_t token) : token_(token) {}
  std::string name() const override { return "constant"; }
  Example example(uint64_t index, int64_t length) const override {
    return {.tokens = std::vector<int64_t>(length, token_),
            .targets = std::vector<int64_t>(length, static_cast<int64_t>(index))};
  }

 private:
  int64_t token_;
};

MixSource mix_of(const std::vector<double>& weights, uint64_t seed) {
  std::vector<MixPart> parts;
  for (const double weight : weights) {
    parts.push_back({std::make_unique<Constant>(static_cast<int64_t>(parts.size())), weight});
  }
  return MixSource(std::move(parts), seed);
}

TEST(Mix, DrawsPartsWithTheirWeights) {
  const auto mix = mix_of({3, 1, 4}, 1);
  EXPECT_EQ(mix.name(), "mix(0.375 constant, 0.125 constant, 0.5 constant)");
  std::vector<double> share(3);
  for (uint64_t index = 0; index < 20'000; ++index) {
    const Example example = mix.example(index, 2);
    ASSERT_EQ(example.tokens[0], static_cast<int64_t>(mix.part(index)));
    ASSERT_EQ(example.targets[0], static_cast<int64_t>(index));
    share[example.tokens[0]] += 1 / 20'000.0;
  }
  EXPECT_NEAR(share[0], 0.375, 0.015);
  EXPECT_NEAR(share[1], 0.125, 0.015);
  EXPECT_NEAR(share[2], 0.5, 0.015);
}

TEST(Mix, RefusesBadWeights) {
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(mix_of({1, weight}, 1), Error) << weight;
  }
  EXPECT_THROW(mix_of({}, 1), Error);
}

}  // namespace
}  // namespace tamis::data

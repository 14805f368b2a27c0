#include "tamis/base/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tamis {
namespace {

const std::vector<std::string> kModels = {"multiscreen", "swax", "transformer"};

TEST(Names, EditDistanceCountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("multiscreen", "mulitscreen"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Names, NearNamesAreGuessed) {
  EXPECT_EQ(unknown_name("model", "multiscren", kModels),
            "unknown model \"multiscren\"; did you mean \"multiscreen\"? Known: multiscreen, swax, transformer");
}

TEST(Names, FarNamesAreNot) {
  EXPECT_EQ(unknown_name("model", "rwkv", kModels), "unknown model \"rwkv\". Known: multiscreen, swax, transformer");
}

}  // namespace
}  // namespace tamis

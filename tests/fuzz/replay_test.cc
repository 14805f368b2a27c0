// Runs every target on its corpus, which contains the inputs of earlier findings.

#include <gtest/gtest.h>

#include <filesystem>

#include "tamis/base/files.h"
#include "tests/fuzz/targets.h"

namespace tamis::fuzz {
namespace {

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, HasNoFindings) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TAMIS_FUZZ_CORPUS "/" + GetParam().name)) {
    SCOPED_TRACE(entry.path().string());
    EXPECT_NO_THROW(run(GetParam(), read_file(entry.path())));
    ++files;
  }
  EXPECT_GT(files, 3) << "a corpus is missing";
}

INSTANTIATE_TEST_SUITE_P(Readers, Corpus, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tamis::fuzz

#include "tamis/base/instruction_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"

namespace tamis {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

/// Sets environment variables for its lifetime; nullptr unsets.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      const char* before = std::getenv(name);
      before_.emplace_back(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const char* name, const char* value) {
    value == nullptr ? unsetenv(name) : setenv(name, value, /*overwrite=*/1);
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST(InstructionSet, IsAtMostWhatTheVariableAllows) {
  const auto most = max_instruction_set();
  EXPECT_LE(instruction_set(), most.value_or(InstructionSet::kAvx512Bf16));
  EXPECT_EQ(instruction_set(), instruction_set());
}

TEST(InstructionSet, ReadsItsVariable) {
  for (const auto& [value, expected] : {std::pair<const char*, std::optional<InstructionSet>>{nullptr, std::nullopt},
                                        {"", std::nullopt},
                                        {"avx2", InstructionSet::kAvx2},
                                        {"avx512", InstructionSet::kAvx512}}) {
    const Environment environment(Variables{{"TAMIS_MAX_ISA", value}});
    EXPECT_EQ(max_instruction_set(), expected);
  }
}

TEST(InstructionSet, RefusesAnUnknownNameInOneLine) {
  const Environment environment(Variables{{"TAMIS_MAX_ISA", "avx1024"}});
  try {
    prepare_backends();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_STREQ(error.what(), "TAMIS_MAX_ISA must be avx2 or avx512, or unset, but is \"avx1024\"");
  }
}

TEST(InstructionSet, ReachesEveryBackend) {
  const char *aten = "ATEN_CPU_CAPABILITY", *onednn = "ONEDNN_MAX_CPU_ISA", *mkl = "MKL_ENABLE_INSTRUCTIONS";
  const Environment before(
      Variables{{"TAMIS_MAX_ISA", "avx2"}, {aten, nullptr}, {onednn, nullptr}, {mkl, nullptr}, {"MKL_CBWR", nullptr}});
  prepare_backends();
  EXPECT_STREQ(std::getenv(aten), "avx2");
  EXPECT_STREQ(std::getenv(onednn), "AVX2");
  EXPECT_STREQ(std::getenv(mkl), "AVX2");
#if defined(__x86_64__)
  // The instruction set of the process is known already: AVX2 or newer.
  const char* branch = std::getenv("MKL_CBWR");
  if (__builtin_cpu_is("intel") && instruction_set() >= InstructionSet::kAvx2) {
    ASSERT_NE(branch, nullptr);
    EXPECT_THAT(branch, ::testing::AnyOf(::testing::StrEq("AVX2,STRICT"), ::testing::StrEq("AVX512,STRICT")));
  } else {
    EXPECT_EQ(branch, nullptr) << "MKL accepts only COMPATIBLE there, which is slow";
  }
#endif
}

TEST(InstructionSet, AChosenBranchOfMklIsKept) {
  const Environment before(Variables{{"MKL_CBWR", "COMPATIBLE"}});
  prepare_backends();
  EXPECT_STREQ(std::getenv("MKL_CBWR"), "COMPATIBLE");
}

}  // namespace
}  // namespace tamis

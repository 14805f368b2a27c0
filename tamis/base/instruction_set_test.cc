#include "tamis/base/instruction_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"

namespace tamis {
namespace {

#if defined(__aarch64__)
constexpr bool kArm = true;
#else
constexpr bool kArm = false;
#endif

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
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    const Environment environment(Variables{{"TAMIS_MAX_ISA", value}});
    EXPECT_EQ(max_instruction_set(), std::nullopt);
  }
  using enum InstructionSet;
  for (const InstructionSet set : kArm ? std::vector{kNeon} : std::vector{kAvx2, kAvx512}) {
    const std::string name = to_string(set);
    const Environment environment(Variables{{"TAMIS_MAX_ISA", name.c_str()}});
    EXPECT_EQ(max_instruction_set(), set);
  }
}

TEST(InstructionSet, RefusesAnUnknownNameInOneLine) {
  const Environment environment(Variables{{"TAMIS_MAX_ISA", "avx1024"}});
  try {
    prepare_backends();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    const std::string known = kArm ? "neon" : "avx2 or avx512";
    EXPECT_EQ(error.what(), "TAMIS_MAX_ISA must be " + known + ", or unset, but is \"avx1024\"");
  }
}

TEST(InstructionSet, ReachesEveryBackend) {
  const char *aten = "ATEN_CPU_CAPABILITY", *onednn = "ONEDNN_MAX_CPU_ISA", *mkl = "MKL_ENABLE_INSTRUCTIONS";
  const Environment before(Variables{{"TAMIS_MAX_ISA", kArm ? "neon" : "avx2"},
                                     {aten, nullptr},
                                     {onednn, nullptr},
                                     {mkl, nullptr},
                                     {"MKL_CBWR", nullptr}});
  prepare_backends();
  EXPECT_STREQ(std::getenv(aten), kArm ? "default" : "avx2");
  EXPECT_STREQ(std::getenv(onednn), kArm ? "ADVANCED_SIMD" : "AVX2");
  EXPECT_STREQ(std::getenv(mkl), kArm ? "" : "AVX2");
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

TEST(InstructionSet, HasNoBFloat16WhereItsProductsAreSlow) {
  std::ifstream file("/proc/cpuinfo");
  const std::string processor(std::istreambuf_iterator<char>(file), {});
  const auto says = [&](const char* word) { return processor.find(word) != std::string::npos; };
  if (!says("GenuineIntel") || !says(" avx512_fp16") || says(" amx_bf16")) {
    GTEST_SKIP() << "this processor is no Sapphire Rapids or later, or has AMX";
  }
  EXPECT_LT(instruction_set(), InstructionSet::kAvx512Bf16);
}

TEST(InstructionSet, AChosenBranchOfMklIsKept) {
  const Environment before(Variables{{"MKL_CBWR", "COMPATIBLE"}});
  prepare_backends();
  EXPECT_STREQ(std::getenv("MKL_CBWR"), "COMPATIBLE");
}

}  // namespace
}  // namespace tamis

#include "tamis/nn/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/random.h"

namespace tamis::nn {
namespace {

using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("tamis-safetensors-" + std::to_string(getpid()));
    make_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path path() const { return directory_ / "x.safetensors"; }

  void write(const std::string& header, const std::string& data) const {
    const uint64_t size = header.size();
    write_bytes(std::string(reinterpret_cast<const char*>(&size), 8) + header + data);
  }
  void write_bytes(const std::string& bytes) const {
    std::filesystem::remove(path());  // truncating instead would make some file systems flush every time
    FileWriter file(path());
    file.write(bytes);
  }

  /// What the file is refused with.
  std::string refusal() const {
    try {
      const SafetensorsFile file(path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      EXPECT_THAT(error.what(), HasSubstr("x.safetensors: ")) << "names the file";
      return error.what();
    }
    return "accepted";
  }
  std::string refusal(const std::string& header, const std::string& data) const {
    write(header, data);
    return refusal();
  }

  std::filesystem::path directory_;
};

std::vector<NamedTensor> some_tensors() {
  at::manual_seed(1);
  const at::Tensor wide = at::randn({6, 5});
  return {{"matrix", wide},
          {"a view of it", wide.t().slice(0, 1, 4)},
          {"scalar", at::full({}, 3.5)},
          {"nothing", at::empty({0, 3})},
          {"b", wide.to(at::kBFloat16)},
          {"h", wide.to(at::kHalf)},
          {"d", wide.to(at::kDouble)},
          {"l", at::arange(7)},
          {"u8", at::arange(9).to(at::kByte)}};
}

TEST_F(Safetensors, ComesBackAsItWas) {
  const auto tensors = some_tensors();
  write_safetensors(path(), tensors, {{"format", "pt"}, {"step", "17"}});
  const SafetensorsFile file(path());
  EXPECT_EQ(file.names().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("step"), "17");
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(file.contains(name));
    EXPECT_EQ(file.shape(name), tensor.sizes());
    EXPECT_EQ(file.dtype(name), tensor.scalar_type());
    EXPECT_TRUE(file.tensor(name).equal(tensor)) << name;
  }
  EXPECT_FALSE(file.contains("other"));
  try {
    file.tensor("other");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("x.safetensors: has no tensor \"other\""));
  }
}

TEST_F(Safetensors, DataIsAligned) {
  write_safetensors(path(), some_tensors());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, read_file(path()).data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
}

TEST_F(Safetensors, ReadsAFileThatOthersWrote) {
  // Offsets out of the header's order, no metadata, padding at the end of the header.
  write(
      R"({"b":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      std::string("\0\0\x80\x3f\x05\0\0\0\0\0\0\0", 12));
  const SafetensorsFile file(path());
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(file.tensor("a").item<float>(), 1.0f);
  EXPECT_EQ(file.tensor("b")[0].item<int64_t>(), 5);
}

TEST_F(Safetensors, SaysWhatIsWrongWithAFile) {
  const std::string four(4, '\0'), eight(8, '\0');
  const auto one = [](const std::string& description) { return R"({"a":)" + description + "}"; };

  write_bytes("abc");
  EXPECT_THAT(refusal(), HasSubstr("has only 3 bytes"));
  write_bytes("{\"a\": 1} is not one");
  EXPECT_THAT(refusal(), HasSubstr("is it truncated, or no safetensors file?"));
  write_bytes(std::string(8, '\xff') + "{}");
  EXPECT_THAT(refusal(), HasSubstr("should take 18446744073709551615 bytes"));

  EXPECT_THAT(refusal("{", ""), HasSubstr("header: is not JSON"));
  EXPECT_THAT(refusal("[]", ""), HasSubstr("expected an object, but it is a list"));
  EXPECT_THAT(refusal("{\"\xff\":1}", ""), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("{\"a\":" + std::string(100'000, '['), ""), HasSubstr("at most 3 levels"));
  EXPECT_THAT(refusal(one("[[[[1]]]]"), ""), HasSubstr("at most 3 levels"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                      eight),
              HasSubstr("the key \"a\" comes twice"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"), four),
              HasSubstr("the key \"dtype\" comes twice"));
  EXPECT_THAT(refusal(one("3"), ""), HasSubstr("tensor \"a\": expected the keys dtype, shape and data_offsets"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"offsets":[0,4]})"), four),
              HasSubstr("data_offsets is missing"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})"), four),
              HasSubstr("dtype must be one of"));
  EXPECT_THAT(refusal(one(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})"), four), HasSubstr("dtype must be one of"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), four), HasSubstr("whole numbers"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), four), HasSubstr("whole numbers"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":"1","data_offsets":[0,4]})"), four), HasSubstr("must be a list"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), ""),
              HasSubstr("fits 63 bits"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})"), ""),
              HasSubstr("fits 63 bits"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4]})"), four), HasSubstr("two whole numbers"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), four), HasSubstr("need 4 bytes"));
  EXPECT_THAT(refusal(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})"), eight), HasSubstr("need 4 bytes"));

  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(refusal(two("[0,4]", "[4,8]"), eight), "accepted");
  EXPECT_THAT(refusal(two("[0,4]", "[2,6]"), eight), HasSubstr("tensor \"b\" must begin at byte 4"));
  EXPECT_THAT(refusal(two("[0,4]", "[2,6]"), eight), HasSubstr("overlaps it"));
  EXPECT_THAT(refusal(two("[0,4]", "[8,12]"), std::string(12, '\0')), HasSubstr("leaves a hole"));
  EXPECT_THAT(refusal(two("[0,4]", "[4,8]"), four),
              HasSubstr("need 8 bytes of data, but the file has 4; is it truncated?"));
  EXPECT_THAT(refusal(two("[0,4]", "[4,8]"), std::string(9, '\0')), HasSubstr("has 1 more at its end"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", ""), HasSubstr("strings only"));
}

TEST_F(Safetensors, NamesTheMissingFileAndTheDirectory) {
  EXPECT_THAT(refusal(), HasSubstr("No such file"));
  make_directories(path());
  EXPECT_THAT(refusal(), HasSubstr("but it is a directory"));
}

TEST_F(Safetensors, AMessageShowsNoHostileName) {
  const std::string text = refusal(fmt::format(R"({{"\u001b[2J{:x>1000}":3}})", ""), "");
  EXPECT_THAT(text, HasSubstr(R"("\u001b[2Jxxx)"));
  EXPECT_LT(text.size(), 400u);
}

constexpr size_t kMostTensors = 100'000, kMostHeaderBytes = 32 << 20;

std::string long_name(size_t tensor, size_t bytes) {
  return fmt::format("t{:0>{}}", tensor, bytes - 1);
}

/// A header of `tensors` tensors of one byte each, with names of `name_bytes` bytes.
std::string large_header(size_t tensors, size_t name_bytes) {
  std::string header;
  for (size_t i = 0; i < tensors; ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i == 0 ? '{' : ',',
                          long_name(i, name_bytes), i, i + 1);
  }
  return header + "}";
}

TEST_F(Safetensors, TheLargestHeaderTakesLinearTime) {
  constexpr size_t kFewer = kMostTensors / 5, kNameBytes = 270;
  const auto processor_time = [&] {  // of opening the file
    const std::clock_t begun = std::clock();
    const SafetensorsFile file(path());
    return static_cast<double>(std::clock() - begun);
  };
  write(large_header(kFewer, kNameBytes), std::string(kFewer, 'x'));
  const double few = std::min({processor_time(), processor_time(), processor_time()});
  std::string largest = large_header(kMostTensors, kNameBytes);
  ASSERT_GT(largest.size(), kMostHeaderBytes * 95 / 100);
  largest.resize(kMostHeaderBytes, ' ');
  write(largest, std::string(kMostTensors, 'x'));
  const std::clock_t begun = std::clock();
  const SafetensorsFile file(path());
  const auto all = static_cast<double>(std::clock() - begun);
  EXPECT_LT(all, 12 * few) << "five times the tensors take 5 times as long in linear time, 25 times in quadratic time";
  EXPECT_EQ(file.names().size(), kMostTensors);
  EXPECT_EQ(file.names().back(), long_name(99'999, kNameBytes));
  EXPECT_EQ(file.tensor(long_name(77'777, kNameBytes)).item<int>(), 'x');
  EXPECT_THAT(refusal(largest + " ", std::string(kMostTensors, 'x')), HasSubstr("a header at most 33554432"));
}

TEST_F(Safetensors, AHeaderWithMoreTensorsIsRefusedAtTheFirstThatIsTooMuch) {
  const auto processor_time = [&](size_t tensors) {  // of the refusal
    const std::string header = large_header(tensors, /*name_bytes=*/7);
    EXPECT_LT(header.size(), kMostHeaderBytes);
    write(header, std::string(tensors, 'x'));
    const std::clock_t begun = std::clock();
    EXPECT_THAT(refusal(), HasSubstr("at most 100000 tensors"));
    return static_cast<double>(std::clock() - begun);
  };
  const double few = processor_time(kMostTensors + 1), most = processor_time(490'000);
  EXPECT_LT(most, 3 * few) << "the rest is not read: five times the tensors take equally long";
}

TEST_F(Safetensors, AListWithoutEndIsRefusedBeforeItFillsMemory) {
  std::string many = "0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[)" + many + "]}}", ""), HasSubstr("more than 100000 values"));
}

TEST_F(Safetensors, DamageIsRefusedOrHarmless) {
  write_safetensors(path(), some_tensors(), {{"format", "pt"}});
  const std::string whole = read_file(path());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  Random random({42});
  int refused = 0;
  constexpr int kTrials = 3000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string bytes = whole;
    const uint64_t changes = 1 + random.below(3);
    for (uint64_t c = 0; c < changes; ++c) {
      const size_t at = random.below(8 + header_bytes);
      switch (random.below(3)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
          break;
        case 1:
          bytes[at] = "0123456789[]{},:\""[random.below(17)];
          break;
        default:
          bytes.resize(random.below(bytes.size()) + 1);
          bytes.resize(std::max(bytes.size(), at + 1));
          break;
      }
    }
    write_bytes(bytes);
    try {
      const SafetensorsFile file(path());
      for (const std::string& name : file.names()) EXPECT_EQ(file.tensor(name).sizes(), file.shape(name));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      ++refused;
    }
  }
  EXPECT_GT(refused, kTrials / 2);
}

}  // namespace
}  // namespace tamis::nn

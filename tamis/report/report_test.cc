#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/models/model.h"
#include "tamis/report/base64.h"
#include "tamis/report/inspect.h"
#include "tamis/report/map_picture.h"
#include "tamis/report/page.h"
#include "tamis/report/relevance_data.h"
#include "tamis/report/run_data.h"
#include "tamis/report/web_files.h"

namespace tamis::report {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Base64, MatchesTheVectorsOfTheStandard) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(std::string("\xff\0\xfe", 3)), "/wD+");
}

const Mechanism kScreening = {"screening", models::Support::kSelected};
const Mechanism kSoftmax = {"softmax attention", models::Support::kWindow};

/// One head of 4 tokens with a window of 2.5 tokens: distances 0, 1, 2.
models::RelevanceMap small_map() {
  const at::Tensor trim_HTT = at::zeros({1, 4, 4});
  trim_HTT[0][0][0] = 1.0f;
  trim_HTT[0][2][0] = 0.25f;
  trim_HTT[0][3][3] = 1e-20f;  // barely accepted
  models::RelevanceMap map;
  map.layer = 3;
  map.trim = trim_HTT;
  map.similarity = trim_HTT;
  map.softmask = at::ones({1, 4, 4});
  map.relevance = trim_HTT.clone();
  map.window = {2.5};
  map.accept = {0.5};
  return map;
}

/// A head of softmax attention: causal rows with a sum of 1.
models::RelevanceMap softmax_map(int64_t T) {
  const at::Tensor scores_TT = 4 * at::randn({T, T}, at::make_generator<at::CPUGeneratorImpl>(7));
  models::RelevanceMap map;
  map.relevance = scores_TT.masked_fill(at::ones({T, T}, at::kBool).triu(1), -INFINITY).softmax(-1).unsqueeze(0);
  map.window = {INFINITY};
  return map;
}

std::string halves(std::initializer_list<uint16_t> numbers) {
  std::string bytes;
  for (const uint16_t number : numbers) {
    bytes += static_cast<char>(number & 0xff);
    bytes += static_cast<char>(number >> 8);
  }
  return bytes;
}

TEST(EncodeMap, EncodesPairsInsideTheWindowAndRunsOfZeros) {
  const json tile = encode_map(small_map(), 0, kScreening);
  EXPECT_EQ(tile["layer"], 3);
  EXPECT_EQ(tile["head"], 0);
  EXPECT_EQ(tile["window"], 2.5);
  EXPECT_EQ(tile["accept"], 0.5);
  EXPECT_EQ(tile["mechanism"], "screening");
  EXPECT_EQ(tile["selects"], true);
  EXPECT_TRUE(tile["scale"].is_null());
  // Queries 0..3 have 1, 2, 3, 3 keys: 1 | 0 0 | 0.5 0 0 | 0 0 1e-10; positive weights remain positive.
  EXPECT_EQ(tile["numbers"], base64(halves({0x3c00, 0, 2, 0x3800, 0, 4, 1})));
  EXPECT_DOUBLE_EQ(tile["nonzero"], 3.0 / 9.0);
  EXPECT_DOUBLE_EQ(tile["keys"], 1.0);
}

TEST(EncodeMap, BreaksLongRunsOfZeros) {
  models::RelevanceMap map = small_map();
  map.window = {INFINITY};
  for (at::Tensor* tensor : {&map.trim, &map.relevance}) *tensor = at::zeros({1, 400, 400});
  const json tile = encode_map(map, 0, kScreening);
  EXPECT_TRUE(tile["window"].is_null());
  EXPECT_TRUE(tile["keys"].is_null());
  EXPECT_EQ(tile["numbers"], base64(halves({0, 65535, 0, 80200 - 65535})));
}

TEST(EncodeMap, ScalesWeightsByAPowerOfTwoToKeepPrecision) {
  models::RelevanceMap map = small_map();
  map.trim = at::Tensor();
  map.accept = {};
  map.window = {INFINITY};
  map.relevance = at::eye(4).unsqueeze(0) * 0.5;
  map.relevance[0][3][0] = 1e-8f;
  const json tile = encode_map(map, 0, kSoftmax);
  EXPECT_TRUE(tile["accept"].is_null());
  EXPECT_EQ(tile["selects"], false);
  EXPECT_DOUBLE_EQ(tile["scale"], std::ldexp(1.0, -15));
  const float stored = static_cast<float>(at::Half(1e-8f * 32768.0f)) / 32768.0f;
  EXPECT_NEAR(stored, 1e-8, 1e-11);
  EXPECT_DOUBLE_EQ(tile["nonzero"], 0.5);
}

TEST(EncodeMap, OfOtherShapesOfTrimHoldsWeightsAndNotRootsOfTrim) {
  models::RelevanceMap map = small_map();
  map.trim = at::Tensor();
  const json tile = encode_map(map, 0, kSoftmax);
  EXPECT_FALSE(tile["accept"].is_null());
  EXPECT_TRUE(tile["scale"].is_number());
}

TEST(EncodeMap, CountsTheEffectiveKeys) {
  models::RelevanceMap map;
  map.relevance = at::full({1, 8, 8}, 0.125).tril();
  map.window = {INFINITY};
  EXPECT_NEAR(encode_map(map, 0, kSoftmax)["keys"].get<double>(), 4.5, 1e-6);  // 1 to 8 keys
}

TEST(Mechanism, IsTheMixerOfTheLayer) {
  const auto of = [](json config, int64_t layer) {
    config.update({{"vocab_size", 64}, {"hidden_size", 16}, {"num_hidden_layers", 6}, {"num_attention_heads", 2}});
    return mechanism_of(models::complete_config(config), layer);
  };
  const json swax = {{"model_type", "swax"}, {"pattern", "wm"}};
  EXPECT_EQ(of(swax, 0).name, "sliding-window attention");
  EXPECT_EQ(of(swax, 3).name, "mLSTM");
  EXPECT_EQ(of(swax, 3).support, models::Support::kWindow);
  EXPECT_EQ(of({{"model_type", "transformer"}, {"pattern", "e"}}, 5).support, models::Support::kSelected);
  EXPECT_EQ(of({{"model_type", "multiscreen"}}, 1).name, "screening");
}

TEST(MapPicture, ShadesGrowWithTheWeightOnEveryScale) {
  for (const MapScale scale : {MapScale::kValue, MapScale::kRow, MapScale::kLog}) {
    double before = -1;
    for (const double weight : {1e-4, 1e-3, 0.01, 0.1, 0.5}) {
      const double shade = map_shade(weight, /*row_largest=*/0.5, /*top=*/1, scale);
      EXPECT_GT(shade, before);
      before = shade;
    }
  }
  EXPECT_DOUBLE_EQ(map_shade(0.5, 0.5, 1, MapScale::kRow), 1);
  EXPECT_DOUBLE_EQ(map_shade(0.01, 0.5, 1, MapScale::kLog), 0.5);
}

TEST(MapPicture, MarksFutureAndExactZerosAndNothingElseWithTheirColours) {
  models::RelevanceMap map = softmax_map(20);
  map.relevance[0][9][4] = 0;
  Picture picture = draw_map(map, 0, MapScale::kRow, 512);
  ASSERT_EQ(picture.width, 20);
  for (int64_t query = 0; query < 20; ++query) {
    for (int64_t key = 0; key < 20; ++key) {
      const bool zero = query == 9 && key == 4;
      EXPECT_EQ(picture.at(query, key) == kOutside, key > query);
      EXPECT_EQ(picture.at(query, key) == kZero, zero);
    }
  }
  const uint8_t* last_row = picture.pixels.data() + 19 * 20;
  EXPECT_EQ(*std::max_element(last_row, last_row + 20), 255);
}

TEST(MapPicture, ColoursByValueOnlyWhereAllIsScreening) {
  EXPECT_EQ(map_scale("auto", {kScreening, kScreening}), MapScale::kValue);
  EXPECT_EQ(map_scale("auto", {kScreening, kSoftmax}), MapScale::kLog);
  EXPECT_EQ(map_scale("row", {kScreening}), MapScale::kRow);
}

Relevance small_relevance() {
  Relevance found;
  found.tokens = {"a", "<b>", "\n", "\x01"};
  found.maps = {softmax_map(4), softmax_map(4)};
  found.maps[1].layer = 1;
  found.mechanisms = {kSoftmax, kSoftmax};
  return found;
}

TEST(MapPicture, IsAnSvgThatNamesItsScaleAndEscapesItsTokens) {
  const std::string svg = draw_maps(small_relevance(), {.file = "x.svg", .heads = {"1.0"}}, "runs/<x>");
  EXPECT_THAT(svg, HasSubstr("runs/&lt;x>"));
  EXPECT_THAT(svg, HasSubstr("&lt;b>"));
  EXPECT_THAT(svg, HasSubstr("\\x01"));
  EXPECT_THAT(svg, HasSubstr("logarithm"));
  EXPECT_THAT(svg, HasSubstr("softmax attention"));
  EXPECT_THAT(svg, Not(HasSubstr("rejected")));
  EXPECT_THAT(svg, HasSubstr("data:image/png;base64,"));
}

TEST(MapPicture, IsAPngWithAllMapsSideBySide) {
  const std::string png = draw_maps(small_relevance(), {.file = "x.png"}, "x");
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  const auto size = [&](size_t at) {
    return static_cast<uint8_t>(png[at + 2]) << 8 | static_cast<uint8_t>(png[at + 3]);
  };
  EXPECT_EQ(size(16), 128);  // a head
  EXPECT_EQ(size(20), 264);  // two layers of 128 and a gap
}

TEST(MapPicture, RefusesATileThatTheModelDoesNotHave) {
  for (const char* tile : {"0.1", "2", "x", "1.", "-1.0"}) {
    SCOPED_TRACE(tile);
    EXPECT_THROW(draw_maps(small_relevance(), {.file = "x.svg", .heads = {tile}}, "x"), Error);
  }
}

TEST(MapOptions, AreRefusedBeforeAModelIsRead) {
  EXPECT_NO_THROW(check_options(MapOptions{.file = "maps.svg", .heads = {"3", "3.5"}, .scale = "row"}));
  EXPECT_THROW(check_options(MapOptions{.file = "maps.jpg"}), Error);
  EXPECT_THROW(check_options(MapOptions{.file = "maps.png", .heads = {"3.x"}}), Error);
  EXPECT_THROW(check_options(MapOptions{.file = "maps.png", .scale = "linear"}), Error);
}

TEST(ReadableTokens, JoinCharactersAndEscapeInvalidBytes) {
  const auto tokenizer = text::make_byte_tokenizer();
  std::vector<int64_t> tokens = tokenizer->encode("A\u00e9\xe2\u4e2d\xe2\x80");
  tokens.push_back(256);
  EXPECT_THAT(readable_tokens(*tokenizer, tokens),
              ::testing::ElementsAre("A", "\u00e9", "\u2027", "\\xE2", "\u4e2d", "\u2027", "\u2027", "\\xE2", "\\x80",
                                     "<|endoftext|>"));
}

TEST(ReadLog, CollectsCurvesTilesAndSamples) {
  const json found = read_log(
      R"({"type":"train","step":10,"loss":2.5,"lr":0.1,"tokens":640}
{"type":"tiles","step":10,"windows":[[2.0,3.0]],"accepts":[[0.5,0.6]]}
{"type":"validation","step":10,"source":"books","loss":2.25}
{"type":"something new","step":10}
{"type":"sample","step":10,"prompt":"B=2\nA=","text":"1"}
{"type":"train","step":20,"loss":2.0,"lr":0.1,"tokens":1280,"grad_norms":{"embed.weight":0.5,"layers.s_w":null}}
{"type":"train","step":30,"lo)",
      "log.jsonl");
  EXPECT_EQ(found["training"]["loss"], json::parse(R"({"x":[10,20],"y":[2.5,2.0]})"));
  EXPECT_EQ(found["training"]["validation"], json::parse(R"({"books":{"x":[10],"y":[2.25]}})"));
  EXPECT_EQ(found["training"]["steps"], 20);
  EXPECT_EQ(found["training"]["tokens"], 1280);
  EXPECT_FALSE(found["training"].contains("grad_norm"));
  EXPECT_EQ(found["training"]["grad_norms"], json::parse(R"({"embed.weight":{"x":[20],"y":[0.5]}})"));
  EXPECT_EQ(found["training"]["tiles"],
            json::parse(R"({"step":[10],"windows":[[[2.0,3.0]]],"accepts":[[[0.5,0.6]]]})"));
  EXPECT_EQ(found["samples"], json::parse(R"([{"step":10,"prompt":"B=2\nA=","text":"1"}])"));
}

TEST(ReadLog, NamesTheLineOfAnInvalidRecord) {
  try {
    read_log("{\"type\":\"train\",\"step\":1}\nnonsense\n", "runs/x/log.jsonl");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInput);
    EXPECT_THAT(error.what(), HasSubstr("runs/x/log.jsonl:2"));
  }
}

TEST(ReadLog, ThinsLongSeriesButKeepsSpikes) {
  std::string log;
  for (int step = 0; step < 50'000; ++step) {
    const double loss = step == 31'337 ? 99.0 : step == 40'000 ? -1.0 : 1.0 + 1e-6 * step;
    log += json({{"type", "train"}, {"step", step}, {"loss", loss}}).dump() + "\n";
  }
  const json loss = read_log(log, "log.jsonl")["training"]["loss"];
  EXPECT_LE(loss["x"].size(), 2000u);
  EXPECT_THAT(loss["y"].get<std::vector<double>>(), ::testing::Contains(99.0));
  EXPECT_THAT(loss["y"].get<std::vector<double>>(), ::testing::Contains(-1.0));
  const auto steps = loss["x"].get<std::vector<int64_t>>();
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
}

TEST(Page, IsOneFileWithItsDataEscaped) {
  const std::string page =
      make_page("report.html", {{"version", "0"}, {"title", "</script><!-- <script>"}, {"bytes", "\xff"}});
  EXPECT_THAT(page, Not(HasSubstr("<script src=")));
  EXPECT_THAT(page, Not(HasSubstr("<link rel=\"stylesheet\"")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003c!-- \\u003cscript>"));
  EXPECT_THAT(page, HasSubstr("\xef\xbf\xbd"));
  EXPECT_THAT(page, HasSubstr(std::string(web_file("report.css"))));
  EXPECT_THAT(page, HasSubstr(std::string(web_file("report.js"))));
}

TEST(WebFile, HasTheBytesOfTheSourceTreeAfterAnEdit) {
  int64_t files = 0;
  for (const char* folder : {"web", "tamis/study"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".html" && extension != ".css" && extension != ".js" && extension != ".py") continue;
      EXPECT_TRUE(web_file(entry.path().filename().string()) == read_file(entry.path())) << entry.path();
      ++files;
    }
  }
  EXPECT_GT(files, 10);
}

TEST(WebFile, HoldsPlotlyAndIsEmptyForAnyOtherName) {
  EXPECT_GT(web_file("plotly.min.js").size(), 1'000'000u);
  EXPECT_TRUE(web_file("nothing").empty());
}

TEST(Inspect, CountsAModelWithoutACheckpoint) {
  const json found = inspect_config({{"psi", 8}, {"vocab_size", 257}});
  const json counted = inspection_json(found);
  EXPECT_EQ(counted["parameters"].get<int64_t>() - counted["parameters_without_embedding"].get<int64_t>(), 257 * 64);
  EXPECT_THAT(inspection_text(found, 80), HasSubstr("8 layers x 8 heads, width 64"));
}

}  // namespace
}  // namespace tamis::report

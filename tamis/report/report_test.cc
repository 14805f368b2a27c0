#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/error.h"
#include "tamis/report/base64.h"
#include "tamis/report/inspect.h"
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

/// One head of 4 tokens with a window of 2.5 tokens: distances 0, 1, 2.
models::RelevanceMap small_map() {
  const at::Tensor trim_HTT = at::zeros({1, 4, 4});
  trim_HTT[0][0][0] = 1.0f;
  trim_HTT[0][2][0] = 0.25f;
  trim_HTT[0][3][3] = 1e-9f;  // accepted, if barely
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

TEST(EncodeMap, KeepsOneByteAPairInsideTheWindowAndShortensZeros) {
  const json tile = encode_map(small_map(), 0);
  EXPECT_EQ(tile["layer"], 3);
  EXPECT_EQ(tile["head"], 0);
  EXPECT_EQ(tile["window"], 2.5);
  EXPECT_EQ(tile["accept"], 0.5);
  EXPECT_TRUE(tile["scale"].is_null());
  // Queries 0..3 have 1, 2, 3, 3 keys: 255 | 0 0 | 128 0 0 | 0 0 1; the square root of 0.25 is 127.5 / 255.
  EXPECT_EQ(tile["codes"], base64(std::string("\xff\0\x02\x80\0\x04\x01", 7)));
  EXPECT_DOUBLE_EQ(tile["nonzero"], 3.0 / 9.0);
}

TEST(EncodeMap, BreaksLongRunsOfZeros) {
  models::RelevanceMap map = small_map();
  map.window = {INFINITY};
  for (at::Tensor* tensor : {&map.trim, &map.relevance}) *tensor = at::zeros({1, 30, 30});
  const json tile = encode_map(map, 0);
  EXPECT_TRUE(tile["window"].is_null());
  EXPECT_EQ(tile["codes"], base64(std::string("\0\xff\0\xd2", 4)));  // 465 = 255 + 210
}

TEST(EncodeMap, ScalesTheWeightsOfMixersWithoutTrim) {
  models::RelevanceMap map = small_map();
  map.trim = at::Tensor();
  map.accept = {};
  map.window = {INFINITY};
  map.relevance = at::eye(4).unsqueeze(0) * 0.5;
  const json tile = encode_map(map, 0);
  EXPECT_TRUE(tile["accept"].is_null());
  EXPECT_DOUBLE_EQ(tile["scale"], 0.5);
  EXPECT_DOUBLE_EQ(tile["nonzero"], 0.4);
}

TEST(ReadableTokens, JoinCharactersAndShowBytesThatAreNone) {
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
{"type":"train","step":20,"loss":2.0,"lr":0.1,"tokens":1280}
{"type":"train","step":30,"lo)",
      "log.jsonl");
  EXPECT_EQ(found["training"]["loss"], json::parse(R"({"x":[10,20],"y":[2.5,2.0]})"));
  EXPECT_EQ(found["training"]["validation"], json::parse(R"({"books":{"x":[10],"y":[2.25]}})"));
  EXPECT_EQ(found["training"]["steps"], 20);
  EXPECT_EQ(found["training"]["tokens"], 1280);
  EXPECT_FALSE(found["training"].contains("grad_norm"));
  EXPECT_EQ(found["training"]["tiles"],
            json::parse(R"({"step":[10],"windows":[[[2.0,3.0]]],"accepts":[[[0.5,0.6]]]})"));
  EXPECT_EQ(found["samples"], json::parse(R"([{"step":10,"prompt":"B=2\nA=","text":"1"}])"));
}

TEST(ReadLog, NamesTheLineThatIsNoRecord) {
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
  for (const char* name : {"report.html", "shootout.html"}) {
    SCOPED_TRACE(name);
    const std::string page =
        make_page(name, {{"version", "0"}, {"title", "</script><!-- <script>"}, {"bytes", "\xff"}});
    EXPECT_THAT(page, Not(HasSubstr("<script src=")));
    EXPECT_THAT(page, Not(HasSubstr("<link rel=\"stylesheet\"")));
    EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003c!-- \\u003cscript>"));
    EXPECT_THAT(page, HasSubstr("\xef\xbf\xbd"));
    EXPECT_THAT(page, HasSubstr(std::string(web_file("report.css"))));
  }
}

TEST(Page, IsMadeFromTheTemplateThatIsNamed) {
  const std::string shootout(web_file("shootout.js"));
  ASSERT_FALSE(shootout.empty());
  EXPECT_THAT(make_page("shootout.html", {}), HasSubstr(shootout));
  EXPECT_THAT(make_page("report.html", {}), Not(HasSubstr(shootout)));
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

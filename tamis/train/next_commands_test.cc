#include "tamis/train/next_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"
#include "tamis/train/testing.h"

namespace tamis::train {
namespace {

using ::testing::ElementsAre;

TEST(NextCommands, QuoteWhatAShellWouldChange) {
  EXPECT_EQ(shell_word("runs/demo-1.5"), "runs/demo-1.5");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("my runs"), "'my runs'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word("A=12\nB='\\\t"), "$'A=12\\nB=\\'\\\\\\x09'");
}

TEST(NextCommands, FitWhatWasTrained) {
  const tamis::testing::TemporaryDirectory directory;
  const auto file = directory.write("recipe.toml", R"(
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
vocab_size = 257
[data.sources.a]
kind = "mqar"
vocab = 64
pairs = 4
[data.sources.b]
kind = "passkey"
[train]
length = 300
sample_prompt = "A=1\nA="
sample_tokens = 1
[run]
dir = "my run"
)");
  EXPECT_THAT(next_commands(load_recipe(file)),
              ElementsAre("tamis eval mqar 'my run' --pairs 4 --vocab 64", "tamis eval passkey 'my run'",
                          "tamis generate 'my run' --prompt $'A=1\\nA=' --max-new-tokens 1 --temperature 0",
                          "tamis report 'my run'"));
}

}  // namespace
}  // namespace tamis::train

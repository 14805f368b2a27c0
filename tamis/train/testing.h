#pragma once

// What the tests of this layer share. Included by tests only.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tamis/base/error.h"

namespace tamis::train::testing {

/// A directory of the test's own, gone afterwards.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "tamis-train-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

/// The text and code of the Error that `work` throws; a failure when it throws none.
template <typename Work>
std::pair<ExitCode, std::string> error_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

/// A model and a task that train in milliseconds.
inline const std::string kTinyRecipe = R"([model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.digits]
kind = "abc_digits"

[train]
steps = 6
length = 64
batch_size = 4
lr = 0.03
warmup_steps = 2
validate_tokens = 256
)";

}  // namespace tamis::train::testing

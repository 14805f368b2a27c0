#pragma once

// A directory for a test of conversions, and models in it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/testing.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/exchange/convert.h"
#include "tamis/models/testing.h"
#include "tamis/nn/safetensors_set.h"

namespace tamis::models::testing {

/// A Transformer that a LLaMA can hold.
inline nlohmann::json small_llama(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json own = {{"final_norm_weight", true}, {"tie_word_embeddings", false}};
  own.update(change);
  return small_model(own);
}

class ConversionTest : public ::testing::Test {
 protected:
  using Path = std::filesystem::path;
  using Tensors = std::map<std::string, at::Tensor>;

  /// A checkpoint of Tamis.
  Path save(const nlohmann::json& complete_config, const std::string& name = "own") const {
    const auto model = make_model(complete_config, 3);
    disturb(*model);
    write_directory_atomic(root_ / name, [&](const Path& directory) { save_model(*model, directory); });
    return root_ / name;
  }

  /// A model of another program.
  Path write(const nlohmann::json& config, const Tensors& tensors, const std::string& name = "other") const {
    std::vector<nn::NamedTensor> list;
    for (const auto& [key, tensor] : tensors) list.push_back({key, tensor});
    write_directory_atomic(root_ / name, [&](const Path& directory) {
      write_file_atomic(directory / "config.json", config.dump());
      nn::write_safetensors(directory / "model.safetensors", list);
    });
    return root_ / name;
  }

  static Tensors read(const Path& directory) {
    const nn::SafetensorsSet file(directory);
    Tensors result;
    for (const std::string& name : file.names()) result[name] = file.tensor(name);
    return result;
  }

  static nlohmann::json config_of(const Path& directory) {
    return nlohmann::json::parse(read_file(directory / "config.json"));
  }

  /// The line with which a conversion to root_ / "target" ends, or "accepted".
  std::string refusal(const Path& source, const exchange::ConvertOptions& options = {},
                      ExitCode code = ExitCode::kInput) const {
    std::filesystem::remove_all(root_ / "target");
    try {
      exchange::convert(source, root_ / "target", options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      EXPECT_FALSE(std::filesystem::exists(root_ / "target"));
      return error.what();
    }
    return "accepted";
  }

  const tamis::testing::TemporaryDirectory directory_;
  const Path root_ = directory_.path();
};

}  // namespace tamis::models::testing

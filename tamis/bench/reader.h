#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/bench/check.h"
#include "tamis/bench/options.h"
#include "tamis/models/model.h"

namespace tamis::bench {

/// A model with windows of one kind, and the tokens that it reads.
class Reader {
 public:
  /// One for each kind of windows in `bench`, or of the default: "initial", of a checkpoint "trained" and
  /// "expanded". The checkpoint is read once. Throws what infer::load and plain_config throw, and ExitCode::kInput on
  /// an empty text.
  static std::vector<Reader> all(const ModelBench& bench);

  const models::Model& model() const { return *model_; }
  const std::string& windows() const { return windows_; }
  bool expanded() const { return windows_ == "expanded"; }

  /// int64 [B, T]: the beginning of the text in every row, repeated where it is too short; random without a text.
  at::Tensor tokens(int64_t B, int64_t T) const;

  /// What the layers add to these tokens by definition, in float64.
  Named exact(const at::Tensor& tokens_BT) const;

 private:
  Reader(std::shared_ptr<const models::Model> model, std::string windows, at::Tensor text)
      : model_(std::move(model)), windows_(std::move(windows)), text_(std::move(text)) {}

  std::shared_ptr<const models::Model> model_;
  std::string windows_;
  at::Tensor text_;  // [T], or undefined
};

/// The options of a report that say which model it was.
nlohmann::json model_options(const ModelBench& bench);

}  // namespace tamis::bench

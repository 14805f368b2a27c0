#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/exchange/tensor_table.h"
#include "tamis/models/model_config.h"

// Every format is translated to and from Tamis's own checkpoint: the keys of its config.json, and the names and shapes
// of its tensors. A format is a file in this folder and a line in formats.cc.

namespace tamis::models::exchange {

/// Choices of a conversion that no file says.
struct FormatOptions {
  /// Which dimensions of a head rotary embedding pairs: "half" d and d + D/2, "interleaved" 2 d and 2 d + 1, or empty:
  /// "half".
  std::string rotary_layout;
  /// Multiscreens of other programs: positions wrap in MiPE as there (ModelConfig::mipe_wrap_boundary).
  bool wrap_positions = false;
};

/// A model directory of another program, as far as it is known before its format.
struct Source {
  std::string where;      // of config.json, for messages
  nlohmann::json config;  // an object
};

class Format {
 public:
  virtual ~Format() = default;
  virtual std::string name() const = 0;
  /// What writes and reads it, in a few words.
  virtual std::string description() const = 0;
  /// Whether a model with this config.json and these tensors has this format.
  virtual bool recognises(const nlohmann::json& config, const TensorTable& tensors) const = 0;

  /// FormatOptions::wrap_positions means something when this is the source.
  virtual bool may_wrap_positions() const { return false; }
  /// FormatOptions::rotary_layout means something when this is the source or the target.
  virtual bool has_rotary_layouts() const { return false; }

  // Both directions throw ExitCode::kInput when the other side computes something else.

  /// The model in Tamis's keys (model_config.h).
  virtual nlohmann::json import_config(const Source& source, const TensorTable& tensors,
                                       const FormatOptions& options) const = 0;
  /// The tensors of a Tamis checkpoint.
  virtual std::vector<LazyTensor> import_tensors(const Source& source, TensorTable& tensors, const ModelConfig& config,
                                                 const FormatOptions& options) const = 0;

  /// The config.json of the format, without dtype and special tokens.
  virtual nlohmann::json export_config(const ModelConfig& config, const FormatOptions& options) const = 0;
  virtual std::vector<LazyTensor> export_tensors(TensorTable& tensors, const ModelConfig& config,
                                                 const FormatOptions& options) const = 0;
};

/// All formats, in the order in which they are tried.
std::span<const Format* const> formats();
/// Throws ExitCode::kUsage with the known names.
const Format& find_format(const std::string& name);

const Format& tamis_format();
const Format& llama_format();
const Format& multiscreen_pytorch_format();
const Format& multiscreen_hf_format();
const Format& xlstm_format();

}  // namespace tamis::models::exchange

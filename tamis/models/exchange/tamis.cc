// Tamis's own checkpoint, also of earlier versions.

#include "tamis/base/error.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/exchange/format.h"
#include "tamis/models/stored_config.h"

namespace tamis::models::exchange {
namespace {

class TamisFormat final : public Format {
 public:
  std::string name() const override { return "tamis"; }
  std::string description() const override { return "this program"; }

  bool recognises(const nlohmann::json& config, const TensorTable& tensors) const override {
    const nlohmann::json type = config.value("model_type", nlohmann::json("multiscreen"));
    for (const std::string& known : known_models()) {
      if (type == known) return tensors.contains("embed.weight");
    }
    return false;
  }

  nlohmann::json import_config(const Source& source, const TensorTable&, const FormatOptions&) const override {
    return complete_stored_config(source.config);
  }

  std::vector<LazyTensor> import_tensors(const Source&, TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions&) const override {
    return all(tensors, config);
  }

  nlohmann::json export_config(const ModelConfig& config, const FormatOptions&) const override {
    return to_stored_config(to_json(config), nlohmann::json::object());
  }

  std::vector<LazyTensor> export_tensors(TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions&) const override {
    return all(tensors, config);
  }

 private:
  static std::vector<LazyTensor> all(TensorTable& tensors, const ModelConfig& config) {
    std::vector<LazyTensor> result;
    for (const auto& [name, tensor] : checkpoint_shapes(to_json(config))) {
      result.push_back(tensors.take(name, tensor.sizes().vec()));
    }
    return result;
  }
};

}  // namespace

const Format& tamis_format() {
  static const TamisFormat format;
  return format;
}

}  // namespace tamis::models::exchange

#include "tamis/text/huggingface_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis::text {
namespace {

using nlohmann::json;

/// A part of the file, and the types that it may have.
struct Part {
  const char* name;
  std::vector<std::string> types;
  const char* members;  // the list of a Sequence
};

const std::array<Part, 5> kParts = {{
    {"model", {"BPE", "WordPiece", "WordLevel", "Unigram"}, nullptr},
    {"normalizer",
     {"BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend",
      "Replace", "Sequence", "Strip", "StripAccents"},
     "normalizers"},
    {"pre_tokenizer",
     {"BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Delimiter", "Digits", "FixedLength", "Metaspace",
      "Punctuation", "Sequence", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit"},
     "pretokenizers"},
    {"post_processor",
     {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"},
     "processors"},
    {"decoder",
     {"BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Sequence", "Strip",
      "WordPiece"},
     "decoders"},
}};

/// What a model of each type cannot do without.
const std::array<std::pair<const char*, std::vector<const char*>>, 4> kModelSettings = {{
    {"BPE", {"vocab", "merges"}},
    {"WordPiece", {"vocab", "unk_token"}},
    {"WordLevel", {"vocab", "unk_token"}},
    {"Unigram", {"vocab"}},
}};

/// Why a part, or a member of its Sequence, cannot be used; empty when its type is known.
std::string problem_of(const Part& part, const json& value) {
  if (!value.is_object()) return fmt::format("\"{}\" must be an object, but is {}", part.name, shown(value));
  const auto type = value.find("type");
  if (type == value.end()) return {};  // the library guesses it
  if (!type->is_string()) return fmt::format("the type of \"{}\" must be a name, but is {}", part.name, shown(*type));
  const auto name = type->get<std::string>();
  if (std::ranges::find(part.types, name) == part.types.end()) {
    return fmt::format("\"{}\": {}", part.name, unknown_name("type", name, part.types));
  }
  if (name != "Sequence" || part.members == nullptr) return {};
  const auto members = value.find(part.members);
  if (members == value.end() || !members->is_array()) {
    return fmt::format("\"{}\" is a Sequence, but has no list \"{}\"", part.name, part.members);
  }
  for (const json& member : *members) {
    if (std::string problem = problem_of(part, member); !problem.empty()) return problem;
  }
  return {};
}

std::string missing_model_setting(const json& model) {
  for (const auto& [type, settings] : kModelSettings) {
    if (model.value("type", json()) != type) continue;
    for (const char* setting : settings) {
      if (!model.contains(setting)) return fmt::format("\"model\" of the type {} has no \"{}\"", type, setting);
    }
  }
  return {};
}

/// The part whose description fits no type of the library, as `message` says: "... enum PreTokenizerUntagged ...".
const Part* part_in(std::string_view message) {
  constexpr std::array<std::string_view, 5> kNames = {"ModelUntagged", "NormalizerUntagged", "PreTokenizerUntagged",
                                                      "PostProcessorUntagged", "DecoderUntagged"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (message.find(kNames[i]) != message.npos) return &kParts[i];
  }
  return nullptr;
}

/// The 32 bits, little-endian, that base64 begins with; 0 if it is shorter or something else.
uint32_t first_number(std::string_view base64) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr size_t kChars = 6;  // 36 bits
  if (base64.size() < kChars) return 0;
  uint64_t bits = 0;
  for (const char each : base64.substr(0, kChars)) {
    const size_t digit = kDigits.find(each);
    if (digit == kDigits.npos) return 0;
    bits = bits << 6 | digit;
  }
  uint32_t number = 0;
  for (int byte = 0; byte < 4; ++byte) number |= static_cast<uint32_t>(bits >> (28 - 8 * byte) & 0xff) << (8 * byte);
  return number;
}

std::string oversized_map(const json& normalizer) {
  for (const auto& [key, value] : normalizer.items()) {
    if (key == "precompiled_charsmap" && value.is_string()) {
      const auto& map = value.get_ref<const std::string&>();
      const size_t bytes = map.size() / 4 * 3, trie = first_number(map);
      if (trie > bytes) return fmt::format("its precompiled_charsmap has {} bytes, but says {} of a trie", bytes, trie);
    }
    if (!value.is_structured()) continue;
    if (std::string problem = oversized_map(value); !problem.empty()) return problem;
  }
  return {};
}

}  // namespace

std::string oversized_part(const json& file) {
  const auto normalizer = file.find("normalizer");
  return normalizer != file.end() && normalizer->is_structured() ? oversized_map(*normalizer) : "";
}

std::string tokenizer_problem(std::string_view text, std::string_view message) {
  const json file = try_parse_json(text);
  if (!file.is_object()) return std::string(message);
  if (!file.contains("model")) return "it has no \"model\"";
  for (const Part& part : kParts) {
    const auto value = file.find(part.name);
    const bool given = value != file.end() && (!value->is_null() || part.name == std::string_view("model"));
    if (!given) continue;
    if (std::string problem = problem_of(part, *value); !problem.empty()) return problem;
  }
  if (std::string problem = missing_model_setting(file["model"]); !problem.empty()) return problem;
  if (message.find("enum MergeType") != message.npos) {
    return "\"merges\" of the model must be a list of pairs of tokens";
  }
  // The message may quote a name in the file that looks like one of the library's.
  const Part* const part = part_in(message);
  const auto value = part != nullptr ? file.find(part->name) : file.end();
  if (value != file.end() && value->is_object()) {
    const json type = value->value("type", json());
    return type.is_string() ? fmt::format("\"{}\" of the type {} lacks a setting, or has one of another kind",
                                          part->name, type.get<std::string>())
                            : fmt::format("\"{}\" has no \"type\", and its settings are those of none", part->name);
  }
  return std::string(message);
}

}  // namespace tamis::text

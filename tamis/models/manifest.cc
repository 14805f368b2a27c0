#include "tamis/models/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/nn/safetensors_set.h"

namespace tamis::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kDigest = "sha256";
constexpr const char* kOldDigest = "checksum";  // FNV-1a

/// True when `entry`, an object, has a digest of these bytes.
bool holds(const json& entry, std::string_view bytes) {
  if (entry.contains(kDigest)) return entry[kDigest] == sha256(bytes);
  return entry.contains(kOldDigest) && entry[kOldDigest] == fmt::format("{:016x}", checksum(bytes));
}

std::string damage_of(const json& files, const fs::path& file) {
  const std::string name = file.filename().string();
  const json entry = files.is_object() ? files.value(name, json()) : json();
  if (!entry.is_object()) return fmt::format("{}: does not list {}", kManifestFile, name);
  const MappedFile mapped(file);
  if (const json bytes = entry.value("bytes", json()); bytes != mapped.text().size()) {
    return fmt::format("{}: has {} of {} bytes", name, mapped.text().size(), shown(bytes));
  }
  return holds(entry, mapped.text()) ? "" : name + ": checksum differs";
}

/// The files of the model's tensors: those that the manifest lists, and what a reader would take instead of them.
std::vector<std::string> tensor_files(const json& listed, const fs::path& directory) {
  std::vector<std::string> result;
  for (const auto& [name, entry] : listed.items()) {
    if (name == nn::kTensorIndex || nn::is_tensor_shard(name)) result.push_back(name);
  }
  if (result.empty() || fs::exists(directory / nn::kTensorFile)) result.push_back(nn::kTensorFile);
  return result;
}

}  // namespace

void write_manifest(const fs::path& directory, const json& state, const std::map<std::string, std::string>& digests) {
  json manifest = state;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const MappedFile file(entry.path());
    const std::string name = entry.path().filename().string();
    const auto known = digests.find(name);
    manifest["files"][name] = {{"bytes", file.text().size()},
                               {kDigest, known == digests.end() ? sha256(file.text()) : known->second}};
  }
  manifest[kDigest] = sha256(manifest.dump());
  write_file(directory / kManifestFile, manifest.dump(2) + "\n");
}

std::string find_damage(const fs::path& directory, std::span<const std::string> files) try {
  if (!fs::is_directory(directory)) return "is not a directory";
  json manifest = parse_json(read_file(directory / kManifestFile), kManifestFile);
  if (!manifest.is_object()) return fmt::format("{}: expected an object", kManifestFile);
  json own = json::object();
  for (const char* key : {kDigest, kOldDigest}) {
    if (!manifest.contains(key)) continue;
    own[key] = manifest[key];
    manifest.erase(key);
  }
  if (!holds(own, manifest.dump())) return fmt::format("{}: checksum differs", kManifestFile);
  const json listed = manifest.value("files", json());
  std::vector<std::string> checked(files.begin(), files.end());
  std::ranges::copy(tensor_files(listed.is_object() ? listed : json::object(), directory), std::back_inserter(checked));
  for (const std::string& name : checked) {
    if (std::string damage = damage_of(listed, directory / name); !damage.empty()) return damage;
  }
  return "";
} catch (const Error& error) {
  return error.what();
}

void check_manifest(const fs::path& checkpoint) {
  static const std::vector<std::string> kRead = {"config.json", "tokenizer.json"};
  if (!fs::exists(checkpoint / kManifestFile)) return;
  const std::string damage = find_damage(checkpoint, kRead);
  if (damage.empty()) return;
  fail(ExitCode::kInput, "{}: damaged: {}; restore it, name another checkpoint, or remove {} to read it unchecked",
       checkpoint.string(), damage, kManifestFile);
}

}  // namespace tamis::models

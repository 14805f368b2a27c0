#include "tamis/models/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"

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

}  // namespace

void write_manifest(const fs::path& directory, const json& state) {
  json manifest = state;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const MappedFile file(entry.path());
    manifest["files"][entry.path().filename().string()] = {{"bytes", file.text().size()},
                                                           {kDigest, sha256(file.text())}};
  }
  manifest[kDigest] = sha256(manifest.dump());
  FileWriter writer(directory / kManifestFile);
  writer.write(manifest.dump(2) + "\n");
  writer.close();
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
  for (const std::string& name : files) {
    if (std::string damage = damage_of(manifest.value("files", json()), directory / name); !damage.empty())
      return damage;
  }
  return "";
} catch (const Error& error) {
  return error.what();
}

void check_manifest(const fs::path& checkpoint) {
  static const std::vector<std::string> kRead = {"config.json", "model.safetensors", "tokenizer.json"};
  if (!fs::exists(checkpoint / kManifestFile)) return;
  const std::string damage = find_damage(checkpoint, kRead);
  if (damage.empty()) return;
  fail(ExitCode::kInput, "{}: damaged: {}; restore it, name another checkpoint, or remove {} to read it unchecked",
       checkpoint.string(), damage, kManifestFile);
}

}  // namespace tamis::models

#include "tamis/train/event_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstring>
#include <ctime>

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// ---- Protocol Buffers: a field is its number and wire type, then a varint, 4 or 8 bytes, or a length and bytes.

enum class Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string key_of(uint64_t field, Wire wire) {
  return varint(field << 3 | static_cast<uint64_t>(wire));
}

/// Little-endian bytes, as both formats have them.
template <std::unsigned_integral T>
std::string fixed(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string integer_field(uint64_t field, uint64_t value) {
  return key_of(field, Wire::kVarint) + varint(value);
}

std::string double_field(uint64_t field, double value) {
  return key_of(field, Wire::kFixed64) + fixed(std::bit_cast<uint64_t>(value));
}

std::string float_field(uint64_t field, float value) {
  return key_of(field, Wire::kFixed32) + fixed(std::bit_cast<uint32_t>(value));
}

std::string bytes_field(uint64_t field, std::string_view bytes) {
  return key_of(field, Wire::kBytes) + varint(bytes.size()) + std::string(bytes);
}

// ---- Messages of TensorBoard; the numbers are those of its .proto files.

/// Event.summary = 5, Summary.value = 1, Value.tag = 1.
std::string summary(std::string_view tag, std::string_view value) {
  return bytes_field(5, bytes_field(1, bytes_field(1, tag) + std::string(value)));
}

/// Value.simple_value = 2.
std::string scalar(std::string_view tag, double value) {
  return summary(tag, float_field(2, static_cast<float>(value)));
}

/// Value.tensor = 8 with TensorProto.dtype = 1, DT_STRING 7, tensor_shape = 2 and string_val = 8; Value.metadata = 9
/// with SummaryMetadata.plugin_data = 1, PluginData.plugin_name = 1 and data_class = 4, TENSOR 2.
std::string text(std::string_view tag, std::string_view content) {
  const std::string tensor = integer_field(1, 7) + bytes_field(2, "") + bytes_field(8, content);
  const std::string metadata = bytes_field(1, bytes_field(1, "text")) + integer_field(4, 2);
  return summary(tag, bytes_field(8, tensor) + bytes_field(9, metadata));
}

/// TensorBoard shows texts as Markdown; in a code block, line ends and spaces stay as they are.
std::string code_block(std::string_view content) {
  std::string block = "    ";
  for (const char c : content) {
    block += c;
    if (c == '\n') block += "    ";
  }
  return block;
}

/// Adds the numbers of a record, those of inner objects with their path.
void add_scalars(const std::string& path, const json& value, std::string& fields) {
  if (value.is_number()) fields += scalar(path, value.get<double>());
  if (!value.is_object()) return;
  for (const auto& [key, inner] : value.items()) add_scalars(path + "/" + key, inner, fields);
}

// ---- TFRecord

uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

std::string framed(std::string_view bytes) {
  const std::string length = fixed(static_cast<uint64_t>(bytes.size()));
  return length + fixed(masked(crc32c(length))) + std::string(bytes) + fixed(masked(crc32c(bytes)));
}

/// The files of earlier starts, by their times. TensorBoard reads the files of a directory in the order of their names.
int64_t newest_time(const fs::path& directory) {
  int64_t newest = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    newest = std::max<int64_t>(newest, std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10));
  }
  return newest;
}

fs::path new_file(const fs::path& directory, int64_t newest) {
  const int64_t now = std::max<int64_t>(std::time(nullptr), newest + 1);
  return directory / fmt::format("{}{:010}.tamis", kPrefix, now);
}

int64_t prepared(const fs::path& directory) {
  make_directories(directory);
  return newest_time(directory);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78U : crc >> 1;
      table[i] = crc;
    }
    return table;
  }();
  uint32_t crc = ~0U;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const fs::path& directory, int64_t step) : EventFile(directory, step, prepared(directory)) {}

EventFile::EventFile(const fs::path& directory, int64_t step, int64_t newest) : file_(new_file(directory, newest)) {
  write(0, bytes_field(3, "brain.Event:2"));                             // Event.file_version = 3
  if (newest > 0) write(step + 1, bytes_field(7, integer_field(1, 1)));  // Event.session_log = 7, status = 1, START 1
}

void EventFile::add(const json& record) {
  const std::string type = record.at("type");
  std::string fields;
  if (type == "train") {
    for (const auto& [key, value] : record.items()) {
      if (key != "step") add_scalars("train/" + key, value, fields);
    }
  } else if (type == "validation") {
    fields = scalar("validation/" + record.at("source").get<std::string>(), record.at("loss"));
  } else if (type == "sample") {
    fields = text("sample", code_block(record.at("prompt").get<std::string>() + record.at("text").get<std::string>()));
  }
  if (!fields.empty()) write(record.at("step"), fields);
}

void EventFile::write(int64_t step, std::string_view fields) {
  file_.write(framed(double_field(1, seconds_since_1970()) + integer_field(2, static_cast<uint64_t>(step)) +
                     std::string(fields)));
}

}  // namespace tamis::train

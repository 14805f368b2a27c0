// The format: 8 bytes of header size (little endian), a JSON header {name: {dtype, shape, data_offsets}}, then the
// data.

#include "tamis/nn/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis::nn {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

constexpr uint64_t kSizeBytes = 8;
constexpr uint64_t kMostHeaderBytes = 32u << 20;
constexpr size_t kMostTensors = 100'000;  // no model has half as many; more of them would take seconds to read
constexpr size_t kMostDimensions = 16;
constexpr size_t kDataAlignment = 8;  // the header is padded with spaces to this
const std::string kMetadata = "__metadata__";

const std::array<std::pair<std::string, at::ScalarType>, 9> kTypes = {{{"F32", at::kFloat},
                                                                       {"BF16", at::kBFloat16},
                                                                       {"F16", at::kHalf},
                                                                       {"F64", at::kDouble},
                                                                       {"I64", at::kLong},
                                                                       {"I32", at::kInt},
                                                                       {"I16", at::kShort},
                                                                       {"I8", at::kChar},
                                                                       {"U8", at::kByte}}};

struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

/// Turns header entries into Entry, or says what is wrong with them.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  Entry entry(const std::string& name, const json& description) const {
    Entry entry;
    entry.name = name;
    if (!description.is_object() || description.size() != 3) {
      fail_entry(name, "expected the keys dtype, shape and data_offsets", description);
    }
    entry.dtype = dtype(name, member(name, description, "dtype"));
    const uint64_t bytes = read_shape(member(name, description, "shape"), entry);
    const json& offsets = member(name, description, "data_offsets");
    const bool two = offsets.is_array() && offsets.size() == 2;
    if (!two || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
      fail_entry(name, "data_offsets must be two whole numbers", offsets);
    }
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      fail_entry(name, fmt::format("its shape and dtype need {} bytes, but data_offsets are", bytes), offsets);
    }
    return entry;
  }

  std::map<std::string, std::string> metadata(const json& description) const {
    const bool strings = description.is_object() && std::all_of(description.begin(), description.end(),
                                                                [](const json& value) { return value.is_string(); });
    if (!strings) fail(ExitCode::kInput, "{}: __metadata__ must hold strings only", file_);
    return description.get<std::map<std::string, std::string>>();
  }

 private:
  [[noreturn]] void fail_entry(const std::string& name, const std::string& expected, const json& came) const {
    fail(ExitCode::kInput, "{}: tensor {}: {}: {}", file_, quoted_name(name), expected, shown(came));
  }

  const json& member(const std::string& name, const json& description, const char* key) const {
    if (!description.contains(key)) fail_entry(name, fmt::format("{} is missing in", key), description);
    return description[key];
  }

  at::ScalarType dtype(const std::string& name, const json& value) const {
    for (const auto& [text, type] : kTypes) {
      if (value == text) return type;
    }
    fail_entry(name, "dtype must be one of F32, BF16, F16, F64, I64, I32, I16, I8, U8, but is", value);
  }

  /// Bytes the tensor needs.
  uint64_t read_shape(const json& shape, Entry& entry) const {
    if (!shape.is_array() || shape.size() > kMostDimensions) {
      fail_entry(entry.name, fmt::format("shape must be a list of at most {} numbers", kMostDimensions), shape);
    }
    int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
    bool empty = false;
    for (const json& size : shape) {
      const uint64_t value = size.is_number_unsigned() ? size.get<uint64_t>() : UINT64_MAX;
      // An empty dimension does not excuse an overflow: strides are products of the others.
      if (value > INT64_MAX ||
          __builtin_mul_overflow(bytes, std::max<int64_t>(1, static_cast<int64_t>(value)), &bytes)) {
        fail_entry(entry.name, "shape must be whole numbers whose product fits 63 bits", shape);
      }
      empty = empty || value == 0;
      entry.shape.push_back(static_cast<int64_t>(value));
    }
    return empty ? 0 : static_cast<uint64_t>(bytes);
  }

  std::string file_;
};

/// Tensors must fill the data exactly, in the order of `entries`.
void check_layout(const std::string& file, const std::vector<Entry>& entries, uint64_t data_bytes) {
  uint64_t filled = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != filled) {
      fail(ExitCode::kInput,
           "{}: tensor {} must begin at byte {} of the data, where the one before it ends, but {} at {}", file,
           quoted_name(entry.name), filled, entry.begin < filled ? "overlaps it" : "leaves a hole", entry.begin);
    }
    filled = entry.end;
  }
  if (filled > data_bytes) {
    fail(ExitCode::kInput, "{}: the tensors need {} bytes of data, but the file has {}; is it truncated?", file, filled,
         data_bytes);
  }
  if (filled < data_bytes) {
    fail(ExitCode::kInput, "{}: the tensors need {} bytes of data, but the file has {} more at its end", file, filled,
         data_bytes - filled);
  }
}

}  // namespace

struct SafetensorsFile::Impl {
  explicit Impl(const std::filesystem::path& path) : name(path.string()), file(path) {}

  /// Where the header ends and the data begins.
  void find_data() {
    const std::string_view text = file.text();
    uint64_t header_bytes = 0;
    if (text.size() < kSizeBytes) {
      fail(ExitCode::kInput, "{}: expected a safetensors file, but it has only {} bytes", name, text.size());
    }
    std::memcpy(&header_bytes, text.data(), kSizeBytes);
    if (header_bytes > kMostHeaderBytes || header_bytes > text.size() - kSizeBytes) {
      fail(ExitCode::kInput,
           "{}: its header should take {} bytes, but the file has {} and a header at most {}; is it truncated, or no "
           "safetensors file?",
           name, header_bytes, text.size(), kMostHeaderBytes);
    }
    data_start = kSizeBytes + header_bytes;
  }

  void read_header() {
    const HeaderReader reader(name);
    const std::string_view header = file.text().substr(kSizeBytes, data_start - kSizeBytes);
    parse_json_object(header, name + ": header", /*most_levels=*/3, [&](const std::string& key, const json& value) {
      if (key == kMetadata) {
        metadata = reader.metadata(value);
      } else if (entries.size() == kMostTensors) {
        fail(ExitCode::kInput, "{}: expected at most {} tensors, but the header has more", name, kMostTensors);
      } else {
        entries.push_back(reader.entry(key, value));
      }
    });
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_layout(name, entries, file.text().size() - data_start);
    for (const Entry& entry : entries) {
      names.push_back(entry.name);
      by_name.emplace(entry.name, &entry);
    }
  }

  const Entry& find(const std::string& tensor) const {
    const auto found = by_name.find(tensor);
    if (found == by_name.end()) fail(ExitCode::kInput, "{}: has no tensor {}", name, quoted_name(tensor));
    return *found->second;
  }

  std::string name;
  MappedFile file;
  uint64_t data_start = 0;
  std::vector<Entry> entries;  // in the order of their data
  std::vector<std::string> names;
  std::unordered_map<std::string_view, const Entry*> by_name;
  std::map<std::string, std::string> metadata;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) {
  const auto impl = std::make_shared<Impl>(path);
  impl->find_data();
  impl->read_header();
  impl_ = impl;
}

const std::vector<std::string>& SafetensorsFile::names() const {
  return impl_->names;
}

bool SafetensorsFile::contains(const std::string& name) const {
  return impl_->by_name.contains(name);
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->metadata;
}

at::IntArrayRef SafetensorsFile::shape(const std::string& name) const {
  return impl_->find(name).shape;
}

at::ScalarType SafetensorsFile::dtype(const std::string& name) const {
  return impl_->find(name).dtype;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const Entry& entry = impl_->find(name);
  const at::Tensor result = at::empty(entry.shape, entry.dtype);
  // Copied: the file gives no alignment.
  if (result.numel() > 0) {
    std::memcpy(result.data_ptr(), impl_->file.bytes().data() + impl_->data_start + entry.begin, result.nbytes());
  }
  return result;
}

int64_t LazyTensor::bytes() const {
  int64_t result = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) result *= size;
  return result;
}

void write_safetensors(const std::filesystem::path& path, std::span<const LazyTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t offset = 0;
  for (const LazyTensor& lazy : tensors) {
    TAMIS_ASSERT(!header.contains(lazy.name) && lazy.name != kMetadata);
    const auto type =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& known) { return known.second == lazy.dtype; });
    if (type == kTypes.end()) {
      fail(ExitCode::kRuntime, "{}: tensor {}: no safetensors dtype for {}", path.string(), quoted_name(lazy.name),
           c10::toString(lazy.dtype));
    }
    const int64_t end = offset + lazy.bytes();
    header[lazy.name] = {{"dtype", type->first}, {"shape", lazy.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const uint64_t header_bytes = text.size();

  FileWriter file(path);
  file.write({reinterpret_cast<const char*>(&header_bytes), kSizeBytes});
  file.write(text);
  for (const LazyTensor& lazy : tensors) {
    const at::Tensor contiguous = lazy.make().detach().to(at::kCPU).contiguous();
    TORCH_INTERNAL_ASSERT(contiguous.scalar_type() == lazy.dtype && contiguous.sizes() == at::IntArrayRef(lazy.shape));
    file.write({static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()});
  }
  file.close();
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<LazyTensor> lazy;
  for (const NamedTensor& named : tensors) {
    lazy.push_back(
        {named.name, named.tensor.scalar_type(), named.tensor.sizes().vec(), [&named] { return named.tensor; }});
  }
  write_safetensors(path, lazy, metadata);
}

}  // namespace tamis::nn

#include "tamis/train/optimizer_shards.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <regex>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::train {

namespace fs = std::filesystem;

namespace {

struct NamedPiece {
  std::string parameter;
  int64_t begin, end;
};

/// "NAME[16384:32768]".
std::optional<NamedPiece> parse_piece(const std::string& name) {
  const size_t open = name.rfind('['), colon = name.rfind(':');
  if (open == std::string::npos || colon == std::string::npos || colon < open || !name.ends_with(']')) return {};
  NamedPiece piece{.parameter = name.substr(0, open), .begin = 0, .end = 0};
  const auto number = [&](size_t first, size_t last, int64_t& value) {
    const auto [end, error] = std::from_chars(name.data() + first, name.data() + last, value);
    return error == std::errc() && end == name.data() + last && value >= 0;
  };
  if (!number(open + 1, colon, piece.begin) || !number(colon + 1, name.size() - 1, piece.end)) return {};
  return piece;
}

}  // namespace

std::string optimizer_shard_name(int64_t rank, int64_t size) {
  return fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, size);
}

std::vector<fs::path> optimizer_shards(const fs::path& checkpoint) {
  static const std::regex kName(R"(optimizer-\d{5,}-of-(\d{5,})\.safetensors)");
  std::error_code none;
  int64_t size = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint, none)) {
    std::smatch match;
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, match, kName)) size = std::stoll(match[1].str().substr(0, 9));
  }
  std::vector<fs::path> shards;
  for (int64_t rank = 0; rank < size; ++rank) {
    shards.push_back(checkpoint / optimizer_shard_name(rank, size));
    if (!fs::exists(shards.back())) {
      fail(ExitCode::kInput, "{}: missing; the optimizer's state was saved in {} files", shards.back().string(), size);
    }
  }
  return shards;
}

std::vector<nn::NamedTensor> copy_shard(const AdamW& optimizer) {
  std::vector<nn::NamedTensor> tensors;
  const auto add = [&](const char* prefix, std::span<const at::Tensor> moments) {
    for (size_t i = 0; i < moments.size(); ++i) {
      tensors.push_back({fmt::format("{}.{}", prefix, optimizer.parameters()[i].name),
                         at::empty_like(moments[i].view({-1}), at::kCPU).copy_(moments[i].view({-1}))});
    }
  };
  add("exp_avg", optimizer.first_moments());
  add("exp_avg_sq", optimizer.second_moments());
  return tensors;
}

void MomentsOfPieces::copy_from(const Piece& stored, const std::function<at::Tensor()>& read) const {
  at::Tensor values;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t begin = std::max(stored.begin, pieces[i].begin), end = std::min(stored.end, pieces[i].end);
    if (pieces[i].parameter != stored.parameter || begin >= end) continue;
    if (!values.defined()) values = read().view({-1});
    moments[i]
        .view({-1})
        .slice(0, begin - pieces[i].begin, end - pieces[i].begin)
        .copy_(values.slice(0, begin - stored.begin, end - stored.begin));
  }
}

void read_shards(std::span<const fs::path> shards, const std::string& prefix,
                 std::span<const models::Parameter> parameters, const MomentsOfPieces& into, bool all) {
  std::map<std::string, size_t> index;
  for (size_t p = 0; p < parameters.size(); ++p) index[fmt::format("{}.{}", prefix, parameters[p].name)] = p;
  std::vector<int64_t> filled(parameters.size());
  for (const fs::path& path : shards) {
    const nn::SafetensorsFile file(path);
    for (const std::string& name : file.names()) {
      const std::optional<NamedPiece> named = parse_piece(name);
      if (!named) {
        fail(ExitCode::kInput, "{}: {}: expected a piece such as exp_avg.NAME[0:16384]", path.string(),
             quoted_name(name));
      }
      const auto& [parameter, begin, end] = *named;
      const auto found = index.find(parameter);
      if (found == index.end()) continue;  // of another prefix
      const int64_t whole = parameters[found->second].tensor.numel(),
                    elements = c10::multiply_integers(file.shape(name));
      if (begin >= end || end > whole || elements != end - begin) {
        fail(ExitCode::kInput, "{}: {}: has {} elements, does not fit into the {} elements of the model's parameter",
             path.string(), quoted_name(name), elements, whole);
      }
      into.copy_from({found->second, begin, end}, [&] { return file.tensor(name); });
      filled[found->second] += end - begin;
    }
  }
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (filled[p] == parameters[p].tensor.numel() || (!all && filled[p] == 0)) continue;
    fail(ExitCode::kInput, "{}: {}.{}: the shards hold {} elements, the model needs {}",
         shards.front().parent_path().string(), prefix, parameters[p].name, filled[p], parameters[p].tensor.numel());
  }
}

}  // namespace tamis::train

#include "tamis/data/text_files.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/base/json.h"
#include "tamis/data/byte_stream.h"
#include "tamis/data/records.h"
#include "tamis/data/token_files.h"

namespace tamis::data {
namespace {

/// The first line that is not blank, cut off at the size of the longest document.
std::string first_line(const InputFile& file) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto stream = open_stream(file);
  std::string content, part(size_t{64} << 10, '\0');
  while (content.size() <= RecordLimits().document_bytes) {
    const size_t got = stream->read(part.data(), part.size());
    if (got == 0) break;
    content.append(part, 0, got);
    if (content.starts_with(kByteOrderMark)) content.erase(0, kByteOrderMark.size());
    content.erase(0, content.find_first_not_of(kBlanks));
    if (const size_t end = content.find('\n'); end != content.npos) return content.substr(0, end);
  }
  return content;
}

void check_lines_of_json(const InputFile& file) {
  std::string line;
  try {
    line = first_line(file);
  } catch (const DamagedFile&) {
    return;  // it is counted as corrupt
  }
  if (line.empty() || try_parse_json(line).is_object()) return;
  const std::string name = file.path.string();
  fail(ExitCode::kInput,
       "{}: expected JSON Lines, an object on each line, but the first line is not one; write each record on a line "
       "of its own, of a list with: jq -c '.[]'",
       name);
}

/// In memory, because it is read twice, like a file.
InputFile read_standard_input(const std::string& format) {
  if (format == "parquet") {
    fail(ExitCode::kUsage,
         "standard input cannot be Parquet, which needs random access; save it to a file and name the file");
  }
  auto content = std::make_shared<const std::string>(read_input("-"));
  const auto bytes = std::ssize(*content);
  return {.path = input_name("-"),
          .format = format == "jsonl" ? TextFormat::kJsonl : TextFormat::kText,
          .compression = Compression::kNone,
          .bytes = bytes,
          .content = std::move(content)};
}

}  // namespace

std::vector<InputFile> find_text_files(const std::vector<std::string>& arguments, const std::string& format) {
  if (std::count(arguments.begin(), arguments.end(), "-") > 1) {
    fail(ExitCode::kUsage, "standard input, -, is named twice; name it once");
  }
  std::vector<InputFile> files;
  std::optional<std::ptrdiff_t> standard_input;  // read last: a mistake in another argument costs nothing
  for (const std::string& argument : arguments) {
    if (argument == "-") {
      standard_input = std::ssize(files);
    } else {
      std::ranges::move(find_input_files({argument}, format), std::back_inserter(files));
    }
  }
  if (standard_input) files.insert(files.begin() + *standard_input, read_standard_input(format));
  if (format != "auto") return files;
  for (const InputFile& file : files) {
    if (is_token_file(file.path)) {
      fail(ExitCode::kInput,
           "{}: holds tokens, which need no preparation; name it in a recipe, as path of a data source of the kind "
           "\"corpus\" (or rename it if it is a text)",
           file.path.string());
    }
    if (content_extension(file.path) == ".json") check_lines_of_json(file);
  }
  return files;
}

}  // namespace tamis::data

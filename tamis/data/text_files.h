#pragma once

#include <string>
#include <vector>

#include "tamis/data/input_files.h"

namespace tamis::data {

/// find_input_files for inputs whose texts are tokenized. `-` is standard input, which is read into memory: a text, or
/// JSONL if `format` says so; throws ExitCode::kUsage when it is named twice or should be Parquet, and as read_input
/// does. If `format` is "auto", it also throws ExitCode::kInput for files of tokens (.bin, .npy), and for a .json whose
/// first line is no JSON object: it is not JSONL.
std::vector<InputFile> find_text_files(const std::vector<std::string>& arguments, const std::string& format);

}  // namespace tamis::data

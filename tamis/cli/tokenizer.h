#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tamis/text/tokenizer.h"

namespace tamis::cli {

/// The argument TOKENIZER of a command.
void add_tokenizer_argument(CLI::App& command, std::string& tokenizer);

/// The tokenizer that the argument names: `byte`, a tokenizer.json, or a directory with one, such as a checkpoint or a
/// run. Throws ExitCode::kInput.
std::unique_ptr<text::Tokenizer> tokenizer_named(const std::string& name);

/// `tamis data train-tokenizer`.
void add_train_tokenizer(CLI::App& data);

}  // namespace tamis::cli

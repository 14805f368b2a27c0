#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::data {

/// A prompt and the answer to it, as texts.
struct PromptAnswer {
  std::string prompt;
  std::string answer;
};

/// How prompts and answers are made from the fields of a record: `{field}` stands for a field, `{{` and `}}` for
/// braces. Empty: "{prompt}" and "{answer}" for JSONL, "{context}\n\nQuestion: {question}\nAnswer:" and " {answer}" for
/// SQuAD.
struct PromptTemplates {
  std::string prompt;
  std::string answer;
};

struct PromptAnswers {
  std::vector<PromptAnswer> pairs;
  int64_t without_answer = 0;  // questions of SQuAD 2 that cannot be answered; left out
};

/// Reads pairs from files, folders and patterns as find_input_files does: JSONL, one object on each line (also .gz and
/// .zst), or a file in the format of SQuAD (Rajpurkar et al. 2016; a name ending in .json), whose questions have the
/// fields context, question, answer (the first of the answers), id and title.
///
/// Throws ExitCode::kInput with file and place when a file is damaged, a field that a template names is missing or no
/// text, an answer is empty, or there is no pair; ExitCode::kUsage when a template is malformed.
PromptAnswers read_prompt_answers(const std::vector<std::string>& files, const PromptTemplates& templates);

}  // namespace tamis::data

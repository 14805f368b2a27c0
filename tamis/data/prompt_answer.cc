#include "tamis/data/prompt_answer.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/data/byte_stream.h"
#include "tamis/data/input_files.h"

namespace tamis::data {
namespace {

using nlohmann::json;

/// A template cut into texts and names of fields, which alternate; the first is a text.
class Template {
 public:
  Template(const std::string& text, const char* key) {
    std::string part;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool twice = i + 1 < text.size() && text[i + 1] == text[i];
      if ((text[i] == '{' || text[i] == '}') && twice) {
        part += text[i++];
      } else if (text[i] == '{') {
        const size_t end = text.find('}', i);
        if (end == std::string::npos || end == i + 1) refuse(key, text);
        parts_.push_back(std::exchange(part, ""));
        parts_.push_back(text.substr(i + 1, end - i - 1));
        i = end;
      } else if (text[i] == '}') {
        refuse(key, text);
      } else {
        part += text[i];
      }
    }
    parts_.push_back(part);
  }

  std::string filled(const json& record, const std::string& place) const {
    std::string result = parts_[0];
    for (size_t i = 1; i < parts_.size(); i += 2) {
      const json value = record.is_object() ? record.value(parts_[i], json()) : json();
      if (!value.is_string()) {
        fail(ExitCode::kInput, "{}: expected an object with a text at {}, but {}", place, quoted_name(parts_[i]),
             value.is_null() ? "it has none" : "it is " + shown(value));
      }
      result += value.get_ref<const std::string&>() + parts_[i + 1];
    }
    return result;
  }

 private:
  [[noreturn]] static void refuse(const char* key, const std::string& text) {
    fail(ExitCode::kUsage,
         "{}: expected a text with fields such as {{question}}, and {{{{ and }}}} for braces, but it is {}", key,
         quoted_name(text));
  }

  std::vector<std::string> parts_;
};

class Reader {
 public:
  explicit Reader(const PromptTemplates& templates) : templates_(templates) {}

  void read(const InputFile& file) {
    const std::string name = file.path.string();
    const bool squad = content_extension(file.path) == ".json";
    const Template prompt(given(templates_.prompt, squad ? kSquadPrompt : "{prompt}"), "prompt");
    const Template answer(given(templates_.answer, squad ? " {answer}" : "{answer}"), "answer");
    add_ = [this, prompt, answer](const json& record, const std::string& place) {
      PromptAnswer pair{prompt.filled(record, place), answer.filled(record, place)};
      if (pair.answer.empty()) fail(ExitCode::kInput, "{}: the answer is empty; expected a text", place);
      result_.pairs.push_back(std::move(pair));
    };
    const std::string content = read_content(file);
    if (squad) {
      read_squad(parse_json(content, name), name);
    } else {
      read_lines(content, name);
    }
  }

  PromptAnswers take() { return std::move(result_); }

 private:
  static constexpr size_t kMostBytes = size_t{1} << 30;  // of a file, decompressed: it is kept in memory
  static constexpr const char* kSquadPrompt = "{context}\n\nQuestion: {question}\nAnswer:";

  static std::string given(const std::string& text, const char* otherwise) { return text.empty() ? otherwise : text; }

  static std::string read_content(const InputFile& file) try {
    const auto stream = open_stream(file);
    std::string content;
    std::vector<char> buffer(size_t{1} << 20);
    while (const size_t count = stream->read(buffer.data(), buffer.size())) {
      if (content.size() + count > kMostBytes) {
        fail(ExitCode::kInput, "{}: has more than {} of content; divide it into several files", file.path.string(),
             format_bytes(kMostBytes));
      }
      content.append(buffer.data(), count);
    }
    return content;
  } catch (const DamagedFile& error) {
    fail(ExitCode::kInput, "{}: {}", file.path.string(), error.what());
  }

  void read_lines(std::string_view content, const std::string& name) {
    int64_t number = 0;
    while (!content.empty()) {
      const size_t end = std::min(content.find('\n'), content.size());
      const std::string_view line = content.substr(0, end);
      content.remove_prefix(std::min(end + 1, content.size()));
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string place = fmt::format("{}:{}", name, number);
      add_(parse_json(line, place), place);
    }
  }

  /// The list at `key`.
  static const json& list(const json& object, const char* key, const std::string& place) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found != object.end() && found->is_array()) return *found;
    fail(ExitCode::kInput, "{}: has no list \"{}\"; expected the format of SQuAD", place, key);
  }

  void read_squad(const json& file, const std::string& name) {
    for (size_t a = 0; const json& article : list(file, "data", name)) {
      const std::string in_article = fmt::format("{}: data[{}]", name, a++);
      for (size_t p = 0; const json& paragraph : list(article, "paragraphs", in_article)) {
        const std::string in_paragraph = fmt::format("{}.paragraphs[{}]", in_article, p++);
        for (size_t q = 0; const json& question : list(paragraph, "qas", in_paragraph)) {
          read_question(article, paragraph, question, fmt::format("{}.qas[{}]", in_paragraph, q++));
        }
      }
    }
  }

  void read_question(const json& article, const json& paragraph, const json& question, const std::string& place) {
    const json& answers = list(question, "answers", place);
    if (answers.empty()) {
      result_.without_answer += 1;
      return;
    }
    const auto text = [](const json& object, const char* key) {
      return object.is_object() ? object.value(key, json()) : json();
    };
    add_({{"title", text(article, "title")},
          {"context", text(paragraph, "context")},
          {"question", text(question, "question")},
          {"id", text(question, "id")},
          {"answer", text(answers[0], "text")}},
         place);
  }

  const PromptTemplates& templates_;
  std::function<void(const json& record, const std::string& place)> add_;
  PromptAnswers result_;
};

}  // namespace

PromptAnswers read_prompt_answers(const std::vector<std::string>& files, const PromptTemplates& templates) {
  Reader reader(templates);
  for (const InputFile& file : find_input_files(files, "auto")) reader.read(file);
  PromptAnswers read = reader.take();
  if (read.pairs.empty()) {
    const std::string why =
        read.without_answer > 0 ? fmt::format("; questions without an answer: {}", read.without_answer) : "";
    fail(ExitCode::kInput, "{}: expected prompts and answers, but there are none{}", one_line(files.front()), why);
  }
  return read;
}

}  // namespace tamis::data

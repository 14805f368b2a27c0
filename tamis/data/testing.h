#pragma once

// Helpers for the tests of the tasks. Included by tests only.

#include <string>

#include "tamis/data/registry.h"

namespace tamis::data::testing {

inline TextInstance text_instance(const std::string& task, const TaskRequest& request, uint64_t index = 0) {
  return std::get<TextInstance>(make_instance(find_task(task), request, index));
}

inline TokenInstance token_instance(const std::string& task, const TaskRequest& request, uint64_t index = 0) {
  return std::get<TokenInstance>(make_instance(find_task(task), request, index));
}

inline std::string span_of(const TextInstance& instance, size_t answer = 0) {
  const ByteSpan& span = instance.answer_spans[answer];
  return instance.prompt.substr(span.begin, span.end - span.begin);
}

inline const TextTask& text_task(const std::string& task) {
  return std::get<TextTask>(find_task(task).kind);
}

inline const TokenTask& token_task(const std::string& task) {
  return std::get<TokenTask>(find_task(task).kind);
}

}  // namespace tamis::data::testing

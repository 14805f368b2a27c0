#include "tamis/report/page.h"

#include "tamis/base/error.h"
#include "tamis/report/web_files.h"

namespace tamis::report {
namespace {

/// Inside <script> the HTML parser looks only for `</script` and `<!--`. Escaping `<` in the JSON avoids both.
std::string json_for_script(const nlohmann::json& data) {
  const std::string json = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string result;
  result.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      result += "\\u003c";
    } else {
      result += c;
    }
  }
  return result;
}

std::string_view embedded(std::string_view name) {
  const std::string_view file = web_file(name);
  TAMIS_ASSERT(!file.empty());
  return file;
}

/// How the template refers to another file, and the markup around that file's contents in the page.
struct Reference {
  std::string_view before, after;  // around the file's name in the template
  std::string_view open, close;    // around its contents in the page
};
constexpr Reference kReferences[] = {
    {"<link rel=\"stylesheet\" href=\"", "\">", "<style>\n", "</style>"},
    {"<script src=\"", "\"></script>", "<script>\n", "</script>"},
};

std::string with_files_written_in(std::string_view html) {
  std::string page;
  while (!html.empty()) {
    size_t start = html.size();
    const Reference* reference = nullptr;
    for (const Reference& candidate : kReferences) {
      const size_t at = html.find(candidate.before);
      if (at < start) {
        start = at;
        reference = &candidate;
      }
    }
    page += html.substr(0, start);
    html.remove_prefix(start);
    if (reference == nullptr) break;
    html.remove_prefix(reference->before.size());
    const size_t end = html.find(reference->after);
    page += reference->open;
    page += embedded(html.substr(0, end));
    page += reference->close;
    html.remove_prefix(end + reference->after.size());
  }
  return page;
}

}  // namespace

std::string make_page(std::string_view template_name, const nlohmann::json& data) {
  // Split the template before files are inserted, so that their contents are not searched for the marker.
  constexpr std::string_view kData = "<script type=\"application/json\" id=\"data\">";
  const std::string_view html = embedded(template_name);
  const size_t at = html.find(kData) + kData.size();
  return with_files_written_in(html.substr(0, at)) + json_for_script(data) + with_files_written_in(html.substr(at));
}

}  // namespace tamis::report

# tamis_embed_web(target) embeds the files of web/, the scripts of tamis/study and Plotly, and defines
# tamis::report::web_file.

set(TAMIS_PLOTLY "" CACHE FILEPATH "plotly.min.js; empty: the one of the plotly wheel in .venv")

function(tamis_embed_web target)
  set(plotly "${TAMIS_PLOTLY}")
  if(NOT plotly)
    file(GLOB plotly ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/plotly/package_data/plotly.min.js)
  endif()
  if(NOT EXISTS "${plotly}")
    message(FATAL_ERROR "Plotly: expected plotly.min.js in the plotly wheel of .venv, found '${plotly}'; run `make setup`, "
                        "or name the file with -DTAMIS_PLOTLY=/path/to/plotly.min.js")
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/web/*.html ${PROJECT_SOURCE_DIR}/web/*.css
       ${PROJECT_SOURCE_DIR}/web/*.js ${PROJECT_SOURCE_DIR}/tamis/study/*.py)
  list(APPEND files ${plotly})

  set(declarations "")
  set(table "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    tamis_embedded_symbol(${file} symbol)
    string(APPEND declarations "extern \"C\" const char ${symbol}[], ${symbol}_end[];\n")
    string(APPEND table "    {\"${name}\", {${symbol}, static_cast<size_t>(${symbol}_end - ${symbol})}},\n")
  endforeach()
  string(CONFIGURE [[
#include <map>

#include "tamis/report/web_files.h"

@declarations@
namespace tamis::report {

std::string_view web_file(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kFiles = {
@table@  };
  const auto found = kFiles.find(name);
  return found == kFiles.end() ? std::string_view() : found->second;
}

}  // namespace tamis::report
]] code @ONLY)
  tamis_embed(${target} FILES ${files} CODE "${code}")
endfunction()

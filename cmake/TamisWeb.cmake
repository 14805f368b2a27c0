# tamis_embed_web(target) embeds the files of web/, the scripts of tamis/study and Plotly, and defines
# tamis::report::web_file. The assembler includes the bytes unchanged, so that an edit of a page rebuilds only one file.

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

  set(count 0)
  set(assembly "")
  set(declarations "")
  set(table "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    set(symbol tamis_web_${count})
    string(APPEND assembly ".global ${symbol}, ${symbol}_end\n${symbol}: .incbin \"${file}\"\n${symbol}_end:\n")
    string(APPEND declarations "extern \"C\" const char ${symbol}[], ${symbol}_end[];\n")
    string(APPEND table "    {\"${name}\", {${symbol}, static_cast<size_t>(${symbol}_end - ${symbol})}},\n")
    math(EXPR count "${count} + 1")
  endforeach()

  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}_web_files.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include <map>

#include "tamis/report/web_files.h"

asm(R"(.pushsection .rodata
@assembly@.popsection
)");
@declarations@
namespace tamis::report {

std::string_view web_file(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kFiles = {
@table@  };
  const auto found = kFiles.find(name);
  return found == kFiles.end() ? std::string_view() : found->second;
}

}  // namespace tamis::report
]])
  # A library of its own: a batch of sources would not depend on the files, and ccache does not see what .incbin reads.
  add_library(${target}_web_files OBJECT ${source})
  target_include_directories(${target}_web_files PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target}_web_files PROPERTIES UNITY_BUILD OFF CXX_COMPILER_LAUNCHER "")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${files}")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_web_files>)
endfunction()

# tamis_embed(target FILES file... [CODE text]) links the bytes of the files into the target, unchanged, so that an edit
# of one of them rebuilds only one object. `index.html` begins at the symbol tamis_index_html and ends before
# tamis_index_html_end, where a 0 follows. CODE is C++ beside them; the symbols are visible in the target alone.

function(tamis_embedded_symbol file symbol)
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER tamis_${name} name)
  set(${symbol} ${name} PARENT_SCOPE)
endfunction()

function(tamis_embed target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "CODE" "FILES")
  set(assembly "")
  foreach(file ${arg_FILES})
    tamis_embedded_symbol(${file} symbol)
    string(APPEND assembly ".global ${symbol}, ${symbol}_end\n.hidden ${symbol}, ${symbol}_end\n"
                           "${symbol}: .incbin \"${file}\"\n${symbol}_end: .byte 0\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
@arg_CODE@
asm(R"(.pushsection .rodata
@assembly@.popsection
)");
]])
  # A library of its own: a batch of sources would not depend on the files, and ccache does not see what .incbin reads.
  add_library(${target}_embedded OBJECT ${source})
  target_include_directories(${target}_embedded PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target}_embedded PROPERTIES UNITY_BUILD OFF CXX_COMPILER_LAUNCHER "")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${arg_FILES}")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_embedded>)
endfunction()

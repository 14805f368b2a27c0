# tamis_embed_cuda(target) embeds the CUDA sources *.cu of the operators as text, each under the name tamis_<file>, in
# which `.` is `_`. They are compiled when they are first used (tamis/ops/cuda), so that no build needs CUDA.

function(tamis_embed_cuda target)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tamis/ops/*/*.cu)
  set(assembly "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER tamis_${name} symbol)
    string(APPEND assembly ".global ${symbol}\n.hidden ${symbol}\n${symbol}: .incbin \"${file}\"\n.byte 0\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}_cuda_sources.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
asm(R"(.pushsection .rodata
@assembly@.popsection
)");
]])
  # A library of its own: ccache does not see what .incbin reads.
  add_library(${target}_cuda_sources OBJECT ${source})
  set_target_properties(${target}_cuda_sources PROPERTIES UNITY_BUILD OFF CXX_COMPILER_LAUNCHER "")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${files}")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_cuda_sources>)
endfunction()

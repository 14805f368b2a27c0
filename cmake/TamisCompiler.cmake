# Flags for all of our code: warnings, assertions, sanitizers, ccache.

add_library(tamis_flags INTERFACE)
target_include_directories(tamis_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(tamis_flags INTERFACE -Wall -Wextra -Wno-unknown-pragmas
                                             -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tamis_flags INTERFACE -Wno-restrict)  # GCC 12 sees ghosts in std::string (PR 105651)
endif()
if(TAMIS_WERROR)
  target_compile_options(tamis_flags INTERFACE -Werror)
endif()
if(TAMIS_ASSERTIONS)
  target_compile_definitions(tamis_flags INTERFACE TAMIS_ASSERTIONS)
endif()
if(TAMIS_SANITIZE)
  # Line numbers alone; of the kernels the scalar form and the widest: they are one source, and
  # each costs minutes of compiling.
  target_compile_options(tamis_flags INTERFACE -g1 -fsanitize=${TAMIS_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tamis_flags INTERFACE -Wno-maybe-uninitialized)  # GCC sees ghosts under sanitizers
  endif()
  target_compile_definitions(tamis_flags INTERFACE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX2)")
  target_link_options(tamis_flags INTERFACE -fsanitize=${TAMIS_SANITIZE})
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # The precompiled torch header needs these allowances; -fpch-preprocess lets ccache see through it.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

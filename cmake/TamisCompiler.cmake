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
# Kernels for AVX2, AVX-512 (AVX3) and, as the fallback, no instruction set in particular: every processor that Tamis is
# fast on has AVX2, and each further set costs a fifth of the kernels' compile time.
set(tamis_disabled_targets "HWY_SSSE3|HWY_SSE4")
if(TAMIS_SANITIZE)
  # Line numbers alone; of the kernels the fallback and the widest: they are one source.
  target_compile_options(tamis_flags INTERFACE -g1 -fsanitize=${TAMIS_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tamis_flags INTERFACE -Wno-maybe-uninitialized)  # GCC sees ghosts under sanitizers
  endif()
  string(APPEND tamis_disabled_targets "|HWY_AVX2")
  target_link_options(tamis_flags INTERFACE -fsanitize=${TAMIS_SANITIZE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(tamis_flags INTERFACE "HWY_DISABLED_TARGETS=(${tamis_disabled_targets})")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Without a run of the preprocessor before each compilation; the precompiled torch header needs these allowances.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# Flags for all targets: warnings, assertions, sanitizers, ccache.

add_library(tamis_flags INTERFACE)
target_include_directories(tamis_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(tamis_flags INTERFACE -Wall -Wextra -Wno-unknown-pragmas
                                             -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tamis_flags INTERFACE -Wno-restrict)  # false positives of GCC 12 in std::string (PR 105651)
endif()
if(TAMIS_WERROR)
  target_compile_options(tamis_flags INTERFACE -Werror)
endif()
if(TAMIS_ASSERTIONS)
  target_compile_definitions(tamis_flags INTERFACE TAMIS_ASSERTIONS)
endif()
# Kernels are compiled for AVX2, for AVX-512 (AVX3) and, as the fallback, for the baseline. Each further instruction set
# would add a fifth to the compile time of the kernels.
set(tamis_disabled_targets "HWY_SSSE3|HWY_SSE4")
if(TAMIS_SANITIZE)
  # Debug information with line numbers only, and kernels for the fallback and the widest instruction set only: all sets
  # are compiled from the same source.
  target_compile_options(tamis_flags INTERFACE -g1 -fsanitize=${TAMIS_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tamis_flags INTERFACE -Wno-maybe-uninitialized)  # false positives of GCC with sanitizers
  endif()
  string(APPEND tamis_disabled_targets "|HWY_AVX2")
  target_link_options(tamis_flags INTERFACE -fsanitize=${TAMIS_SANITIZE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # NEON on every processor: kernels keep vectors in arrays, which the vectors of SVE, without a size, cannot be in.
  set(tamis_disabled_targets "HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128")
  # One expression gives one result: no product is fused with a sum in one place and not in another.
  add_compile_options(-ffp-contract=off)
endif()
target_compile_definitions(tamis_flags INTERFACE "HWY_DISABLED_TARGETS=(${tamis_disabled_targets})")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Lets ccache skip the preprocessor; the precompiled torch header needs these sloppiness options.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

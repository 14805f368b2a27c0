# The target tamis_torch: LibTorch's headers and libraries.
#
# The libraries are linked by name, because the TorchConfig.cmake of the PyPI wheel requires a CUDA toolkit. Those for
# CUDA are linked if TAMIS_TORCH names a LibTorch that has them and what they need; no source needs nvcc. The wheel in
# .venv has them too, but not what they need (scripts/setup.sh), and programs for the CPU start faster without.

set(torch_root "${TAMIS_TORCH}")
if(NOT torch_root)
  file(GLOB torch_root ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch: expected lib/libtorch_cpu.so in '${torch_root}'; run `make setup`, or name a "
                      "LibTorch >= 2.11 with `make TAMIS_TORCH=/path/to/libtorch`")
endif()

# ATen uses OpenMP threads: use the runtime that libtorch_cpu loads, so that there is one thread pool.
if(NOT TAMIS_FUZZ)  # clang would use another runtime; readers need no threads
  find_package(OpenMP REQUIRED)
endif()
file(GLOB torch_openmp ${torch_root}/lib/libgomp*.so*)
if(NOT torch_openmp)
  set(torch_openmp OpenMP::OpenMP_CXX)
endif()

add_library(tamis_torch INTERFACE)
target_include_directories(tamis_torch SYSTEM INTERFACE ${torch_root}/include
                                                        ${torch_root}/include/torch/csrc/api/include)
target_link_libraries(tamis_torch INTERFACE ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so
                                            ${torch_openmp})
target_compile_options(tamis_torch INTERFACE ${OpenMP_CXX_FLAGS})
# Some LibTorch versions include the headers of another fmt, without its library. The system's come first: its library
# is compiled already, and header-only code would be compiled again in every file.
get_target_property(fmt_headers ${tamis_fmt} INTERFACE_INCLUDE_DIRECTORIES)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fmt_headers)
file(CREATE_LINK ${fmt_headers}/fmt ${CMAKE_BINARY_DIR}/fmt_headers/fmt SYMBOLIC)
target_include_directories(tamis_torch SYSTEM BEFORE INTERFACE ${CMAKE_BINARY_DIR}/fmt_headers)
target_link_libraries(tamis_torch INTERFACE ${tamis_fmt})
if(TAMIS_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tamis_torch INTERFACE -Wno-tsan)  # the headers use atomic_thread_fence, which it cannot follow
endif()
# The wheel's CUDA stubs are in other packages, which libtorch_cpu finds at run time.
target_link_options(tamis_torch INTERFACE -Wl,--allow-shlib-undefined)

set(torch_cuda ${torch_root}/lib/libtorch_cuda.so)
set(torch_kind "CPU only")
if(TAMIS_TORCH AND EXISTS ${torch_cuda} AND NOT CMAKE_CROSSCOMPILING AND NOT TAMIS_PACKAGE
   AND NOT SKBUILD)
  execute_process(COMMAND ldd ${torch_cuda} OUTPUT_VARIABLE torch_needs RESULT_VARIABLE torch_failed ERROR_QUIET)
  string(REGEX MATCHALL "[^ \t\n]+ => not found" torch_missing "${torch_needs}")
  if(torch_failed OR torch_missing)
    set(torch_kind "CPU only, because libtorch_cuda.so needs what ldd does not find: ${torch_missing}")
  else()
    set(torch_kind "with CUDA")
    target_link_libraries(tamis_torch INTERFACE -Wl,--no-as-needed ${torch_cuda} ${torch_root}/lib/libc10_cuda.so
                                                ${torch_root}/lib/libtorch.so -Wl,--as-needed)
  endif()
endif()
message(STATUS "LibTorch, ${torch_kind}: ${torch_root}")

# Messages and assertions name files without the directories of the machine that compiled them. A release, and with it the
# wheel, names them nowhere.
file(REAL_PATH ${torch_root} torch_directory)
foreach(directory ${torch_root}=torch ${torch_directory}=torch ${PROJECT_SOURCE_DIR}=.)
  add_compile_options($<IF:$<CONFIG:Release>,-ffile-prefix-map,-fmacro-prefix-map>=${directory})
endforeach()

# Parsing the torch headers takes many seconds per file, so they are precompiled. In a release this is done once for each
# level of optimisation, because their functions are inlined as the header was compiled. Layers that compute use the full
# level. The program, benchmarks, and layers whose own code takes a small part of the time of a step or a token use -O1,
# which compiles in two thirds of the time (tamis_layer(... O1)). Most tests use -O0, which takes half of that; inline
# functions that a test shares with the product then run unoptimised in it. Other build types have one level for all.
function(tamis_torch_header name)  # tamis_torch_header(name [options])
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/torch_header.cc)
  target_link_libraries(${name} PUBLIC tamis_torch tamis_flags)
  target_compile_options(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE <ATen/ATen.h> <torch/csrc/autograd/autograd.h>
                            <torch/csrc/autograd/custom_function.h> <torch/library.h>)
endfunction()
tamis_torch_header(tamis_torch_header)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  tamis_torch_header(tamis_torch_header_O1 -O1)
  tamis_torch_header(tamis_torch_header_O0 -O0)
endif()

function(tamis_uses_torch target)  # tamis_uses_torch(target [O1 | O0])
  if(NOT "${ARGN}" MATCHES "^(O1|O0|)$")
    message(FATAL_ERROR "tamis_uses_torch(${target}): expected O1, O0 or nothing, got ${ARGN}")
  endif()
  target_link_libraries(${target} PUBLIC tamis_torch)
  if(ARGN AND TARGET tamis_torch_header_${ARGN})
    target_compile_options(${target} PRIVATE -${ARGN})
    target_precompile_headers(${target} REUSE_FROM tamis_torch_header_${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM tamis_torch_header)
  endif()
endfunction()

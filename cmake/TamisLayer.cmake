# One CMake target per layer: tamis_<layer>, its tests tamis_<layer>_test and its micro-benchmarks tamis_<layer>_bench.
# Files are found by their names: *_test.cc, *_bench.cc, *_kernel.cc and *_kernel_test.cc (no torch) and the rest.

# Compiles the sources of a target in batches (unity build), because parsing LibTorch's headers takes seconds per file
# and most of the build time. Compiled separately are the main files of operators (tamis/ops/<name>/<name>.cc), which use
# the same names in anonymous namespaces, and kernels and their tests, which include themselves once per instruction set.
# The tests and benchmarks of operators use the same names, too, so each has a namespace named after its file.
function(tamis_in_batches)
  if(NOT TAMIS_BATCHES)
    return()
  endif()
  foreach(target ${ARGN})
    if(TARGET ${target})
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # GCC treats the files of a batch as headers
        target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
      endif()
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TAMIS_BATCH_SIZE})
      get_target_property(sources ${target} SOURCES)
      foreach(file ${sources})
        get_filename_component(folder ${file} DIRECTORY)
        get_filename_component(folder ${folder} NAME)
        if(file MATCHES "/ops/${folder}/${folder}\\.cc$" OR file MATCHES "/tamis/kernels/|_kernel(_test)?\\.cc$")
          set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()

function(tamis_find_sources layer)
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tamis/${layer}/*.cc)
  list(FILTER all EXCLUDE REGEX "/arrow/")  # a library of its own (TamisArrow.cmake)
  set(tests ${all})
  set(benches ${all})
  set(kernels ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(kernel_tests ${tests})
  list(FILTER kernel_tests INCLUDE REGEX "_kernel_test\\.cc$")
  list(FILTER tests EXCLUDE REGEX "_kernel_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER kernels INCLUDE REGEX "_kernel\\.cc$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|kernel)\\.cc$")
  set(layer_sources ${sources} PARENT_SCOPE)
  set(layer_kernels ${kernels} PARENT_SCOPE)
  set(layer_tests ${tests} PARENT_SCOPE)
  set(layer_kernel_tests ${kernel_tests} PARENT_SCOPE)
  set(layer_benches ${benches} PARENT_SCOPE)
endfunction()

# Tests that take more than five seconds of processor time; `make test QUICK=1` leaves them out.
set(TAMIS_SLOW_TESTS ops models bench_test busy_machine_test command_line_test context_parallel_test convert_test
    data_test device_test distributed distributed_test fine_tuning_test inference_commands_test input_output_test
    inspect_test install_test meeting_test non_finite_test parquet_test peers_test plan_test prepare_test report_test
    repro_test resume_test robust_input_test robust_process_test sharded_checkpoint_test shared_evaluation_test start_test
    study_figures_test study_process_test study_start_test study_test tokenizers_test your_text_test)

# Cases of slow layers that take less than five seconds together. They are the test <layer>_quick, which QUICK=1 runs
# too.
string(JOIN ":" TAMIS_QUICK_ops
    Acceptance.* Attention.* DocumentOrder.* EntmaxAttention.* LastQueries/* MatmulBackend.* Parallel.*
    QueryBlocks.* ScreeningFunctions.* ScreeningLayer.* ScreeningState.* SieveAttention.* SoftmaxAttention.*
    SoftmaxAttentionPart.* StickBreakingAttention.* Team.* VectorUnits.*)
string(JOIN ":" TAMIS_QUICK_models
    Checkpoint.* CompleteConfig.* Exchange.* ForeignConfig.* MipeWrap.* *StoredVersion.* Multiscreen.*
    ParameterCount.* PatternModel.* Patterns/EveryMixer.*)

# The longest tests, which begin first so that no core is idle in the end; the others follow by their last times.
set(TAMIS_LONGEST_TESTS ops distributed_test models context_parallel_test device_test report_test repro_test plan_test
    prepare_test robust_process_test study_test)

# Layers whose tests lose more time by running without optimisation than is saved when they are compiled.
set(TAMIS_OPTIMISED_TESTS models)

function(tamis_test name)  # tamis_test(name command...)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TIMEOUT 1800)
  if(name IN_LIST TAMIS_SLOW_TESTS)
    set_tests_properties(${name} PROPERTIES LABELS slow)
  endif()
  list(FIND TAMIS_LONGEST_TESTS ${name} place)
  if(place GREATER_EQUAL 0)
    math(EXPR cost "10000 - ${place}")
    set_tests_properties(${name} PROPERTIES COST ${cost})
  endif()
  if(name STREQUAL "busy_machine_test")  # it compares speeds
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(tamis_add_tests layer)
  if(TAMIS_TESTS AND layer_tests)
    add_executable(tamis_${layer}_test ${layer_tests})
    target_link_libraries(tamis_${layer}_test PRIVATE tamis_threads tamis_${layer} ${ARGN} GTest::gtest GTest::gmock GTest::gtest_main)
    if(TAMIS_QUICK_${layer})
      tamis_test(${layer} tamis_${layer}_test --gtest_filter=-${TAMIS_QUICK_${layer}})
      tamis_test(${layer}_quick tamis_${layer}_test --gtest_filter=${TAMIS_QUICK_${layer}})
    else()
      tamis_test(${layer} tamis_${layer}_test)
    endif()
  endif()
  if(TAMIS_BENCH AND layer_benches)
    add_executable(tamis_${layer}_bench ${layer_benches})
    target_link_libraries(tamis_${layer}_bench PRIVATE tamis_threads tamis_${layer} ${ARGN} benchmark::benchmark
                                                       benchmark::benchmark_main)
  endif()
  tamis_in_batches(tamis_${layer}_test tamis_${layer}_bench)
endfunction()

# How tests and benchmarks are compiled: TamisTorch.cmake says why most tests of a release are not optimised.
function(tamis_compile_tests layer uses_torch)
  set(level O0)
  if(layer IN_LIST TAMIS_OPTIMISED_TESTS)
    set(level O1)
  endif()
  if(TARGET tamis_${layer}_test AND uses_torch)
    tamis_uses_torch(tamis_${layer}_test ${level})
  elseif(TARGET tamis_${layer}_test AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(tamis_${layer}_test PRIVATE -${level})
  endif()
  if(TARGET tamis_${layer}_bench AND uses_torch)
    tamis_uses_torch(tamis_${layer}_bench O1)
  endif()
endfunction()

function(tamis_static_layer layer)
  if(NOT layer_sources)
    add_library(tamis_${layer} INTERFACE)
    target_link_libraries(tamis_${layer} INTERFACE tamis_flags ${ARGN})
    return()
  endif()
  add_library(tamis_${layer} STATIC ${layer_sources})
  target_link_libraries(tamis_${layer} PUBLIC tamis_flags ${ARGN})
  tamis_in_batches(tamis_${layer})
endfunction()

# tamis_layer(name [TORCH | TORCH O1] [USES layer...] [LINK target...])
function(tamis_layer layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;O1" "" "USES;LINK")
  list(TRANSFORM arg_USES PREPEND tamis_)
  if(arg_O1 AND NOT arg_TORCH)
    message(FATAL_ERROR "tamis_layer(${layer}): O1 is only for layers with TORCH")
  endif()
  tamis_find_sources(${layer})
  tamis_static_layer(${layer} ${arg_USES} ${arg_LINK})
  if(arg_TORCH AND layer_sources)
    if(arg_O1)
      tamis_uses_torch(tamis_${layer} O1)
    else()
      tamis_uses_torch(tamis_${layer})
    endif()
  endif()
  tamis_add_tests(${layer})
  tamis_compile_tests(${layer} ${arg_TORCH})
endfunction()

# The team of threads that serves OpenMP's parallel regions. Objects, not an archive: most of these functions are called
# only by the libraries that a program is linked with, and the program has to export them.
function(tamis_threads_layer layer)
  tamis_find_sources(${layer})
  find_package(Threads REQUIRED)
  add_library(tamis_${layer} OBJECT ${layer_sources})
  target_link_libraries(tamis_${layer} PUBLIC tamis_flags Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(tamis_${layer} INTERFACE LINKER:--export-dynamic-symbol=GOMP_*
                                               LINKER:--export-dynamic-symbol=omp_*)
  tamis_add_tests(${layer})
  if(TARGET tamis_${layer}_test)  # the tests are OpenMP code
    target_link_libraries(tamis_${layer}_test PRIVATE OpenMP::OpenMP_CXX)
  endif()
endfunction()

# All code without torch: tamis/kernels and each operator's *_kernel.cc. Its commands have nothing of tamis_base's
# libraries, so that ccache finds the program's kernels for the wheel, where those differ. GCC cannot compile kernels for
# SVE with torch's precompiled header, so tests that include them are *_kernel_test.cc and here, too.
function(tamis_kernel_layer layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  tamis_find_sources(ops)
  set(operator_kernels ${layer_kernels})
  set(operator_tests ${layer_kernel_tests})
  tamis_find_sources(${layer})
  list(APPEND layer_tests ${operator_tests})
  list(APPEND layer_sources ${layer_kernels} ${operator_kernels})
  if(TAMIS_FUZZ)  # readers do not call kernels
    set(layer_sources "")
  endif()
  tamis_static_layer(${layer} ${arg_LINK} $<LINK_ONLY:tamis_base>)
  tamis_add_tests(${layer} tamis_base)
endfunction()

# The operators, as the one shared library that PyTorch loads too.
function(tamis_operator_layer layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "USES;LINK")
  list(TRANSFORM arg_USES PREPEND tamis_)
  tamis_find_sources(${layer})
  if(TAMIS_FUZZ)  # readers do not call operators
    set(layer_sources "")
    tamis_static_layer(${layer} ${arg_USES} ${arg_LINK})
    return()
  endif()
  add_library(tamis_${layer} SHARED ${layer_sources})
  target_link_libraries(tamis_${layer} PUBLIC tamis_flags PRIVATE ${arg_USES} ${arg_LINK})
  tamis_in_batches(tamis_${layer})
  tamis_embed_cuda(tamis_${layer})
  target_link_options(tamis_${layer} PRIVATE -Wl,--exclude-libs,libtamis_base.a)
  tamis_uses_torch(tamis_${layer})
  tamis_add_tests(${layer} ${arg_USES})
  tamis_compile_tests(${layer} ON)
endfunction()

# The program: main.cc and one file per command. Its tests are tests/*_test.py, which run it.
function(tamis_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "USES;LINK")
  list(TRANSFORM arg_USES PREPEND tamis_)
  tamis_find_sources(cli)
  if(layer_tests OR layer_benches)
    message(FATAL_ERROR "cli is tested by tests/*_test.py; move ${layer_tests} ${layer_benches}")
  endif()
  add_executable(${name} ${layer_sources})
  target_link_libraries(${name} PRIVATE tamis_flags ${arg_USES} ${arg_LINK})
  tamis_in_batches(${name})
  tamis_uses_torch(${name} O1)
endfunction()

# tests/*_test.cc test several layers together, or the program itself. The name of a test is that of its file; a layer's
# own test has the name of the layer.
function(tamis_tests_across_layers)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "USES")
  list(TRANSFORM arg_USES PREPEND tamis_)
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc)
  if(NOT TAMIS_TESTS)
    return()
  endif()
  foreach(file ${tests})
    get_filename_component(name ${file} NAME_WE)
    add_executable(${name} ${file})
    target_link_libraries(${name} PRIVATE tamis_threads ${arg_USES} GTest::gtest GTest::gmock GTest::gtest_main)
    tamis_uses_torch(${name} O0)
    if(TARGET tamis)
      add_dependencies(${name} tamis)
      target_compile_definitions(${name} PRIVATE TAMIS_PROGRAM="$<TARGET_FILE:tamis>")
    endif()
    tamis_test(${name} ${name})
  endforeach()
  if(NOT TAMIS_SANITIZE)  # their libraries have to be loaded first
    add_library(tamis_fork_server SHARED ${PROJECT_SOURCE_DIR}/tests/fork_server.cc)
    target_link_libraries(tamis_fork_server PRIVATE tamis_flags ${CMAKE_DL_LIBS})
    add_library(tamis_simulated_device SHARED ${PROJECT_SOURCE_DIR}/tests/simulated_device.cc)
    target_link_libraries(tamis_simulated_device PRIVATE tamis_flags)
    tamis_uses_torch(tamis_simulated_device O1)
  endif()
  file(GLOB scripts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.py)
  set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)  # with pytest and Playwright: scripts/setup.sh test
  foreach(file ${scripts})
    get_filename_component(name ${file} NAME_WE)
    tamis_test(${name} ${python} -m pytest -q ${file} --program $<TARGET_FILE:tamis> --ctest)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endfunction()

# Fuzzing of the file readers (tests/fuzz). With TAMIS_FUZZ (preset `fuzz`, clang) builds the program tamis_fuzz, otherwise
# the test fuzz_replay, which runs the same functions on the corpora.

option(TAMIS_FUZZ "Build tamis_fuzz with libFuzzer and AddressSanitizer (clang)" OFF)
if(TAMIS_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "TAMIS_FUZZ: libFuzzer is a part of clang, but the compiler is ${CMAKE_CXX_COMPILER_ID}; "
                      "configure with --preset fuzz")
endif()

function(tamis_fuzz_targets)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "USES")
  list(TRANSFORM arg_USES PREPEND tamis_)
  set(folder ${PROJECT_SOURCE_DIR}/tests/fuzz)
  if(TAMIS_FUZZ)
    add_executable(tamis_fuzz ${folder}/targets.cc ${folder}/fuzz_main.cc)
    target_link_libraries(tamis_fuzz PRIVATE ${arg_USES})
    # Without operators and kernels, nine tenths of the compile time; readers do not call them. ld leaves empty entries
    # for unresolved functions, which the loader refuses unless it binds all of them at once.
    target_link_options(tamis_fuzz PRIVATE -fsanitize=fuzzer -Wl,--unresolved-symbols=ignore-all -Wl,-z,now)
    tamis_uses_torch(tamis_fuzz)
  elseif(TAMIS_TESTS)
    add_executable(fuzz_replay_test ${folder}/targets.cc ${folder}/replay_test.cc)
    target_compile_definitions(fuzz_replay_test PRIVATE TAMIS_FUZZ_CORPUS="${folder}/corpus")
    target_link_libraries(fuzz_replay_test PRIVATE ${arg_USES} GTest::gtest GTest::gtest_main)
    tamis_uses_torch(fuzz_replay_test O0)
    add_test(NAME fuzz_replay COMMAND fuzz_replay_test)
    set_tests_properties(fuzz_replay PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TIMEOUT 600)
  endif()
endfunction()

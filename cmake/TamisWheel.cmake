# What `pip install .` builds (pyproject.toml): the operators alone, against the torch of the calling Python.

if(NOT TAMIS_TORCH)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TAMIS_TORCH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "tamis: ${Python_EXECUTABLE} has no torch; install torch >= 2.11 first, and build with "
                        "`pip install --no-build-isolation .`")
  endif()
endif()
set(TAMIS_TESTS OFF)
set(TAMIS_BENCH OFF)

# Operators use no digests: compiled by itself, this file stays out of the library, and OpenSSL with it.
set_source_files_properties(${PROJECT_SOURCE_DIR}/tamis/base/digest.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# Next to the Python files, with Highway's library unless that is static. In the package's own environment torch is its
# neighbour, and it is loaded already.
function(tamis_install_into_wheel)
  set_target_properties(tamis_ops PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
  target_link_options(tamis_ops PRIVATE LINKER:-z,defs)  # what nothing provides is an error now, not at `import tamis`
  install(TARGETS tamis_ops LIBRARY DESTINATION tamis COMPONENT wheel)
  get_target_property(kind hwy::hwy TYPE)
  if(kind STREQUAL "SHARED_LIBRARY")
    install(FILES $<TARGET_FILE:hwy::hwy> DESTINATION tamis RENAME $<TARGET_SONAME_FILE_NAME:hwy::hwy> COMPONENT wheel)
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/python/tamis_lm_eval.pth ${PROJECT_SOURCE_DIR}/python/tamis_lm_eval_hook.py
          DESTINATION . COMPONENT wheel)
endfunction()

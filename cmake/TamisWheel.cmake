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

# Beside the Python files. In the package's own environment torch is its neighbour, and it is loaded already.
function(tamis_install_into_wheel)
  set_target_properties(tamis_ops PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib")
  install(TARGETS tamis_ops LIBRARY DESTINATION tamis COMPONENT wheel)
  install(FILES ${PROJECT_SOURCE_DIR}/python/tamis_lm_eval.pth ${PROJECT_SOURCE_DIR}/python/tamis_lm_eval_hook.py
          DESTINATION . COMPONENT wheel)
endfunction()

# `make install`: the program, the operator library with its headers and a CMake package, manual pages, completions and
# recipes. LibTorch is not installed: programs and libraries load it from where it was at build time.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# From the program to the operators.
file(RELATIVE_PATH tamis_from_program ${CMAKE_CURRENT_BINARY_DIR}/${CMAKE_INSTALL_BINDIR}
     ${CMAKE_CURRENT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR})
set_target_properties(tamis_ops PROPERTIES INSTALL_RPATH "${torch_root}/lib")
set_target_properties(tamis PROPERTIES INSTALL_RPATH "$ORIGIN/${tamis_from_program};${torch_root}/lib")
install(TARGETS tamis RUNTIME)
install(TARGETS tamis_ops LIBRARY)

# The public header of each operator, and the headers that these include.
file(GLOB tamis_operator_folders LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tamis/ops/*)
set(tamis_headers tamis/ops/attention_token.h tamis/ops/linear.h tamis/ops/screening/screening_state.h
    tamis/ops/screening/screening_layer.h tamis/kernels/attention.h tamis/kernels/rows.h)
foreach(folder ${tamis_operator_folders})
  get_filename_component(name ${folder} NAME)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/${name}.h)
    list(APPEND tamis_headers ${folder}/${name}.h)
  endif()
endforeach()
foreach(header ${tamis_headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()

set(tamis_package ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tamis-config.cmake.in tamis-config.cmake
                              INSTALL_DESTINATION ${tamis_package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(tamis-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tamis-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/tamis-config-version.cmake
        DESTINATION ${tamis_package})

# Completions and manual pages, which the program generates, in the directories where shells and `man` find them.
set(tamis_documents ${CMAKE_CURRENT_BINARY_DIR}/documents)
add_custom_command(
  OUTPUT ${tamis_documents}/made
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${tamis_documents}
  COMMAND tamis man ${tamis_documents}/man1
  COMMAND tamis completion bash > ${tamis_documents}/tamis
  COMMAND tamis completion zsh > ${tamis_documents}/_tamis
  COMMAND tamis completion fish > ${tamis_documents}/tamis.fish
  COMMAND ${CMAKE_COMMAND} -E touch ${tamis_documents}/made
  DEPENDS tamis
  VERBATIM)
add_custom_target(tamis_documents ALL DEPENDS ${tamis_documents}/made)
install(DIRECTORY ${tamis_documents}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${tamis_documents}/tamis DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${tamis_documents}/_tamis DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${tamis_documents}/tamis.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/tamis)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

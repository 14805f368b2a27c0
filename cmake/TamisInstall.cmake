# `make install`: the program, the operator library with its headers and a CMake package, manual pages, completions and
# recipes. LibTorch is not installed: programs and libraries load it from where it was at build time. In a Debian package
# (TamisPackage.cmake) it is, and headers are not.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(TamisPackage)

# From the program to the operators.
file(RELATIVE_PATH tamis_from_program ${CMAKE_CURRENT_BINARY_DIR}/${CMAKE_INSTALL_BINDIR}
     ${CMAKE_CURRENT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR})
if(TAMIS_PACKAGE)
  set(tamis_torch_path "$ORIGIN")
else()
  set(tamis_torch_path "${torch_root}/lib")
endif()
set_target_properties(tamis_ops PROPERTIES INSTALL_RPATH "${tamis_torch_path}")
set_target_properties(tamis PROPERTIES INSTALL_RPATH "$ORIGIN/${tamis_from_program};${tamis_torch_path}")
install(TARGETS tamis tamis_ops RUNTIME_DEPENDENCY_SET tamis_dependencies)

# The public header of each operator, the headers that these include, and the CMake package.
function(tamis_install_headers)
  file(GLOB folders LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tamis/ops/*)
  set(headers tamis/ops/attention_token.h tamis/ops/linear.h tamis/ops/screening/screening_state.h
      tamis/ops/screening/screening_layer.h tamis/kernels/attention.h tamis/kernels/rows.h)
  foreach(folder ${folders})
    get_filename_component(name ${folder} NAME)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/${name}.cc)  # not of what operators share, such as selection/
      list(APPEND headers ${folder}/${name}.h)
    endif()
  endforeach()
  foreach(header ${headers})
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  endforeach()
  set(directory ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tamis-config.cmake.in tamis-config.cmake
                                INSTALL_DESTINATION ${directory} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
  write_basic_package_version_file(tamis-config-version.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tamis-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/tamis-config-version.cmake
          DESTINATION ${directory})
endfunction()
if(NOT TAMIS_PACKAGE)
  tamis_install_headers()
endif()

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
tamis_debian_package()

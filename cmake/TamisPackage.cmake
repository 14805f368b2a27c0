# `make package`, with the preset package: a Debian package of the program, with its own copy of LibTorch in
# /usr/lib/tamis. Debian's libraries become dependencies.

option(TAMIS_PACKAGE "Install the program with LibTorch and without headers, for a Debian package" OFF)

# To be called after the install rules of the program and the operators, with what they load in tamis_dependencies.
function(tamis_debian_package)
  if(NOT TAMIS_PACKAGE)
    return()
  endif()
  get_filename_component(packages ${torch_root} DIRECTORY)
  file(GLOB directories ${packages}/nvidia/*/lib)  # stubs that libtorch_cpu.so needs, in wheels of their own
  install(RUNTIME_DEPENDENCY_SET tamis_dependencies
    DIRECTORIES ${torch_root}/lib ${directories}
    PRE_EXCLUDE_REGEXES "^libtamis" POST_EXCLUDE_REGEXES "^/lib/" "^/usr/lib/"
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
  file(GLOB licenses ${packages}/torch-*.dist-info/licenses)
  file(GLOB nvidia_licenses ${packages}/nvidia_cuda_*.dist-info/licenses/License.txt
       ${packages}/nvidia_cuda_*.dist-info/License.txt)
  if(NOT licenses OR NOT nvidia_licenses)
    message(FATAL_ERROR "TAMIS_PACKAGE: expected the licenses of torch and nvidia-cuda-* next to ${torch_root}, as pip "
                        "installs them")
  endif()
  install(DIRECTORY ${licenses}/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/libtorch)
  list(GET nvidia_licenses 0 nvidia_license)
  install(FILES ${nvidia_license} DESTINATION ${CMAKE_INSTALL_DOCDIR}/nvidia)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME tamis)
  set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
  set(CPACK_PACKAGE_CONTACT "The authors of Tamis")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language models that select from their context")
  set(CPACK_PACKAGE_DESCRIPTION
      "Trains, evaluates, inspects and runs language models with screening (Multiscreen), Sieve, Scalable-Softmax,
 sliding windows and mLSTM memory, on the CPU. Contains its own copy of LibTorch.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_THREADS 0)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${torch_root}/lib ${directories} ${CMAKE_BINARY_DIR})
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-matplotlib, bash-completion")
  include(CPack)
endfunction()

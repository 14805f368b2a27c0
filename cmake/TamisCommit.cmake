# tamis_build_commit(target) adds `const char* tamis::train::build_commit()`, the git commit of the build. It is determined
# at every build; the file is compiled again only when it changes.

function(tamis_build_commit target)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/tamis_build_commit.cc)
  add_custom_target(tamis_commit BYPRODUCTS ${source} COMMENT ""
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${source}
            -P ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake)
  target_sources(${target} PRIVATE ${source})
  add_dependencies(${target} tamis_commit)
  set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

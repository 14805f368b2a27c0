# Parquet, by Apache Arrow: headers and libraries are inside the pyarrow wheel. libtamis_parquet.so is a library of its own
# that the program loads when it reads the first Parquet file. Without pyarrow everything else is built, and a Parquet
# file is refused with the command that installs it.

option(TAMIS_ARROW "Build the reader of Parquet files when there is a pyarrow in .venv" ON)

function(tamis_parquet_library)
  file(GLOB arrow ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
  file(GLOB libraries ${arrow}/libarrow.so.* ${arrow}/libparquet.so.*)
  list(LENGTH libraries count)
  if(NOT TAMIS_ARROW OR NOT EXISTS "${arrow}/include/parquet/api/reader.h" OR NOT count EQUAL 2 OR TAMIS_SANITIZE)
    message(STATUS "Without Parquet: it needs pyarrow (scripts/setup.sh parquet), and no sanitizer")
    return()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/tamis/data/arrow)
  add_library(tamis_parquet SHARED ${folder}/parquet_arrow.cc)
  target_link_libraries(tamis_parquet PRIVATE tamis_flags ${libraries})
  target_include_directories(tamis_parquet SYSTEM PRIVATE ${arrow}/include)
  target_link_options(tamis_parquet PRIVATE -Wl,--allow-shlib-undefined)
  set_target_properties(tamis_parquet PROPERTIES INSTALL_RPATH "${arrow}")
  add_dependencies(tamis tamis_parquet)
  install(TARGETS tamis_parquet LIBRARY)
  message(STATUS "Parquet: ${arrow}")
endfunction()

# Hugging Face's tokenizers, a Rust crate behind C functions (tamis/text/huggingface), as the static library that
# tamis_text is linked with. Without cargo everything else is built, and what needs the crate says how to install it.

option(TAMIS_RUST "Build what is written in Rust, Hugging Face's tokenizers, when there is a cargo that can" ON)
set(tamis_rust_version 1.85)  # rust-version in Cargo.toml

# Why cargo cannot build the crate of `folder`, or nothing in `reason`. Downloads what Cargo.lock names.
function(tamis_check_cargo folder reason)
  set(${reason} "" PARENT_SCOPE)
  find_program(TAMIS_CARGO NAMES cargo HINTS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin)
  if(NOT TAMIS_CARGO)
    set(${reason} "there is no cargo" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${TAMIS_CARGO} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(NOT version MATCHES "^cargo ([0-9.]+)" OR CMAKE_MATCH_1 VERSION_LESS tamis_rust_version)
    string(STRIP "${version}" version)
    set(${reason} "'${TAMIS_CARGO} --version' says '${version}'" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${TAMIS_CARGO} fetch --locked --quiet --manifest-path ${folder}/Cargo.toml
                  RESULT_VARIABLE failed ERROR_VARIABLE error)
  if(failed)
    string(REGEX REPLACE "[ \n]+" " " error "${error}")
    set(${reason} "'cargo fetch' fails: ${error}" PARENT_SCOPE)
  endif()
endfunction()

function(tamis_link_tokenizers target)
  set(folder ${PROJECT_SOURCE_DIR}/tamis/text/huggingface)
  if(NOT TAMIS_RUST)
    set(reason "TAMIS_RUST is off")
  elseif(TAMIS_SANITIZE MATCHES "thread")
    set(reason "ThreadSanitizer cannot follow Rust's locks")
  else()
    tamis_check_cargo(${folder} reason)
  endif()
  if(reason)
    message(STATUS "Without Hugging Face tokenizers: ${reason}; they need cargo ${tamis_rust_version} or newer "
                   "(Debian: apt-get install cargo-web)")
    return()
  endif()
  set(cargo_home $ENV{CARGO_HOME})
  if(NOT cargo_home)
    set(cargo_home $ENV{HOME}/.cargo)
  endif()
  set(build ${CMAKE_BINARY_DIR}/rust)
  set(library ${build}/release/libtamis_tokenizers.a)
  add_custom_command(
    OUTPUT ${library}
    COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${build} "RUSTFLAGS=$ENV{RUSTFLAGS} --remap-path-prefix=${cargo_home}=cargo"
            ${TAMIS_CARGO} build --release --locked --quiet --manifest-path ${folder}/Cargo.toml
    COMMAND ${CMAKE_COMMAND} -E touch ${library}  # cargo leaves the time when nothing has changed
    DEPENDS ${folder}/Cargo.toml ${folder}/Cargo.lock ${folder}/src/lib.rs
    COMMENT "Building Hugging Face's tokenizers with cargo"
    VERBATIM)
  add_custom_target(tamis_tokenizers DEPENDS ${library})
  add_dependencies(${target} tamis_tokenizers)
  target_compile_definitions(${target} PRIVATE TAMIS_TOKENIZERS)
  find_package(Threads REQUIRED)
  # As rustc --print native-static-libs says; the rest is in every C++ program.
  target_link_libraries(${target} PUBLIC ${library} Threads::Threads ${CMAKE_DL_LIBS} m rt util)
  message(STATUS "Hugging Face tokenizers: ${TAMIS_CARGO}")
endfunction()

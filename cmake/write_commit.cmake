# cmake -DSOURCE=<tree> -DOUTPUT=<file.cc> -P write_commit.cmake: writes the file if the commit has changed. The commit is
# "unknown" if SOURCE is not the root of a git checkout, for example an unpacked archive.

set(commit "unknown")
set(ENV{GIT_OPTIONAL_LOCKS} 0)
execute_process(COMMAND git -C ${SOURCE} ls-files --error-unmatch CMakeLists.txt
                RESULT_VARIABLE untracked OUTPUT_QUIET ERROR_QUIET)
if(untracked EQUAL 0)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(described)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
namespace tamis::train {

const char* build_commit() {
  return "@commit@";
}

}  // namespace tamis::train
]])

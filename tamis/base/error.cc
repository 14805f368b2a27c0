#include "tamis/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace tamis {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal error: %s does not hold; please report it\n", file, line, condition);
  std::abort();
}

}  // namespace tamis

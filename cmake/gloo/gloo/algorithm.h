// LibTorch contains Gloo but not its headers. c10d's ProcessGroupGloo.hpp uses the names declared in this folder, most
// of them only behind pointers; Tamis makes no object of these classes and calls none of their functions.
#pragma once

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tamis::bench {

/// How long to measure.
struct MeasureOptions {
  int64_t repeat = 5;    // calls at least
  double seconds = 2.0;  // of calls at least
};

/// How to measure the machine's peaks.
struct PeakOptions {
  int64_t matmul_size = 2048;                       // of the square matrices
  double seconds = 0.5;                             // of each measurement
  int64_t read_bytes = int64_t{256} * 1024 * 1024;  // many times the caches
};

/// Options that every bench has.
struct Options {
  std::vector<int64_t> threads = {0};  // numbers of threads, one after the other; 0: one per core
  std::vector<std::string> dtypes = {"float32", "bfloat16"};  // decoding: "int8" too
  MeasureOptions measure;
  PeakOptions peaks;
};

/// Whole training steps on random tokens.
struct TrainBench : Options {
  int64_t psi = 16;
  int64_t vocab = 512;
  std::vector<int64_t> lengths = {512, 4096};
  int64_t batch_tokens = 0;  // of a step; 0: 2048, or one sequence where that is more
  double recompute = 0.0;    // share of the layers that recompute their activations
};

/// A fresh Multiscreen, or a trained one.
struct ModelBench : Options {
  int64_t psi = 16;
  int64_t vocab = 512;
  std::vector<std::string> windows;  // "initial" (default), "infinite"; of a checkpoint "trained", "expanded" (both)
  std::filesystem::path checkpoint;  // a trained Multiscreen instead of a fresh one; or a run directory
  std::filesystem::path text;        // for a checkpoint: what it reads, repeated, "-" standard input; default: random
};

/// Model::hidden without gradients, one sequence.
struct ForwardBench : ModelBench {
  std::vector<int64_t> lengths = {4096, 16384};
};

/// Greedy decoding, token by token, after a context of random tokens or of a text.
struct DecodeBench : ModelBench {
  std::vector<int64_t> depths = {0, 1024, 16384};  // tokens of the context
  std::vector<int64_t> batches = {1};              // sequences
  int64_t tokens = 128;                            // of a measured call
};

/// Throws ExitCode::kUsage on a dtype or a window that is not known, or that this bench does not have.
void check_options(const TrainBench& bench);
void check_options(const ForwardBench& bench);
void check_options(const DecodeBench& bench);

}  // namespace tamis::bench

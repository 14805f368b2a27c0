#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tamis/bench/options.h"
#include "tamis/bench/report.h"

namespace tamis::bench {

/// Every bench first compares a short piece of the same work with its definition in float64 and throws
/// ExitCode::kRuntime when they differ; then it measures. Options out of range throw ExitCode::kUsage. `messages` gets
/// the progress.

/// Whole training steps on random tokens.
struct TrainBench : Options {
  int64_t psi = 16;
  int64_t vocab = 512;
  std::vector<int64_t> lengths = {512, 4096};
  int64_t batch_tokens = 0;  // of a step; 0: 2048, or one sequence where that is more
  double recompute = 0.0;    // share of the layers that recompute their activations
};
Report run(const TrainBench& bench, std::FILE* messages);

/// Model::hidden without gradients, one sequence.
struct ForwardBench : Options {
  int64_t psi = 16;
  int64_t vocab = 512;
  std::vector<int64_t> lengths = {4096, 16384};
  std::vector<std::string> windows = {"initial"};  // "initial", "infinite"
};
Report run(const ForwardBench& bench, std::FILE* messages);

/// Tokens one after the other, the likeliest each time, after a context of random tokens.
struct DecodeBench : Options {
  int64_t psi = 16;
  int64_t vocab = 512;
  std::vector<int64_t> depths = {0, 1024, 16384};  // tokens of the context
  std::vector<int64_t> batches = {1};              // sequences
  std::vector<std::string> windows = {"initial"};
  int64_t tokens = 128;  // of a measured call
};
Report run(const DecodeBench& bench, std::FILE* messages);

/// ops::screening alone, gated, B 1, on random vectors, beside torch's softmax attention.
struct OpsBench : Options {
  int64_t heads = 16;
  int64_t key_dim = 16;
  int64_t value_dim = 64;
  std::vector<int64_t> lengths = {4096, 16384};
  std::vector<std::string> windows = {"initial", "infinite"};
  std::vector<double> survive = {0.02, 0.5};  // shares of the visible keys that are accepted, at most a half
  bool peer = true;                           // measure softmax attention too
};
Report run(const OpsBench& bench, std::FILE* messages);

/// ops::linear_cross_entropy beside the bare matrix products.
struct HeadBench : Options {
  int64_t vocab = 50257;
  int64_t tokens = 2048;
  int64_t hidden = 256;
};
Report run(const HeadBench& bench, std::FILE* messages);

}  // namespace tamis::bench

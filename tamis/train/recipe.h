#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tamis/data/abc_digits.h"
#include "tamis/data/prompt_answer.h"
#include "tamis/data/task_source.h"
#include "tamis/train/toml.h"

namespace tamis::train {

/// [data.sources.NAME]: where training sequences come from.
struct SourceRecipe {
  std::string name;                     // NAME
  std::string kind;                     // "text", "corpus", "prompts", or a task of tamis/data/registry.h; required
  double weight = 1.0;                  // sampling weight relative to the other sources
  std::vector<std::string> files = {};  // text: plain text files, concatenated; prompts: JSONL or SQuAD files
  std::vector<std::string> path = {};   // corpus: prepared corpora, or token files (.bin of llm.c, .npy)
  std::string sampling = "";            // text, corpus: "random" (the default for text), "sequential" (for corpus)
  bool documents = false;               // text, corpus: documents of a sequence do not see each other
  double validation_fraction = 0.1;     // text, corpus: fraction at the end that is held out for validation; a corpus
                                        // with held-out documents uses these instead
  std::vector<std::string> validation_files = {};  // text: files to validate with instead of a fraction
  std::vector<std::string> validation_path = {};   // corpus: data to validate with instead, like `path`
  data::PromptTemplates templates = {};            // prompts: keys "prompt" and "answer"
  data::AbcDigitsOptions abc_digits = {};  // abc_digits: keys have the names of the fields; the seed is train.seed
  data::TaskSourceOptions task = {};       // other tasks: the same, plus a key for each of the task's settings

  /// False for what is read from files.
  bool is_task() const { return kind != "text" && kind != "corpus" && kind != "prompts"; }
};

/// [data]
struct DataRecipe {
  std::string tokenizer = "byte";     // "byte", or the path of a tokenizer.json or of a checkpoint or run with one;
                                      // unless given, that of the first prepared corpus among the sources, else that
                                      // of train.start_from
  std::vector<SourceRecipe> sources;  // at least one, ordered by name
};

/// [train]
struct TrainRecipe {
  int64_t steps = 1000;                       // optimizer steps of the whole run
  bool steps_given = false;                   // whether the recipe names them; not a key
  double epochs = 0;                          // passes over the data, instead of steps; 0: none. One source, with
                                              // sequential sampling
  int64_t length = 256;                       // tokens of a training sequence
  int64_t batch_size = 0;                     // sequences per step over all micro-batches; 0: from batch_tokens
  int64_t batch_tokens = 4096;                // tokens per step, rounded down to whole sequences
  int64_t accumulation = 1;                   // micro-batches per step; must divide batch_size
  double lr = 0.0625;                         // peak learning rate
  std::array<double, 2> betas = {0.9, 0.95};  // AdamW
  double eps = 1e-8;                          // AdamW
  double weight_decay = 0.0;                  // AdamW, on matrices only
  int64_t warmup_steps = 100;                 // step n, from 0, uses lr (n + 1) / warmup_steps; 0: no warm-up
  std::string schedule = "constant";          // after the warm-up: "constant", or "cosine" down to min_lr
  double min_lr = 0.0;                        // learning rate of the last step under "cosine"
  double decay_share = 1.0;         // "cosine": fraction of the steps after the warm-up in which the rate decays
  double unit_deviation = 0.0;      // initial deviation of the matrices that are scaled to unit length
                                    // (models::Start); 0: the paper's
  double acceptance_margin = 0.0;   // the last step lowers s_r of all heads by this
  double dropout = 0.0;             // share of the elements of the embedding and of every mixer's and MLP's output
                                    // that are zero in a training step, against memorising a small text
  double clip = 0.0;                // maximum gradient norm (2-norm over all tensors); 0: no clipping
  std::string precision = "auto";   // of matrix products and screening: "float32", "bfloat16", "float16" (with a loss
                                    // scale, loss_scale.h), or "auto": the faster one of the first two on this
                                    // machine; resumed runs keep their precision
  int64_t context_parallel = 1;     // of several processes: this many neighbours share every sequence
  std::string shard = "optimizer";  // what each of several processes holds only a part of: the "optimizer"'s state,
                                    // or also "parameters" and gradients
  std::string reduction = "fast";   // of the gradients of several processes: "fast", or "ordered": the same bits
                                    // for any number of processes that divides accumulation, sending more
  std::string reduction_dtype = "float32";  // of gradients on their way between processes: "float32" or "bfloat16"
  double recompute = 0.0;                   // fraction of the layers, 0 to 1, whose activations are recomputed in the
                                            // backward pass: less memory, more time
  int64_t window_short = 0;                 // stochastic window (SWAX): the short sliding window in tokens; 0: none
  double window_short_share = 0.5;          // probability that a step uses window_short instead of model.window
  double window_long_last = 0.1;            // fraction of the steps, at the end, that always use model.window
  std::string start_from = "";              // checkpoint or run with the initial weights; empty: random weights
  std::string start_state = "weights";      // what is taken from start_from: "weights", or "all": also the optimizer's
                                            // moments, the step and so the position in the data and in the schedule
  std::string non_finite = "recover";  // when a loss or gradient is not finite: "recover" (docs/runs.md), or "stop"
  int64_t seed = 1;                    // of the initial weights and of the data
  int64_t threads = 0;                 // number of CPU threads; 0: all cores
  int64_t save_every = 500;            // steps between checkpoints
  int64_t keep = 3;                    // number of newest checkpoints to keep; 0: all
  int64_t keep_every = 0;              // also keep the checkpoint of every N-th step; 0: none
  int64_t log_every = 10;              // steps between records of log.jsonl
  bool tensorboard = true;             // also write TensorBoard's event files, to run.dir/tensorboard
  int64_t validate_every = 500;        // steps between validations; 0: only at the end
  int64_t validate_tokens = 65536;     // maximum number of tokens per source and validation; 0: no validation
  int64_t sample_every = 500;          // steps between samples; 0: only at the end
  std::string sample_prompt = "";      // prompt of the samples; empty: no samples
  int64_t sample_tokens = 64;          // tokens per sample
  double sample_temperature = 0.0;     // 0: greedy
};

/// [run]
struct RunRecipe {
  std::string dir;                            // run directory; empty in the file: runs/<name of the recipe file>
  std::vector<std::string> assumptions = {};  // what the paper leaves open, and what differs from it; for the report
};

/// A complete training run. Runs of equal recipes on equal machines give the same bits.
struct Recipe {
  nlohmann::json model = nlohmann::json::object();  // [model]: a complete configuration (models::complete_config)
  DataRecipe data;
  TrainRecipe train;
  RunRecipe run;
  std::vector<std::string> notes = {};  // lines for the user: what a plan assumes; not part of the recipe
};

/// Reads a recipe, applies `overrides` (`train.lr=0.0625`) and fills in defaults that depend on other keys: batch_size,
/// run.dir, and in [model] the tokenizer's vocab_size and max_position_embeddings = train.length. Unknown keys, wrong
/// types and values out of range throw ExitCode::kUsage with file:line and, for names, the closest known one.
/// kPlan, for commands that write nothing, accepts texts and corpora without files, and notes what it assumes of them;
/// the run.dir of a recipe from standard input may be empty.
enum class RecipeUse { kRun, kPlan };
Recipe load_recipe(const std::filesystem::path& file, std::span<const std::string> overrides = {},
                   RecipeUse use = RecipeUse::kRun);

/// The same for a parsed document.
Recipe read_recipe(const TomlDocument& document, RecipeUse use = RecipeUse::kRun);

/// All keys and values in the structure of the TOML file; reading them back gives the same recipe.
nlohmann::json to_json(const Recipe& recipe);

/// Gives the recipe of a run that an earlier version started that version's defaults where this version has others.
/// `stored` is the complete [model] table that the run saved.
void keep_stored_defaults(Recipe& recipe, const nlohmann::json& stored);

/// The first key that would change the results of a run that was started with `before` (both from to_json), such as
/// `train.lr was 0.03, is 0.05`; empty when the run can be resumed. Keys without influence on results may change
/// (saving, logging, threads), and train.steps may while the schedule does not depend on it.
std::string first_difference(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace tamis::train

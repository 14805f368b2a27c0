#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::study {

/// A function that a study evaluates without a model: `[[evaluations]] kind = "function"`. Metrics and columns:
///
///   trim               trim;  r, similarity                      Trim, paper 000, Eq. (9)
///   softmask           softmask;  w, distance                    Softmask, Eq. (10)
///   mipe               mipe_phi;  w                              phi(w) of MiPE, Eq. (7)
///   tanh_norm          tanh_norm;  norm                          |TanhNorm(h)| of |h|, Eq. (13)
///   largest_weight     largest_weight;  mechanism, n, largest    one score `largest`, n - 1 scores `others`
///                                                                (paper 002, figures 1 and 3)
///   target_weight      target_weight, noise_weight;  mechanism, n, seed
///                                                                one key that matches the query among random keys
///   accepted_share     accepted_share;  key_dim, r, seed         of random keys by a random query
///   entmax_support     entmax_support;  n, alpha, seed           number of selected keys
///   distractors        distractor_weights;  mechanism, part, n, target, seed
///                                                                a far target, near competitors, noise
///   sieve_properties   sieve_properties;  property, n, seed      see functions.cc
using AddRow = std::function<void(const std::string& metric, double value, const nlohmann::json& columns)>;

/// `settings`, lists of numbers, with the defaults of those that are missing. Throws ExitCode::kUsage for an unknown
/// function or setting.
nlohmann::json function_settings(const std::string& name, const nlohmann::json& settings);

/// Empty for an unknown function.
std::vector<std::string> function_metrics(const std::string& name);

/// Calls `add` with every value. `settings` as function_settings() returns them.
void evaluate_function(const std::string& name, const nlohmann::json& settings, const AddRow& add);

}  // namespace tamis::study

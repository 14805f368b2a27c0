#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/study/recipe.h"
#include "tamis/study/table.h"

namespace tamis::study {

/// Whether this version reproduces the stored results of studies of a tier, so that only studies that it changes have
/// to run again. Trains and measures one model of each study again, with the first seed and the stored value of
/// [choose]: of those with results for the most metrics that claims judge, and at most their median loss, the one with
/// the shortest runs. Runs that start from others are left out; of studies that train nothing every model is measured.
///
/// Without `id` this is done with every study, in tiers other than the first only with studies that have a result;
/// `found` is called with each entry of the result:
///
///   {"studies": [{"id", "version", "run", "same", "differences", "reason"}]}
///
/// version: the commit of the stored result. run: what was repeated. same: null when nothing was compared; reason says
/// why. The outcome is noted in study.json as "check", for the book.
///
/// Throws kStorage, kRuntime when another process checks in the same folder, kUsage when there are no studies or none
/// of this id, and kHangup, kInterrupt or kTerminate after a signal; with an `id` everything that run_job throws, and
/// kInput when there is nothing to compare.
nlohmann::json check_studies(const std::string& id, const std::string& tier, const std::vector<std::string>& overrides,
                             at::Device device, std::FILE* messages,
                             const std::function<void(const nlohmann::json&)>& found);

/// A header, and an entry of the result, as a line of a table.
std::string check_header();
std::string check_line(const nlohmann::json& entry);

/// What differs between the rows of one run and the stored rows of the same model and seed, such as
/// `score (copy, 64) 0.4, was 0.98`. Not compared are times, losses of [choose], chosen checkpoints, counts of spikes,
/// and metrics of which no values are stored. Values with a seed are compared as means over depths, steps, layers,
/// heads, positions and the like; they may differ by 2%, by 0.02, or by as much as the stored seeds differ, whichever
/// is most: rounding, which differs between processors, moves a run as far. Sizes have to be equal; other values
/// without a seed may differ by 0.001%.
std::vector<std::string> differences(const Rows& now, const Rows& stored, const Columns& columns);

}  // namespace tamis::study

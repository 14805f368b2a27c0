#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/eval/options.h"
#include "tamis/models/model.h"
#include "tamis/study/functions.h"

namespace tamis::study {

/// Where a model looks when a sequence asks for the latest value of a key (mqrar; in mqar every key has one value):
/// the share of a query's relevance that lies on pairs with the same key, key and value together. Of the head that has
/// the largest such share in the mean over all queries and instances.
struct Recall {
  int64_t layer = 0, head = 0;
  double newest = 0;  // share on the newest pair of the key
  double stale = 0;   // share on older pairs of the key, whose values no longer hold
  at::Tensor map_QT;  // the shares of all tokens for the queries of the first instance, float64
};

/// The tasks that have pairs and queries.
const std::vector<std::string>& recall_tasks();

/// Reads `options.instances` instances of this length. A query that accepts nothing counts as 0. Memory: the maps of
/// all layers and heads, T^2 numbers each.
Recall recall_of(const models::Model& model, const eval::TaskEvalOptions& options, int64_t length);

/// Rows of all lengths, with the columns task and length: newest_mass, stale_mass, stale_share = stale / (stale +
/// newest), not finite without attention on any, and, with `map`, recall_map of the first instance, with the columns
/// query and key, both from 1.
void add_recall(const models::Model& model, const eval::TaskEvalOptions& options, bool map, const AddRow& add);

}  // namespace tamis::study

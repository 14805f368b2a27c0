#pragma once

#include <cstdint>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/study/functions.h"

namespace tamis::study {

/// Relevance of all tokens for all queries of one text, in the `heads` heads whose relevance lies farthest back: those
/// with the largest mean distance, of all heads in which a query has a relevance of 0.01 or more in the mean. Rows of
/// the metric relevance, with the columns `map` ("layer 2, head 11, w 655, r 0.05"; r of screening only), `query` and
/// `key`, both from 1 and key <= query. Memory: the maps of all layers and heads, T^2 numbers each.
void add_relevance(const models::Model& model, const std::vector<int64_t>& tokens, int64_t heads, bool expand_windows,
                   const AddRow& add);

}  // namespace tamis::study

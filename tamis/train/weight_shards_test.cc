#include "tamis/train/weight_shards.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tamis/base/testing.h"
#include "tamis/distributed/testing.h"
#include "tamis/models/testing.h"
#include "tamis/nn/safetensors_set.h"

namespace tamis::train {
namespace {

using distributed::ProcessGroup;
using distributed::testing::in_processes;
using tamis::testing::TemporaryDirectory;

/// Two screening layers, whose parameters are several tensors in checkpoints.
std::unique_ptr<models::Model> make_small_model(int64_t width = 32) {
  return models::make_model(models::complete_config({{"model_type", "multiscreen"},
                                                     {"vocab_size", 257},
                                                     {"hidden_size", width},
                                                     {"num_hidden_layers", 2},
                                                     {"num_attention_heads", 2},
                                                     {"key_dim", 16},
                                                     {"value_dim", 64}}),
                            /*seed=*/5);
}

int64_t bytes_of(const std::vector<nn::NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const nn::NamedTensor& named : tensors) bytes += static_cast<int64_t>(named.tensor.nbytes());
  return bytes;
}

TEST(WeightShards, HaveAboutEquallyManyBytesAndEveryTensorOnce) {
  const auto model = make_small_model();
  const auto all = models::testing::named_tensors(*model);
  int64_t total = 0, largest = 0;
  for (const auto& [name, tensor] : all) {
    total += static_cast<int64_t>(tensor.nbytes());
    largest = std::max(largest, static_cast<int64_t>(tensor.nbytes()));
  }
  for (const int64_t processes : {1, 2, 3, 4, 7, 1000}) {
    const WeightShards shards = cut_weights(*model, processes);
    EXPECT_LE(shards.size(), std::min<size_t>(processes, all.size()));
    std::set<std::string> names;
    for (const auto& shard : shards) {
      EXPECT_FALSE(shard.empty());
      EXPECT_LE(bytes_of(shard), total / processes + largest);
      for (const auto& [name, tensor] : shard) {
        EXPECT_TRUE(names.insert(name).second) << name;
        EXPECT_EQ(tensor.sizes(), all.at(name).sizes()) << name;
        EXPECT_TRUE(tensor.is_meta());
      }
    }
    EXPECT_EQ(names.size(), all.size());
  }
}

TEST(WeightShards, AreCopiedAndReadAsTheWholeModel) {
  for (const bool sharded : {false, true}) {
    for (const int64_t processes : {1, 2, 3, 5}) {
      const TemporaryDirectory directory;
      const auto expected = models::testing::named_tensors(*make_small_model());
      in_processes(processes, [&](ProcessGroup& group) {
        const auto model = make_small_model();
        GradientExchange exchange(group, model->parameters(), {.sharded = sharded});
        const WeightShards shards = cut_weights(*model, group.size());
        const auto rank = static_cast<size_t>(group.rank());
        const auto copies = copy_weights(*model, exchange, rank < shards.size() ? shards[rank] : WeightShards(1)[0]);
        ASSERT_EQ(copies.size(), rank < shards.size() ? shards[rank].size() : 0);
        if (!copies.empty()) {
          nn::write_safetensors(directory.path() / nn::tensor_shard_name(rank, shards.size()), copies);
        }
        if (rank == 0) write_weight_index(directory.path(), shards);
        for (const auto& [name, tensor] : model->parameters()) {
          const bool held = tensor.storage().nbytes() == tensor.nbytes();
          EXPECT_EQ(held, !sharded || tensor.dim() < 2) << name << ": what was gathered is freed";
        }
      });
      const nn::SafetensorsSet stored(directory.path());
      EXPECT_EQ(stored.names().size(), expected.size());
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(stored.tensor(name).equal(tensor)) << name;
    }
  }
}

/// A process sends each of its pieces to the others once.
TEST(WeightShards, OfShardedParametersAreGatheredOneLayerAtATime) {
  in_processes(2, [](ProcessGroup& group) {
    const auto model = make_small_model(/*width=*/256);
    GradientExchange exchange(group, model->parameters(), {.sharded = true});
    const std::vector<models::Parameter> parameters = model->parameters();
    const int64_t before = group.bytes_sent();
    size_t seen = 0;
    exchange.for_each_unit([&](const std::vector<size_t>& whole) {
      const std::set<size_t> expected(whole.begin(), whole.end());
      for (size_t p = 0; p < parameters.size(); ++p) {
        const at::Tensor& tensor = parameters[p].tensor;
        const bool held = tensor.storage().nbytes() == tensor.nbytes();
        EXPECT_EQ(held, tensor.dim() < 2 || expected.contains(p)) << parameters[p].name;
      }
      seen += whole.size();
    });
    EXPECT_EQ(seen, parameters.size());
    int64_t sent = 0;
    for (const ExchangeLayout::Bucket& bucket : exchange.layout().buckets()) {
      if (bucket.unit != kWhole) sent += bucket.part_elements * (group.size() - 1) * 4;
    }
    EXPECT_EQ(group.bytes_sent() - before, sent);
  });
}

}  // namespace
}  // namespace tamis::train

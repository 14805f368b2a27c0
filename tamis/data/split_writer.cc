#include "tamis/data/split_writer.h"

#include <fmt/format.h>

#include <utility>

namespace tamis::data {

using nlohmann::json;

SplitWriter::SplitWriter(std::filesystem::path directory, std::string name, int token_bytes,
                         std::string tokenizer_digest, int64_t shard_tokens)
    : directory_(std::move(directory)),
      name_(std::move(name)),
      token_bytes_(token_bytes),
      tokenizer_digest_(std::move(tokenizer_digest)),
      shard_tokens_(shard_tokens) {}

std::filesystem::path SplitWriter::next_file() const {
  return directory_ / fmt::format("{}-{:05}.tokens", name_, split_.shards.size());
}

ShardWriter& SplitWriter::writer() {
  if (!writer_) writer_ = std::make_unique<ShardWriter>(next_file(), token_bytes_, tokenizer_digest_);
  return *writer_;
}

void SplitWriter::append(std::span<const int64_t> tokens) {
  writer().append(tokens);
}

void SplitWriter::end_document() {
  writer().end_document();
  if (writer_->tokens() >= shard_tokens_) finish_shard();
}

void SplitWriter::finish_shard() {
  const std::filesystem::path file = next_file();
  const ShardWriter::Finished finished = writer_->finish();
  writer_.reset();
  split_.shards.push_back({file.filename().string(), finished.tokens, finished.documents, finished.digest});
}

void SplitWriter::finish() {
  if (writer_) finish_shard();
}

int64_t SplitWriter::tokens() const {
  return split_.tokens() + (writer_ ? writer_->progress().tokens : 0);
}

int64_t SplitWriter::documents() const {
  return split_.documents() + (writer_ ? writer_->progress().documents : 0);
}

json SplitWriter::save() {
  json shards = json::array();
  for (const ShardEntry& shard : split_.shards) {
    shards.push_back({shard.file, shard.tokens, shard.documents, shard.digest});
  }
  json saved = {{"shards", shards}, {"current", nullptr}};
  if (writer_) {
    writer_->save();
    const ShardProgress at = writer_->progress();
    saved["current"] = {at.tokens, at.documents, at.document_begin};
  }
  return saved;
}

void SplitWriter::restore(const json& saved) {
  for (const json& shard : saved.at("shards")) {
    split_.shards.push_back({shard.at(0).get<std::string>(), shard.at(1).get<int64_t>(), shard.at(2).get<int64_t>(),
                             shard.at(3).get<uint64_t>()});
  }
  const json& current = saved.at("current");
  if (current.is_null()) return;
  const ShardProgress from{current.at(0).get<int64_t>(), current.at(1).get<int64_t>(), current.at(2).get<int64_t>()};
  writer_ = std::make_unique<ShardWriter>(next_file(), token_bytes_, tokenizer_digest_, from);
}

}  // namespace tamis::data

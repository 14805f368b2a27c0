#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tamis/base/files.h"

namespace tamis::train {

/// A TensorBoard event file: TFRecords (length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes), each
/// an Event message of TensorBoard's event.proto and summary.proto.
///
/// Every start of a run makes a file of its own, `events.out.tfevents.SECONDS.tamis`. A file that continues others
/// begins with SessionLog::START at the next step, by which TensorBoard drops the later steps of the earlier files. A
/// process that is killed leaves at most an incomplete last record, which TensorBoard ignores.
class EventFile {
 public:
  /// The run continues after `step`. Creates the directory if necessary. Throws ExitCode::kStorage.
  EventFile(const std::filesystem::path& directory, int64_t step);

  /// Adds a record of log.jsonl: the numbers of a "train" record as scalars `train/KEY`, a "validation" record as
  /// `validation/SOURCE`, a "sample" as text `sample`. Other records are left out.
  void add(const nlohmann::json& record);
  void sync() { file_.sync(); }

 private:
  EventFile(const std::filesystem::path& directory, int64_t step, int64_t newest);
  void write(int64_t step, std::string_view fields);

  FileWriter file_;
};

/// CRC-32C (Castagnoli) of `bytes`.
uint32_t crc32c(std::string_view bytes);

}  // namespace tamis::train

#pragma once

#include <cstdint>

namespace tamis::data {

/// First word of every Random key in this layer: draws for different purposes come from different streams, so an
/// evaluation never repeats what training saw, whatever the seeds and indices.
enum Stream : uint64_t {
  kAbcDigitsTraining = 0xabc0'0001,
  kAbcDigitsEvaluation = 0xabc0'0002,
  kTextFileWindow = 0x7e87'0001,
  kMixChoice = 0x3313'0001,
  kTaskDepth = 0x7a58'0001,
  kPasskey = 0x7a58'0002,
  kNeedle = 0x7a58'0003,
  kCopy = 0x7a58'0004,
  kMqar = 0x7a58'0005,
  kMqrar = 0x7a58'0006,
  kVariableTracking = 0x7a58'0007,
  kTaskTrainingSeed = 0x7a58'0008,
  kTaskTrainingLength = 0x7a58'0009,
  kTaskTrainingPart = 0x7a58'000a,
  kNiah = 0x7a58'0100,  // and the next ones, one for each form
};

}  // namespace tamis::data

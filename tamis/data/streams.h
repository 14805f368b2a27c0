#pragma once

#include <cstdint>

namespace tamis::data {

/// The first word of every Random key in this layer. Each purpose has its own stream, so that evaluation never repeats
/// the draws of training, for any seeds and indices.
enum Stream : uint64_t {
  kAbcDigitsTraining = 0xabc0'0001,
  kAbcDigitsEvaluation = 0xabc0'0002,
  kTextFileWindow = 0x7e87'0001,
  kMixChoice = 0x3313'0001,
  kPermutation = 0x9e12'0001,
  kEpoch = 0x9e12'0002,
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
  kNiah = 0x7a58'0100,  // and the following values, one for each task of niah.h
};

}  // namespace tamis::data

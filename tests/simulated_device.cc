// A library for LD_PRELOAD: `tamis --device privateuseone` computes on the simulated device.

#include "tamis/ops/simulated_device/testing.h"

namespace {

[[maybe_unused]] const auto& kDevice = tamis::ops::testing::SimulatedDevice::get();

}  // namespace

#include "tamis/train/stop_signals.h"

#include <array>
#include <csignal>

namespace tamis::train {
namespace {

struct StopSignal {
  int number;
  const char* name;
  ExitCode code;
  struct sigaction before;  // the action that StopSignals replaces
};

std::array<StopSignal, 3> stop_signals = {{{SIGHUP, "SIGHUP", ExitCode::kHangup, {}},
                                           {SIGINT, "SIGINT", ExitCode::kInterrupt, {}},
                                           {SIGTERM, "SIGTERM", ExitCode::kTerminate, {}}}};
volatile std::sig_atomic_t recorded_signal = 0;
int alive = 0;

void record_signal(int signal) {
  recorded_signal = signal;
}

const StopSignal& stop_signal(int number) {
  for (const StopSignal& each : stop_signals) {
    if (each.number == number) return each;
  }
  return stop_signals.back();
}

}  // namespace

StopSignals::StopSignals() {
  if (alive++ > 0) return;
  recorded_signal = 0;
  struct sigaction action {};
  action.sa_handler = record_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  for (StopSignal& each : stop_signals) {
    sigaction(each.number, nullptr, &each.before);
    const bool ignored = each.before.sa_handler == SIG_IGN;
    if (each.number != SIGHUP || !ignored) sigaction(each.number, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  if (--alive > 0) return;
  for (const StopSignal& each : stop_signals) sigaction(each.number, &each.before, nullptr);
}

int StopSignals::received() const {
  return recorded_signal;
}

const char* name_of_signal(int signal) {
  return stop_signal(signal).name;
}

ExitCode exit_code_of(int signal) {
  return stop_signal(signal).code;
}

}  // namespace tamis::train

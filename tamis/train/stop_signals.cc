#include "tamis/train/stop_signals.h"

#include <csignal>

namespace tamis::train {
namespace {

volatile std::sig_atomic_t recorded_signal = 0;
struct sigaction before_interrupt, before_terminate;
int alive_objects = 0;

void record_signal(int signal) {
  recorded_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  if (alive_objects++ > 0) return;
  recorded_signal = 0;
  struct sigaction action {};
  action.sa_handler = record_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_interrupt);
  sigaction(SIGTERM, &action, &before_terminate);
}

StopSignals::~StopSignals() {
  if (--alive_objects > 0) return;
  sigaction(SIGINT, &before_interrupt, nullptr);
  sigaction(SIGTERM, &before_terminate, nullptr);
}

int StopSignals::received() const {
  return recorded_signal;
}

}  // namespace tamis::train

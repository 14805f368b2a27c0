#include "tamis/train/stop_signals.h"

#include <csignal>

namespace tamis::train {
namespace {

volatile std::sig_atomic_t noted_signal = 0;
struct sigaction before_interrupt, before_terminate;
int alive = 0;

void note_signal(int signal) {
  noted_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  if (alive++ > 0) return;
  noted_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_interrupt);
  sigaction(SIGTERM, &action, &before_terminate);
}

StopSignals::~StopSignals() {
  if (--alive > 0) return;
  sigaction(SIGINT, &before_interrupt, nullptr);
  sigaction(SIGTERM, &before_terminate, nullptr);
}

int StopSignals::received() const {
  return noted_signal;
}

}  // namespace tamis::train

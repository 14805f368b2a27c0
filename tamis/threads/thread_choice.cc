#include "tamis/threads/thread_choice.h"

#include <algorithm>

namespace tamis::threads {

void ThreadChoice::measured(int64_t now, int64_t duration, int64_t computing_time) {
  duration_ += duration;
  computing_time_ += computing_time;
  if (duration_ < (used_ == kept_ ? kPeriod : kTrial)) return;
  end_of_period(now, static_cast<double>(computing_time_) / static_cast<double>(duration_));
  duration_ = computing_time_ = 0;
}

void ThreadChoice::end_of_period(int64_t now, double speed) {
  double& known = speeds_[used_];
  if (used_ == kept_) {
    known = known == 0 ? speed : known + kNewest * (speed - known);
    const bool best_possible = kept_ == kTogether && known >= 1;
    if (!best_possible && now >= next_trial_) used_ = kept_ == kAlone ? kTogether : kAlone;
    return;
  }
  known = speed;
  if (speed > (used_ == kTogether ? kWorthIt : 1 / kWorthIt) * speeds_[kept_]) {
    kept_ = used_;
    wait_ = kFirstWait;
  } else {
    used_ = kept_;
    wait_ = std::min(2 * wait_, kLongestWait);
  }
  next_trial_ = now + wait_;
}

}  // namespace tamis::threads

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
  if (used_ == kAlone) speed = std::min(speed, 1.0);  // parts that need the other threads wake them
  double& known = speeds_[used_];
  if (used_ == kept_) {
    known = known == 0 ? speed : known + kNewest * (speed - known);
    const bool best_possible = kept_ == kTogether && known >= 1;
    if (!best_possible && now >= next_trial_) used_ = kept_ == kAlone ? kTogether : kAlone;
    return;
  }
  known = speed;
  const double alone = speeds_[kAlone], together = speeds_[kTogether];
  const Setting better = together >= 1 || together > kLeastGain * alone ? kTogether : kAlone;
  wait_ = better == kept_ ? std::min(2 * wait_, kLongestWait) : kFirstWait;
  kept_ = used_ = better;
  next_trial_ = now + wait_;
}

}  // namespace tamis::threads

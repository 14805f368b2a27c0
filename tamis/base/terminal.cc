#include "tamis/base/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "tamis/base/message.h"

namespace tamis {

bool is_terminal(std::FILE* stream) {
  return isatty(fileno(stream)) != 0;
}

bool use_colour(std::FILE* stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  return is_terminal(stream) && (no_colour == nullptr || *no_colour == '\0');
}

int terminal_columns() {
  winsize size{};
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 80;
}

ProgressLine::ProgressLine(std::FILE* stream, double plain_interval_seconds)
    : stream_(stream), plain_interval_seconds_(plain_interval_seconds), terminal_(is_terminal(stream)) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && drawn_) print_message(stream_, "\n");
}

void ProgressLine::update(std::string_view text) {
  const double now = now_seconds();
  if (!terminal_) {
    if (now - last_plain_seconds_ < plain_interval_seconds_) return;
    last_plain_seconds_ = now;
    print_message(stream_, fmt::format("{}\n", text));
    return;
  }
  if (drawn_ && now - last_drawn_seconds_ < 0.05) return;
  last_drawn_seconds_ = now;
  drawn_ = true;
  const auto columns = static_cast<size_t>(std::max(20, terminal_columns() - 1));
  print_message(stream_, fmt::format("\r{}\x1b[K", text.substr(0, columns)));
}

void ProgressLine::clear() {
  if (!terminal_ || !drawn_) return;
  print_message(stream_, "\r\x1b[K");
  drawn_ = false;
}

std::string progress_bar(double done, double total, int columns) {
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  const int full = static_cast<int>(share * columns);
  return "[" + std::string(full, '#') + std::string(columns - full, '-') + "]";
}

std::string heat(std::string_view text, double share) {
  constexpr std::array<int, 7> kColours = {160, 202, 208, 220, 190, 118, 40};  // of the 256-colour palette
  const auto step = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kColours.size());
  return fmt::format("\x1b[48;5;{}m\x1b[38;5;16m{}\x1b[0m", kColours[std::min(step, kColours.size() - 1)], text);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_seconds() {
  double seconds = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(who, &used);
    for (const timeval& time : {used.ru_utime, used.ru_stime}) {
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return seconds;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<long long>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string format_count(double count) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(count) >= 1000 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.3g}{}", count, kUnits[unit]);
}

std::string counted(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string format_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace tamis

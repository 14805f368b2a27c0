#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace tamis {

/// True when `stream` is a terminal.
bool is_terminal(std::FILE* stream);

/// True when colours are welcome on `stream`: a terminal, and NO_COLOR unset (https://no-color.org).
bool use_colour(std::FILE* stream);

/// Columns of the terminal, 80 when unknown.
int terminal_columns();

/// A line that is redrawn in place on a terminal, and printed as a plain line now and then elsewhere.
class ProgressLine {
 public:
  /// Off a terminal at most one line every `plain_interval_seconds`.
  explicit ProgressLine(std::FILE* stream = stderr, double plain_interval_seconds = 10.0);
  ~ProgressLine();  // ends the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::string_view text);
  /// Clears the line so that something else can be printed; the next update draws it again.
  void clear();

 private:
  std::FILE* stream_;
  double plain_interval_seconds_;
  double last_plain_seconds_ = -1e30;
  double last_drawn_seconds_ = -1e30;
  bool terminal_;
  bool drawn_ = false;
};

/// `[#####-----]` of `columns` characters for `done` of `total`.
std::string progress_bar(double done, double total, int columns = 20);

/// `text` in black on a colour from dark red (share 0) over yellow to green (share 1).
std::string heat(std::string_view text, double share);

/// Monotonic clock.
double now_seconds();

/// `1h02m`, `3m20s`, `12.5s`.
std::string format_duration(double seconds);

/// `1.2k`, `35M`, `2.4G`.
std::string format_count(double count);

/// `512 B`, `1.5 MiB`.
std::string format_bytes(double bytes);

}  // namespace tamis

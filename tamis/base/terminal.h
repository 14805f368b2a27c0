#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace tamis {

/// True when `stream` is a terminal.
bool is_terminal(std::FILE* stream);

/// True when `stream` is a terminal and NO_COLOR is unset or empty (https://no-color.org).
bool use_colour(std::FILE* stream);

/// Number of columns of the terminal; 80 when unknown.
int terminal_columns();

/// A progress line: redrawn in place on a terminal, printed as separate lines elsewhere.
class ProgressLine {
 public:
  /// Prints at most one line per `plain_interval_seconds` when `stream` is not a terminal.
  explicit ProgressLine(std::FILE* stream = stderr, double plain_interval_seconds = 10.0);
  ~ProgressLine();  // prints the final newline
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

/// `text` in black on a background from dark red (share 0) through yellow to green (share 1).
std::string heat(std::string_view text, double share);

/// Time of a monotonic clock, in seconds.
double now_seconds();

/// Processor time of this process, all threads together, and of those of its children that have ended.
double processor_seconds();

/// `1h02m`, `3m20s`, `12.5s`.
std::string format_duration(double seconds);

/// `1.2k`, `35M`, `2.4G`.
std::string format_count(double count);

/// 1 token, 2 tokens.
std::string counted(int64_t count, std::string_view what);

/// `512 B`, `1.5 MiB`.
std::string format_bytes(double bytes);

}  // namespace tamis

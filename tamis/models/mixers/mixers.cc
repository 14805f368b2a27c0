// The registry: one line for each mixer.

#include "tamis/models/mixers/mixers.h"

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/models/mixer.h"
#include "tamis/models/mixers/attention_mixer.h"

namespace tamis::models {
namespace {

std::vector<std::string> joined(std::vector<std::string> settings, std::initializer_list<const char*> more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

const std::vector<std::string> kAttention = {"qk_norm", "norm_eps", "strict"};
const std::vector<std::string> kRotary = joined(kAttention, {"position", "rope_theta", "rope_factor"});
const std::vector<std::string> kSoftmax = joined(kRotary, {"ssmax", "ssmax_scale"});
const std::vector<std::string> kScreening = {"key_dim",
                                             "value_dim",
                                             "mipe_threshold",
                                             "screening_position",
                                             "mipe_wrap_boundary",
                                             "tanh_norm",
                                             "gate",
                                             "output_scale",
                                             "fixed_r",
                                             "trim_power",
                                             "softmask"};
const std::vector<std::string> kSliding = joined(kSoftmax, {"window"});

const std::array kMixers = {
    MixerKind{'a', "softmax attention", Support::kWindow, kSoftmax, check_rotary_sizes, make_full_attention},
    MixerKind{'w', "sliding-window attention", Support::kWindow, kSliding, check_rotary_sizes,
              make_sliding_window_attention},
    MixerKind{'e', "entmax attention", Support::kSelected, joined(kRotary, {"alpha"}), check_rotary_sizes, make_entmax},
    MixerKind{'b', "stick-breaking attention", Support::kWindow, kAttention, check_attention_sizes,
              make_stick_breaking},
    MixerKind{'v', "Sieve attention", Support::kSelected, joined(kAttention, {"alpha", "sieve", "sieve_epsilon"}),
              check_attention_sizes, make_sieve},
    MixerKind{'m', "mLSTM", Support::kWindow, {"mlstm_heads", "norm_eps"}, check_mlstm_sizes, make_mlstm},
    MixerKind{'s', "screening", Support::kSelected, kScreening, check_screening_sizes, make_screening},
};

}  // namespace

std::span<const MixerKind> known_mixers() {
  return kMixers;
}

const MixerKind& find_mixer(char letter) {
  std::string known;
  for (const MixerKind& kind : kMixers) {
    if (kind.letter == letter) return kind;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", kind.letter, kind.name);
  }
  fail(ExitCode::kUsage, "model: \"pattern\" has the unknown letter {}; known: {}",
       quoted_name(std::string_view(&letter, 1)), known);
}

}  // namespace tamis::models

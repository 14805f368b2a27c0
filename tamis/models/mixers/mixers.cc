// Every mixer has a line here, and nothing else needs to know of it.

#include "tamis/models/mixers/mixers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/models/mixer.h"
#include "tamis/models/mixers/attention_mixer.h"

namespace tamis::models {
namespace {

const std::array kMixers = {
    MixerKind{'a', "softmax attention", /*windowed=*/false, check_rotary_sizes, make_full_attention},
    MixerKind{'w', "sliding-window attention", true, check_rotary_sizes, make_sliding_window_attention},
    MixerKind{'e', "entmax attention", false, check_rotary_sizes, make_entmax},
    MixerKind{'b', "stick-breaking attention", false, check_attention_sizes, make_stick_breaking},
    MixerKind{'v', "Sieve attention", false, check_attention_sizes, make_sieve},
    MixerKind{'m', "mLSTM", false, check_mlstm_sizes, make_mlstm},
    MixerKind{'s', "screening", false, nullptr, make_screening},
};

}  // namespace

void Mixer::step_head(int64_t, const MixerCall&, MixerState&, float*, float*) const {
  TORCH_INTERNAL_ASSERT(false, "a mixer with a token_form takes tokens");
}

std::span<const MixerKind> known_mixers() {
  return kMixers;
}

bool has_window(const nlohmann::json& complete_config) {
  const auto pattern = complete_config.value("pattern", std::string());
  return std::ranges::any_of(pattern, [](char letter) { return find_mixer(letter).windowed; });
}

const MixerKind& find_mixer(char letter) {
  std::string known;
  for (const MixerKind& kind : kMixers) {
    if (kind.letter == letter) return kind;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", kind.letter, kind.name);
  }
  fail(ExitCode::kUsage, "model: \"pattern\" has the unknown letter \"{}\"; known: {}", letter, known);
}

}  // namespace tamis::models

#include "tamis/data/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace tamis::data {
namespace {

constexpr std::array kAdjectives = std::to_array<std::string_view>({
    "able",     "amber",    "ancient",  "angry",    "autumn",  "awake",    "bare",     "basic",    "bent",    "big",
    "bitter",   "black",    "blank",    "blue",     "bold",    "brave",    "brief",    "bright",   "brisk",   "broad",
    "broken",   "brown",    "busy",     "calm",     "careful", "central",  "cheap",    "cheerful", "chilly",  "civil",
    "clean",    "clear",    "clever",   "close",    "cloudy",  "coarse",   "cold",     "common",   "cool",    "corner",
    "cosy",     "crimson",  "crisp",    "curious",  "curly",   "current",  "curved",   "daily",    "damp",    "dapper",
    "dark",     "dear",     "decent",   "deep",     "dense",   "dim",      "distant",  "double",   "dry",     "dull",
    "dusty",    "eager",    "early",    "earnest",  "easy",    "elder",    "elegant",  "empty",    "equal",   "even",
    "exact",    "faint",    "fair",     "faithful", "famous",  "fancy",    "far",      "fast",     "fertile", "fierce",
    "final",    "fine",     "firm",     "flat",     "fluent",  "fond",     "foreign",  "formal",   "free",    "fresh",
    "frosty",   "full",     "funny",    "gentle",   "giant",   "glad",     "global",   "golden",   "good",    "grand",
    "grateful", "grave",    "great",    "green",    "grey",    "handy",    "happy",    "hard",     "hasty",   "heavy",
    "hidden",   "high",     "hollow",   "honest",   "huge",    "humble",   "idle",     "inner",    "joyful",  "keen",
    "kind",     "large",    "late",     "lazy",     "lean",    "left",     "level",    "light",    "likely",  "little",
    "lively",   "local",    "lone",     "long",     "loose",   "loud",     "loyal",    "lucky",    "mellow",  "merry",
    "mighty",   "mild",     "mobile",   "modern",   "modest",  "moist",    "narrow",   "near",     "neat",    "new",
    "nimble",   "noble",    "northern", "odd",      "old",     "open",     "orange",   "outer",    "pale",    "patient",
    "plain",    "pleasant", "polite",   "poor",     "prime",   "private",  "proper",   "proud",    "public",  "pure",
    "purple",   "quaint",   "quick",    "quiet",    "rapid",   "rare",     "raw",      "ready",    "red",     "regular",
    "rich",     "rigid",    "ripe",     "rough",    "round",   "royal",    "rural",    "rusty",    "safe",    "sandy",
    "scarlet",  "secret",   "serious",  "shady",    "shallow", "sharp",    "shiny",    "short",    "shy",     "silent",
    "silky",    "silver",   "simple",   "single",   "slender", "slim",     "slow",     "small",    "smooth",  "snowy",
    "sober",    "soft",     "solar",    "solid",    "sour",    "southern", "spare",    "special",  "spicy",   "square",
    "stable",   "steady",   "steep",    "stern",    "stiff",   "still",    "stout",    "straight", "strange", "strict",
    "strong",   "sturdy",   "subtle",   "sudden",   "sunny",   "sweet",    "swift",    "tall",     "tame",    "tender",
    "thick",    "thin",     "tidy",     "tight",    "tiny",    "tough",    "tranquil", "true",     "urban",   "useful",
    "usual",    "vague",    "vast",     "violet",   "vital",   "vivid",    "warm",     "wary",     "wet",     "white",
    "whole",    "wide",     "wild",     "windy",    "wise",    "wooden",   "yellow",   "young",
});

constexpr std::array kNouns = std::to_array<std::string_view>({
    "acorn",    "actor",    "album",   "almond",   "anchor",  "angle",   "ankle",    "apple",    "apron",    "arch",
    "arrow",    "atlas",    "attic",   "autumn",   "badge",   "bagel",   "bakery",   "balcony",  "ballad",   "bamboo",
    "banana",   "banjo",    "barley",  "barn",     "barrel",  "basin",   "basket",   "beacon",   "bean",     "bear",
    "beaver",   "bell",     "bench",   "berry",    "bicycle", "birch",   "biscuit",  "blanket",  "blossom",  "boat",
    "bottle",   "boulder",  "bowl",    "branch",   "bread",   "breeze",  "brick",    "bridge",   "broom",    "brush",
    "bucket",   "butter",   "button",  "cabin",    "cable",   "cactus",  "cake",     "camel",    "camera",   "canal",
    "candle",   "canoe",    "canyon",  "captain",  "cargo",   "carpet",  "carrot",   "castle",   "cattle",   "cedar",
    "cellar",   "cello",    "chain",   "chair",    "chalk",   "chapel",  "cherry",   "chess",    "chimney",  "cinema",
    "circle",   "citizen",  "clay",    "clock",    "cloud",   "clover",  "coast",    "coat",     "cobbler",  "coconut",
    "coffee",   "coin",     "comet",   "compass",  "copper",  "coral",   "cork",     "corn",     "cottage",  "cotton",
    "county",   "cousin",   "crane",   "crayon",   "creek",   "cricket", "crown",    "crystal",  "cup",      "curtain",
    "cushion",  "dairy",    "daisy",   "dance",    "desk",    "diamond", "diary",    "dinner",   "doctor",   "dolphin",
    "donkey",   "door",     "dragon",  "drawer",   "dress",   "drum",    "duck",     "eagle",    "editor",   "elbow",
    "elephant", "engine",   "evening", "fabric",   "falcon",  "family",  "farmer",   "feather",  "fence",    "fern",
    "ferry",    "festival", "fiddle",  "field",    "finger",  "flag",    "flame",    "flask",    "flower",   "flute",
    "forest",   "fork",     "fossil",  "fountain", "fox",     "garden",  "garlic",   "gate",     "ginger",   "giraffe",
    "glacier",  "glass",    "glove",   "goose",    "grain",   "grape",   "gravel",   "guitar",   "hammer",   "harbor",
    "harvest",  "hat",      "hawk",    "hazel",    "helmet",  "hill",    "honey",    "hood",     "horse",    "hotel",
    "house",    "iceberg",  "ink",     "island",   "ivory",   "jacket",  "jar",      "jewel",    "journal",  "judge",
    "jungle",   "kettle",   "key",     "kingdom",  "kitchen", "kite",    "knot",     "ladder",   "lagoon",   "lake",
    "lamp",     "lantern",  "laundry", "lawn",     "leaf",    "lemon",   "letter",   "library",  "lily",     "lion",
    "lizard",   "lobster",  "locket",  "lumber",   "lunch",   "magnet",  "mango",    "map",      "maple",    "marble",
    "market",   "meadow",   "melon",   "mirror",   "mitten",  "monkey",  "morning",  "mountain", "museum",   "mushroom",
    "napkin",   "needle",   "nest",    "notebook", "nut",     "oak",     "oasis",    "ocean",    "office",   "olive",
    "onion",    "orchard",  "orchid",  "otter",    "oven",    "owl",     "oyster",   "paddle",   "palace",   "pantry",
    "paper",    "parade",   "parrot",  "path",     "peach",   "peanut",  "pear",     "pearl",    "pebble",   "pencil",
    "penguin",  "pepper",   "piano",   "pigeon",   "pillow",  "pilot",   "pine",     "planet",   "plate",    "plum",
    "pocket",   "poem",     "pond",    "poppy",    "porch",   "potato",  "prairie",  "puddle",   "pumpkin",  "puzzle",
    "quarry",   "quilt",    "rabbit",  "radio",    "raft",    "rain",    "ranch",    "raven",    "ribbon",   "rice",
    "river",    "road",     "robin",   "rocket",   "roof",    "rope",    "rose",     "saddle",   "sailor",   "salad",
    "salmon",   "sand",     "scarf",   "school",   "seed",    "shadow",  "sheep",    "shelf",    "shell",    "ship",
    "shirt",    "shoe",     "shore",   "signal",   "sister",  "sketch",  "sled",     "smoke",    "snail",    "soap",
    "sock",     "sofa",     "song",    "soup",     "spice",   "spider",  "spoon",    "spring",   "squirrel", "star",
    "station",  "stone",    "stool",   "storm",    "story",   "stove",   "straw",    "stream",   "street",   "sugar",
    "summer",   "sunset",   "swan",    "table",    "tailor",  "tavern",  "teapot",   "temple",   "tent",     "theater",
    "thread",   "thunder",  "ticket",  "tiger",    "timber",  "toast",   "tomato",   "torch",    "tower",    "trail",
    "train",    "tree",     "trumpet", "tulip",    "tunnel",  "turtle",  "umbrella", "uncle",    "valley",   "vase",
    "velvet",   "village",  "vine",    "violin",   "wagon",   "walnut",  "water",    "wheat",    "wheel",    "whistle",
    "willow",   "window",   "winter",  "wizard",   "wolf",    "wool",    "workshop", "yard",     "zebra",
});

template <size_t N>
size_t longest(const std::array<std::string_view, N>& words) {
  size_t most = 0;
  for (const std::string_view word : words) most = std::max(most, word.size());
  return most;
}

}  // namespace

std::string draw_word(Random& random) {
  const std::string_view adjective = kAdjectives[random.below(kAdjectives.size())];
  return fmt::format("{}-{}", adjective, kNouns[random.below(kNouns.size())]);
}

std::string longest_word() {
  return std::string(longest(kAdjectives) + 1 + longest(kNouns), 'w');
}

}  // namespace tamis::data

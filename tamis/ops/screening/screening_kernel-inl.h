// Eq. (8)-(18) of screening, shared by the forward pass, the backward pass and decoding: similarities, Trim, Softmask,
// the sum of accepted values, TanhNorm and gate. Included once per instruction set.

#include "tamis/ops/screening/screening_kernel.h"

#if defined(TAMIS_OPS_SCREENING_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SCREENING_KERNEL_INL_H_
#undef TAMIS_OPS_SCREENING_KERNEL_INL_H_
#else
#define TAMIS_OPS_SCREENING_KERNEL_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tamis/kernels/math-inl.h"
#include "tamis/ops/screening/screening_rows_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Softmask of a query for the 16 keys that begin `distance` before it.
template <typename Real>
HWY_INLINE const Real* SoftmaskOf(const ScreeningHead<Real>& head, int64_t distance) {
  static constexpr Real kCausal[3 * kTileKeys] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  if (head.softmask == nullptr) return kCausal + std::clamp<int64_t>(kTileKeys - 1 - distance, 0, 2 * kTileKeys - 1);
  return head.softmask + kMaskPadding + head.span - 1 - distance;
}

/// One panel and the queries of a block. Bit l of accepted[i], the accept mask of query i, says that it accepts key
/// panel + l; then shortfall[i * 64 + l] is (1 - s) / r and weight[i * 64 + l] is Trim times Softmask.
template <typename Real>
struct ScreenedPanel {
  uint64_t accepted[kBlockQueries];
  HWY_ALIGN Real shortfall[kBlockQueries * kPanelKeys];
  HWY_ALIGN Real weight[kBlockQueries * kPanelKeys];
};

/// s[g][x] = row(g) . key, one key of a tile per lane; tile(g, x) is vector x of dimension 0. Two sums of half the
/// dimensions each have half the rounding error of one long sum, which Trim would amplify by 1/r. row(g) and tile(g, x)
/// may be the same for all g: the group hides the latency of the sums.                                   (8)
template <int64_t kGroup, int64_t kVectors, typename Real, typename Row, typename Tile>
HWY_INLINE void Similarities(int64_t K, const Row& row, const Tile& tile,
                             SizedVec<LaneTag<Real>> (&s)[kGroup][kVectors]) {
  const LaneTag<Real> d;
  SizedVec<LaneTag<Real>> rest[kGroup][kVectors];
  for (int64_t g = 0; g < kGroup; ++g) {
    for (int64_t x = 0; x < kVectors; ++x) s[g][x] = rest[g][x] = hn::Zero(d);
  }
  const auto add_products = [&](int64_t first, int64_t last, auto& sums) HWY_ATTR {
    for (int64_t dim = first; dim < last; ++dim) {
      for (int64_t g = 0; g < kGroup; ++g) {
        const auto component = hn::Set(d, row(g)[dim]);
        for (int64_t x = 0; x < kVectors; ++x) {
          sums[g][x] = hn::MulAdd(component, hn::LoadU(d, tile(g, x) + dim * kTileKeys), sums[g][x]);
        }
      }
    }
  };
  add_products(0, K / 2, s);
  add_products(K / 2, K, rest);
  for (int64_t g = 0; g < kGroup; ++g) {
    for (int64_t x = 0; x < kVectors; ++x) s[g][x] = hn::Add(s[g][x], rest[g][x]);
  }
}

/// Trim of a vector of similarities: shortfall = (1 - s) / r, trim = max(1 - shortfall, 0).              (9)
template <typename Real>
HWY_INLINE void TrimLanes(const ScreeningHead<Real>& head, hn::Vec<LaneTag<Real>> s, hn::Vec<LaneTag<Real>>& shortfall,
                          hn::Vec<LaneTag<Real>>& trim) {
  const LaneTag<Real> d;
  const auto one = hn::Set(d, Real{1});
  shortfall = hn::Mul(PositivePart(d, hn::Sub(one, s)), hn::Set(d, head.inverse_r));  // rounding: s is at most 1
  trim = PositivePart(d, hn::Sub(one, shortfall));
}

/// Whether all similarities in the vectors s(0), ..., s(kCount - 1) are surely rejected; a NaN is not.
template <int64_t kCount, typename Real, typename VectorOf>
HWY_INLINE bool AllSurelyRejected(const ScreeningHead<Real>& head, const VectorOf& s) {
  const LaneTag<Real> d;
  const auto most = hn::Set(d, head.surely_rejected);
  auto rejected = hn::Le(s(0), most);
  for (int64_t x = 1; x < kCount; ++x) rejected = hn::And(rejected, hn::Le(s(x), most));
  return hn::AllTrue(d, rejected);
}

/// The lanes of a mask as bits of an integer.
template <typename Real>
HWY_INLINE uint64_t BitsOf(hn::Mask<LaneTag<Real>> mask) {
  uint8_t bytes[8];  // bytes without a lane are not written
  hn::StoreMaskBits(LaneTag<Real>(), mask, bytes);
  std::conditional_t<(hn::MaxLanes(LaneTag<Real>()) > 8), uint16_t, uint8_t> bits;  // little-endian, one instruction
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/// Queries that ScreenTiles processes together: with one tile their similarities fill 8 registers.
template <typename Real>
inline constexpr int64_t kQueryGroup = std::max<int64_t>(8 / (kTileKeys / hn::MaxLanes(LaneTag<Real>())), 1);

/// Tiles that are multiplied together where every key counts: two in float32 with AVX-512, which has 32 registers.
template <typename Real>
inline constexpr int64_t kTilesAtOnce = kTileKeys == hn::MaxLanes(LaneTag<Real>()) ? 2 : 1;

/// The lanes of keys key, key + 1, ... that are of the document of query i.
template <typename Real>
HWY_INLINE hn::Mask<LaneTag<Real>> OfSameDocument(const ScreeningPass<Real>& pass, int64_t i, int64_t key) {
  const LaneTag<Real> d;
  const Real* document = pass.document - pass.key_origin;
  // The last tile may extend past the last key, and the last group past the last query: these lanes are not read.
  const int64_t end = std::min(i + 1, pass.last);
  HWY_ALIGN Real keys[kTileKeys];
  for (int64_t l = 0; l < static_cast<int64_t>(hn::MaxLanes(d)); ++l) {
    const int64_t j = key + l;
    keys[l] = j >= pass.key_origin && j < end ? document[j] : Real{-1};
  }
  return hn::Eq(hn::Load(d, keys), hn::Set(d, i < pass.last ? document[i] : Real{-2}));
}

/// Eq. (8)-(11) for a group of queries and kTiles tiles of keys, of which the first begins at `key`: accept masks and
/// weights. kKeepShortfall: (1 - s) / r too, for the backward pass. kMasked: false if m = 1 for all pairs.
template <bool kKeepShortfall, bool kMasked, int64_t kGroup, int64_t kTiles, typename Real>
HWY_INLINE void ScreenTiles(const ScreeningPass<Real>& pass, const Real* HWY_RESTRICT rows, int64_t first_query,
                            const Real* const (&tiles)[kTiles], int64_t key, uint64_t* HWY_RESTRICT accepted,
                            int64_t offset, Real* HWY_RESTRICT weights, Real* HWY_RESTRICT shortfalls) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  constexpr int64_t kVectors = kTileKeys / kWidth;
  static_assert(!kMasked || kTiles == 1);  // SoftmaskOf is for 16 keys
  const ScreeningHead<Real>& head = pass.head;
  const int64_t K = head.key_dim, width = padded(K);
  SizedVec<LaneTag<Real>> s[kGroup][kTiles * kVectors];
  const auto similarities = [&](auto stride) HWY_ATTR {
    Similarities<kGroup, kTiles * kVectors, Real>(
        K, [&](int64_t g) HWY_ATTR { return rows + g * stride; },
        [&](int64_t, int64_t x) HWY_ATTR { return tiles[x / kVectors] + x % kVectors * kWidth; }, s);
  };
  if (width == kLanes) {
    similarities(std::integral_constant<int64_t, kLanes>());  // one address for all rows
  } else {
    similarities(width);
  }

  const auto zero = hn::Zero(d);
  for (int64_t first = 0; first < kTiles * kVectors; first += kVectors) {
    const auto of_tile = [&](int64_t x)
                             HWY_ATTR { return hn::Vec<LaneTag<Real>>(s[x / kVectors][first + x % kVectors]); };
    // As in most tiles. One branch for the group, as one for each query would be mispredicted.
    if (AllSurelyRejected<kGroup * kVectors>(head, of_tile)) continue;
    for (int64_t g = 0; g < kGroup; ++g) {
      const Real* softmask = kMasked ? SoftmaskOf(head, first_query + g - key) : nullptr;
      uint64_t bits = 0;
      for (int64_t x = first; x < first + kVectors; ++x) {
        // A NaN similarity stays NaN and is accepted, so that it shows in the result. Lanes outside the window hold any
        // number; their softmask is 0.
        hn::Vec<LaneTag<Real>> shortfall, trim;
        TrimLanes(head, s[g][x], shortfall, trim);
        auto weight = hn::Mul(trim, trim);
        auto counts = hn::Not(hn::Eq(trim, zero));
        if constexpr (kMasked) {
          const auto m = hn::LoadU(d, softmask + x * kWidth);
          weight = hn::Mul(weight, m);  // (11)
          counts = hn::And(hn::Gt(m, zero), counts);
          if (pass.document != nullptr) {
            counts = hn::And(counts, OfSameDocument(pass, first_query + g, key + x * kWidth));
          }
        }
        bits |= BitsOf<Real>(counts) << (x * kWidth);
        hn::Store(weight, d, weights + g * kPanelKeys + x * kWidth);
        if constexpr (kKeepShortfall) hn::Store(shortfall, d, shortfalls + g * kPanelKeys + x * kWidth);
      }
      accepted[g] |= bits << offset;
    }
  }
}

/// 64 bytes to bits: bit l is the lowest bit of byte l. The product moves the lowest bits of eight bytes into its
/// highest byte.
inline uint64_t LowestBits(const uint8_t* bytes) {
  uint64_t bits = 0;
  for (int64_t at = 0; at < kPanelKeys; at += 8) {
    uint64_t eight;  // little-endian
    std::memcpy(&eight, bytes + at, sizeof eight);
    bits |= ((eight & 0x0101010101010101) * 0x0102040810204080 >> 56) << at;
  }
  return bits;
}

/// Loads the values of the `wanted` keys of a panel into the ring.
template <typename Real>
HWY_INLINE void StoreWantedValues(const ScreeningPass<Real>& pass, uint64_t wanted, int64_t panel, const Slots& slots) {
  constexpr int kMany = 8;
  if (std::popcount(wanted) > kMany && PanelSlots(slots, panel, pass.ring.capacity).adjacent()) {
    wanted &= ~LowestBits(pass.ring.ready + slots(panel));  // bytes of keys that are not in the ring hold anything
  }
  if (wanted == 0) return;
  int64_t missing[kPanelKeys], count = 0;
  for (; wanted != 0; wanted &= wanted - 1) {
    const int64_t key = panel + std::countr_zero(wanted);
    missing[count] = key;
    count += pass.ring.ready[slots(key)] == 0 ? 1 : 0;
  }
  StoreValues(
      pass, count, [&](int64_t i) HWY_ATTR { return missing[i]; }, slots);
}

/// Screens the keys [panel, panel + 64) for `count` queries from `first_query` on, and loads the values of the accepted
/// keys.
template <bool kKeepShortfall, typename Real>
HWY_NOINLINE void ScreenPanel(const ScreeningPass<Real>& pass, const Real* HWY_RESTRICT q, int64_t first_query,
                              int64_t count, int64_t panel, const Slots& slots, ScreenedPanel<Real>& screened) {
  const ScreeningHead<Real>& head = pass.head;
  const int64_t K = head.key_dim, width = padded(K), last_key = first_query + count;
  const bool every_key_counts = head.softmask == nullptr && pass.document == nullptr;
  std::fill_n(screened.accepted, kBlockQueries, uint64_t{0});
  const int64_t end = std::min(panel + kPanelKeys, last_key);
  const auto tile_of = [&](int64_t key) HWY_ATTR { return pass.ring.tiles + slots(key) / kTileKeys * K * kTileKeys; };
  int64_t key = panel;
  const auto screen = [&](auto masked, auto group, const auto& tiles, int64_t query) HWY_ATTR {
    const int64_t at = query * kPanelKeys + key - panel;
    ScreenTiles<kKeepShortfall, masked, group>(pass, q + query * width, first_query + query, tiles, key,
                                               screened.accepted + query, key - panel, screened.weight + at,
                                               screened.shortfall + at);
  };
  using Group = std::integral_constant<int64_t, kQueryGroup<Real>>;
  constexpr int64_t kTiles = kTilesAtOnce<Real>;
  for (; every_key_counts && count > 1 && key + kTiles * kTileKeys <= std::min(first_query + 1, end);
       key += kTiles * kTileKeys) {
    const Real* tiles[kTiles];
    for (int64_t t = 0; t < kTiles; ++t) tiles[t] = tile_of(key + t * kTileKeys);
    for (int64_t query = 0; query < count; query += Group()) screen(std::false_type(), Group(), tiles, query);
  }
  for (; key < end; key += kTileKeys) {
    const Real* tile[1] = {tile_of(key)};
    if (count == 1) {
      screen(std::true_type(), std::integral_constant<int64_t, 1>(), tile, 0);
      continue;
    }
    for (int64_t query = 0; query < count; query += Group()) {
      const int64_t first_of_group = first_query + query, last_of_group = first_of_group + Group() - 1;
      if (key > last_of_group || key + kTileKeys <= first_of_group - head.span + 1) continue;  // no query sees it
      screen(std::true_type(), Group(), tile, query);
    }
  }
  uint64_t wanted = 0;
  for (int64_t i = 0; i < count; ++i) wanted |= screened.accepted[i];
  StoreWantedValues(pass, wanted, panel, slots);
}

/// Vectors of a sum of rows that are kept in registers: at most half of 16, and enough to hide the latency of an
/// addition.
inline constexpr int kSumVectors = 8;

/// The pointer in a register of its own: GCC otherwise folds the index of the row into every access, and on
/// Intel's processors a multiply-add with an indexed operand is two micro-operations.
template <typename Real>
HWY_INLINE const Real* InRegister(const Real* pointer) {
  asm("" : "+r"(pointer));
  return pointer;
}

/// Calls first(l) for the bits l of `of_first` and second(l) for those of `of_second`, interleaved: two sums that do
/// not depend on each other hide the latency of their additions.
template <typename First, typename Second>
HWY_INLINE void Interleaved(uint64_t of_first, uint64_t of_second, const First& first, const Second& second) {
  for (; of_first != 0 && of_second != 0; of_first &= of_first - 1, of_second &= of_second - 1) {
    first(std::countr_zero(of_first));
    second(std::countr_zero(of_second));
  }
  for (; of_first != 0; of_first &= of_first - 1) first(std::countr_zero(of_first));
  for (; of_second != 0; of_second &= of_second - 1) second(std::countr_zero(of_second));
}

/// A sum of rows, kVectors vectors of columns.
template <int kVectors, typename Real>
struct ColumnSum {
  HWY_INLINE ColumnSum() {
    for (int x = 0; x < kVectors; ++x) sum[x] = hn::Zero(LaneTag<Real>());
  }
  HWY_INLINE void add(Real factor, const Real* HWY_RESTRICT row) {
    const LaneTag<Real> d;
    const auto f = hn::Set(d, factor);
    for (int x = 0; x < kVectors; ++x) sum[x] = hn::MulAdd(f, hn::LoadU(d, row + x * hn::MaxLanes(d)), sum[x]);
  }
  /// Adds the sum to out: two short sums have a smaller rounding error than one long sum.
  HWY_INLINE void add_to(Real* HWY_RESTRICT out) const {
    const LaneTag<Real> d;
    for (int x = 0; x < kVectors; ++x) {
      Real* at = out + x * hn::MaxLanes(d);
      hn::StoreU(hn::Add(hn::LoadU(d, at), sum[x]), d, at);
    }
  }
  SizedVec<LaneTag<Real>> sum[kVectors];
};

/// out += sum of factor[l] * row(l) over the bits l of `rows`, kVectors vectors of columns.
template <int kVectors, typename Real, typename RowOf>
HWY_INLINE void AddRowsColumns(uint64_t rows, const Real* HWY_RESTRICT factor, const RowOf& row,
                               Real* HWY_RESTRICT out) {
  ColumnSum<kVectors, Real> sum;
  for (; rows != 0; rows &= rows - 1) {
    const int64_t l = std::countr_zero(rows);
    sum.add(factor[l], InRegister(row(l)));
  }
  sum.add_to(out);
}

/// The same for padded rows of `width` numbers.
template <typename Real, typename RowOf>
HWY_INLINE void AddRows(uint64_t rows, const Real* HWY_RESTRICT factor, int64_t width, const RowOf& row,
                        Real* HWY_RESTRICT out) {
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  constexpr int kRest =
      std::min<int64_t>(kTileKeys / kWidth, 4);  // every padded row is a multiple of this many vectors
  const auto add = [&](auto vectors, int64_t at) HWY_ATTR {
    AddRowsColumns<vectors>(
        rows, factor, [&](int64_t l) HWY_ATTR { return row(l) + at; }, out + at);
  };
  int64_t at = 0;
  for (; at + kSumVectors * kWidth <= width; at += kSumVectors * kWidth) {
    add(std::integral_constant<int, kSumVectors>(), at);
  }
  for (; at + 4 * kWidth <= width; at += 4 * kWidth) add(std::integral_constant<int, 4>(), at);
  for (; at < width; at += kRest * kWidth) add(std::integral_constant<int, kRest>(), at);
}

/// h += sum of weight * value over the accepted keys of one query in a panel. The forward pass reads values only here.
///                                                                                                     (12)
template <typename Real>
HWY_INLINE void AddAccepted(const ScreeningPass<Real>& pass, uint64_t accepted, const Real* HWY_RESTRICT weight,
                            const PanelSlots& slots, Real* HWY_RESTRICT h) {
  const Real* HWY_RESTRICT values = pass.ring.values;
  const int64_t width = padded(pass.head.value_dim);
  const PanelSlots slot = slots;  // a copy, which stays in registers
  AddRows(
      accepted, weight, width, [&](int64_t l) HWY_ATTR { return values + slot(l) * width; }, h);
}

/// The same for the queries of a block, `count` rows of h; two at a time where both sums fit into kSumVectors
/// registers.
template <typename Real>
HWY_NOINLINE void AddPanel(const ScreeningPass<Real>& pass, const ScreenedPanel<Real>& screened, int64_t count,
                           const PanelSlots& slots, Real* HWY_RESTRICT h) {
  constexpr int kVectors = kSumVectors / 2;
  constexpr int64_t kWidth = kVectors * hn::MaxLanes(LaneTag<Real>());
  const int64_t width = padded(pass.head.value_dim);
  const Real* HWY_RESTRICT first_value = pass.ring.values + slots(0) * width;
  int64_t i = 0;
  for (; width == kWidth && slots.adjacent() && i + 1 < count; i += 2) {
    const Real* HWY_RESTRICT weight = screened.weight + i * kPanelKeys;
    const auto value = [&](int64_t l) HWY_ATTR { return InRegister(first_value + l * kWidth); };
    ColumnSum<kVectors, Real> first, second;
    Interleaved(
        screened.accepted[i], screened.accepted[i + 1], [&](int64_t l) HWY_ATTR { first.add(weight[l], value(l)); },
        [&](int64_t l) HWY_ATTR { second.add(weight[kPanelKeys + l], value(l)); });
    first.add_to(h + i * width);
    second.add_to(h + (i + 1) * width);
  }
  for (; i < count; ++i) {
    if (screened.accepted[i] == 0) continue;
    AddAccepted(pass, screened.accepted[i], screened.weight + i * kPanelKeys, slots, h + i * width);
  }
}

/// The first tile that a block beginning at `first_query` sees.
template <typename Real>
HWY_INLINE int64_t FirstVisibleTile(const ScreeningPass<Real>& pass, int64_t first_query) {
  return std::max<int64_t>(0, first_query - pass.head.span + 1) / kTileKeys * kTileKeys;
}

/// For `count` rows h, n = |h|: the factor f = tanh(n) / n and, if `slope` is given, f'(n) / n = (1 - tanh(n)^2 - f) /
/// n^2. At h = 0 they are 1 and -2/3. Near 0 the slope is set to -2/3, as its digits would cancel. Without TanhNorm the
/// factor is 1 and the slope is not computed.                                                               (13), (14)
template <typename Real>
HWY_INLINE void TanhNormFactors(const ScreeningHead<Real>& head, const Real* HWY_RESTRICT h, int64_t count,
                                Real* HWY_RESTRICT factor, Real* HWY_RESTRICT slope = nullptr) {
  if (!head.tanh_norm) return std::fill(factor, factor + count, Real{1});
  const LaneTag<Real> d;
  const int64_t width = padded(head.value_dim);
  constexpr Real kNearZero = sizeof(Real) == 8 ? Real{1e-4} : Real{1e-2};  // an error of n^2 in a term of n^2
  const auto one = hn::Set(d, Real{1});
  for (int64_t i = 0; i < count; ++i) factor[i] = Dot(h + i * width, h + i * width, width);
  std::fill(factor + count, factor + kBlockQueries, Real{0});
  for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) {
    const auto squared = hn::LoadU(d, factor + i), n = hn::Sqrt(squared);
    const auto at_zero = hn::Eq(n, hn::Zero(d));
    SizedVec<LaneTag<Real>> tanh[1] = {n};
    PreciseTanh(d, tanh);
    const auto f = hn::IfThenElse(at_zero, one, hn::Div(tanh[0], hn::IfThenElse(at_zero, one, n)));
    hn::StoreU(f, d, factor + i);
    if (slope == nullptr) continue;
    const auto near_zero = hn::Lt(n, hn::Set(d, kNearZero));
    const auto difference = hn::Sub(hn::NegMulAdd(tanh[0], tanh[0], one), f);
    const auto exact = hn::Div(difference, hn::IfThenElse(near_zero, one, squared));
    hn::StoreU(hn::IfThenElse(near_zero, hn::Set(d, Real{-2.0 / 3}), exact), d, slope + i);
  }
}

/// Vectors of a row that long functions process in step, as many as fit into registers.
template <typename Real>
inline constexpr int kInStep = hn::MaxLanes(LaneTag<Real>()) == kTileKeys ? 4 : 2;

/// Calls body(vectors, at) for the vectors of a padded row: kInStep of them at once, then the rest one by one.
template <typename Real, typename Body>
HWY_INLINE void InStep(int64_t width, const Body& body) {
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  int64_t at = 0;
  for (; at + kInStep<Real> * kWidth <= width; at += kInStep<Real> * kWidth) {
    body(std::integral_constant<int, kInStep<Real>>(), at);
  }
  for (; at < width; at += kWidth) body(std::integral_constant<int, 1>(), at);
}

/// sigmoid(g) and G = tanh(SiLU(g)).                                                           (17)
template <Accuracy kAccuracy, int kCount, class D, class V>
HWY_INLINE void Gate(D d, const V (&g)[kCount], V (&sigmoid)[kCount], V (&G)[kCount]) {
  for (int i = 0; i < kCount; ++i) sigmoid[i] = g[i];
  Sigmoid<kAccuracy>(d, sigmoid);
  for (int i = 0; i < kCount; ++i) G[i] = hn::Mul(g[i], sigmoid[i]);
  PreciseTanh<kAccuracy>(d, G);
}

/// h <- factor h G, in two accuracies: kBFloat16 suffices for a result that is rounded to bfloat16, but not for
/// gradients: those of s_w and s_r are sums over all pairs, in which the error would not cancel.
template <Accuracy kAccuracy, typename Real>
HWY_INLINE void ApplyGate(const Real* HWY_RESTRICT gate, int64_t width, Real factor, Real* HWY_RESTRICT h) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const auto scale = hn::Set(d, factor);
  InStep<Real>(width, [&](auto vectors, int64_t at) HWY_ATTR {
    SizedVec<LaneTag<Real>> g[vectors], sigmoid[vectors], G[vectors];
    for (int i = 0; i < vectors; ++i) g[i] = hn::LoadU(d, gate + at + i * kWidth);
    Gate<kAccuracy>(d, g, sigmoid, G);
    for (int i = 0; i < vectors; ++i) {
      Real* at_h = h + at + i * kWidth;
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, at_h), scale), G[i]), d, at_h);
    }
  });
}

/// out = u * tanh(SiLU(gate)), u = factor * h.                                                (14), (17), (18)
template <typename Real>
HWY_INLINE void Finish(const ScreeningPass<Real>& pass, int64_t query, Real factor, Real* HWY_RESTRICT h,
                       Real* HWY_RESTRICT gate) {
  const int64_t row = query - pass.query_origin, width = padded(pass.head.value_dim);
  if (pass.gate.data != nullptr) {
    LoadRow(pass.gate, row, pass.head.value_dim, gate);
    if (pass.out.storage == Storage::kBFloat16) {
      ApplyGate<Accuracy::kBFloat16>(gate, width, factor, h);
    } else {
      ApplyGate<Accuracy::kFloat32>(gate, width, factor, h);
    }
  } else {
    const LaneTag<Real> d;
    const auto scale = hn::Set(d, factor);
    for (int64_t at = 0; at < width; at += hn::MaxLanes(d)) {
      hn::StoreU(hn::Mul(hn::LoadU(d, h + at), scale), d, h + at);
    }
  }
  StoreRow(h, pass.head.value_dim, pass.out, row);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set

// Screening in plain torch, block by block. Heads whose queries are cut into blocks alike are processed together.
// Equation numbers are those of "Screening Is Enough"; the derivative is that of README.md.

#include "tamis/ops/screening/screening_blocked.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "tamis/ops/blocked.h"
#include "tamis/ops/screening/screening_blocked_parts.h"
#include "tamis/ops/screening/screening_functions.h"
#include "tamis/ops/window.h"

namespace tamis::ops {

using at::Tensor;

namespace {

constexpr double kPi = std::numbers::pi;

/// Heads that are processed together.
struct HeadGroup {
  int64_t span;  // the longest
  bool flat;
  std::vector<int64_t> heads;
};

/// Groups heads by how their queries are cut into blocks. Reads s_w and s_r from the device.
std::vector<HeadGroup> head_groups(const std::vector<HeadNumbers>& numbers, const AttentionSizes& sizes,
                                   at::Device device) {
  std::vector<HeadGroup> groups;
  for (int64_t h = 0; h < sizes.H; ++h) {
    const int64_t span = std::max<int64_t>(visible_span(numbers[h].window, sizes.T_k), 1);
    const bool flat = numbers[h].flat(sizes.T_k);
    const BlockCut cut(sizes, span, device);
    const auto alike = std::find_if(groups.begin(), groups.end(), [&](const HeadGroup& group) {
      return group.flat == flat && BlockCut(sizes, group.span, device) == cut;
    });
    if (alike == groups.end()) {
      groups.push_back({span, flat, {h}});
    } else {
      alike->span = std::max(alike->span, span);
      alike->heads.push_back(h);
    }
  }
  return groups;
}

/// The derivative of s by the angle of one side, summed over the other side, whose part of the gradient is dx.
Tensor angle_gradient(const Tensor& x, const Tensor& dx) {
  return dx.select(-1, 1) * x.select(-1, 0) - dx.select(-1, 0) * x.select(-1, 1);
}

/// Softmask and its slope by s_w over the distances of a block, [rows, 1, block, keys].       (10)
struct MaskTables {
  Tensor softmask, slope;
};

/// A group of heads: unit rows, rotated, with h and the gradients by them.
class GroupedHeads {
 public:
  GroupedHeads(const Tensor& q, const Tensor& k, const Tensor& v, const HeadGroup& group,
               const std::vector<HeadNumbers>& numbers, const ScreeningOptions& options)
      : flat_(group.flat),
        shapes_(options),
        options_(q.options().dtype(computing_dtype(q.scalar_type()))),
        wide_(options_.dtype(widest_dtype(q.device()))),
        blocks_(AttentionSizes(q, k), group.span, {.document = options.document}, options_),
        q_(blocks_.query_rows(q), widest_dtype(q.device())),  // Trim amplifies rounding of similarities
        k_(blocks_.key_rows(k), widest_dtype(q.device())),
        v_(blocks_.key_rows(v), computing_dtype(v.scalar_type())) {
    for (int64_t b = 0; b < q.size(0); ++b) {
      for (const int64_t head : group.heads) rows_.push_back(numbers[head]);
    }
    inverse_r_ = per_row(&HeadNumbers::inverse_r).to(options_);
    one_ = at::ones({1}, options_);
    const Tensor angle_step = angle_steps(rows_, q.device());
    if (!angle_step.defined()) return;
    q_rotation_ = rotation_of(angle_step, blocks_.query_origin(), q_.unit.size(1), options_);
    k_rotation_ = rotation_of(angle_step, blocks_.key_origin(), k_.unit.size(1), options_);
    q_rotation_.turn(q_.unit, 1);
    k_rotation_.turn(k_.unit, 1);
  }

  /// h [B, T_q, heads, V].                                                      (11), (12)
  Tensor sums() const {
    const Tensor h = blocks_.zero_query_rows(v_.unit.size(2));
    for (const auto& range : blocks_.row_ranges()) {
      const MaskTables tables = mask_tables(range, /*derivative=*/false);
      for (const BlockStep& step : blocks_.steps(range)) {
        const Tensor t = trim_root(step, step.of_queries(q_.unit), step.of_keys(k_.unit));
        step.set_queries(h, at::bmm(weight(step, tables, t), step.of_keys(v_.unit)));
      }
    }
    return blocks_.from_query_rows(h);
  }

  struct Gradients {
    Tensor h, q, k, v;  // h itself; [B, T, heads, D]
    Tensor s_w, s_r;    // [heads], on the CPU or the device, float64 where there is one
  };
  Gradients gradients(const Tensor& grad_u, bool tanh_norm) const;

 private:
  bool rotates() const { return q_rotation_.cos.defined(); }

  Tensor per_row(double HeadNumbers::*number) const { return numbers_of(rows_, number); }

  MaskTables mask_tables(const QueryBlocks::RowRange& range, bool derivative) const {
    if (flat_) return {};
    const Tensor distances = blocks_.distances();
    const int64_t block = distances.size(0), newest = 1 - block, oldest = distances.size(1) - 1;
    const Tensor distance = at::arange(newest, oldest + 1, wide_);
    const auto of_range = [&](double HeadNumbers::*number) {
      return per_row(number).narrow(0, range.first, range.count).to(wide_).unsqueeze(1);
    };
    const Tensor inverse_w = of_range(&HeadNumbers::inverse_w), x = kPi * distance * inverse_w;
    const Tensor outside = (distance < 0).logical_or(distance >= of_range(&HeadNumbers::window));
    const Tensor index = (distances - newest).flatten();
    const auto table = [&](const Tensor& of_distance) {
      const Tensor inside = of_distance.masked_fill(outside, 0).to(options_);
      return inside.index_select(1, index).view({range.count, 1, block, distances.size(1)});
    };
    MaskTables tables{.softmask = table(softmask_of(x, shapes_)), .slope = {}};
    if (derivative) tables.slope = table(softmask_slope_of(x, inverse_w, shapes_));
    return tables;
  }

  /// t = 1 - (1 - s)/r of pairs, at least 0 and at most 1; Trim is its power p.    (8), (9)
  Tensor trim_root(const BlockStep& step, const Tensor& q, const Tensor& k) const {
    const Tensor t = at::bmm(q, k.transpose(1, 2)).sub_(1);
    Tensor by_row = step.by_row(t);
    at::addcmul_out(by_row, one_, by_row, step.per_row(inverse_r_));
    return t.clamp_(0, 1);
  }

  /// Multiplies pairs by the softmask.
  void mask(const BlockStep& step, const MaskTables& tables, const Tensor& pairs) const {
    if (flat_) return step.hide(pairs, 0);
    step.by_row(pairs).mul_(step.of_table(tables.softmask));
    step.hide_documents(pairs, 0);
  }

  /// a m for the root t of a.                                                     (9), (10)
  Tensor weight(const BlockStep& step, const MaskTables& tables, const Tensor& t) const {
    const Tensor trim = trim_of(t, shapes_);
    mask(step, tables, trim);
    return trim;
  }

  /// The derivative by the MiPE angle per token, for every block. Only differences of positions matter: those from the
  /// block's first query keep the terms, which cancel, small.
  Tensor angle_sum(const Tensor& q, const Tensor& k, const Tensor& dq, const Tensor& dk) const {
    const int64_t queries = q.size(1), keys = k.size(1);
    return (angle_gradient(q, dq) * at::arange(queries, options_)).sum(1) +
           (angle_gradient(k, dk) * at::arange(queries - keys, queries, options_)).sum(1);
  }

  bool flat_;
  ScreeningHeadOptions shapes_;
  at::TensorOptions options_, wide_;
  QueryBlocks blocks_;
  UnitRows q_, k_, v_;
  Rotation q_rotation_, k_rotation_;
  std::vector<HeadNumbers> rows_;  // of every row
  Tensor inverse_r_;               // [N]
  Tensor one_;                     // [1]
};

GroupedHeads::Gradients GroupedHeads::gradients(const Tensor& grad_u, bool tanh_norm) const {
  const int64_t K = q_.unit.size(2), V = v_.unit.size(2), N = static_cast<int64_t>(rows_.size());
  const Tensor du = blocks_.query_rows(grad_u), h = blocks_.zero_query_rows(V), dq = blocks_.zero_query_rows(K);
  const Tensor dk = blocks_.zero_key_rows(K), dv = blocks_.zero_key_rows(V);
  const Tensor by_trim = at::zeros({N}, wide_), by_mask = at::zeros({N}, wide_), by_angle = at::zeros({N}, wide_);
  const auto power = static_cast<double>(shapes_.trim_power);
  for (const auto& range : blocks_.row_ranges()) {
    const MaskTables tables = mask_tables(range, /*derivative=*/true);
    for (const BlockStep& step : blocks_.steps(range)) {
      const auto add = [&](const Tensor& sums, const Tensor& pairs) {
        sums.narrow(0, step.first_row, step.rows).add_(step.by_row(pairs).sum({2, 3}).to(wide_).sum(1));
      };
      const Tensor q = step.of_queries(q_.unit), k = step.of_keys(k_.unit), v = step.of_keys(v_.unit);
      const Tensor t = trim_root(step, q, k), am = weight(step, tables, t), h_step = at::bmm(am, v);
      const Tensor du_step = step.of_queries(du);
      const Tensor dh = tanh_norm ? TanhNorm(h_step).gradient(h_step, du_step) : du_step;
      step.set_queries(h, h_step);
      step.add_products_to_keys(dv, am, dh);
      const Tensor dam = at::bmm(dh, v.transpose(1, 2));
      const Tensor dt = dam.mul_(trim_slope_of(t, shapes_));  // dt = p t^(p - 1) da, da = dam m: a p-th of it
      if (!flat_) {                                           // dm slope = dam a slope
        const Tensor by_slope = at::mul(dt, t);
        step.by_row(by_slope).mul_(step.of_table(tables.slope));
        step.hide_documents(by_slope, 0);
        add(by_mask, by_slope);
      }
      mask(step, tables, dt);
      add(by_trim, t.sub_(1).mul_(dt));  // of t - 1
      const Tensor scale =
          (power * step.per_row(inverse_r_)).expand({step.rows, step.blocks, 1, 1}).reshape({-1, 1, 1});
      const Tensor dq_step = at::bmm(dt, k).mul_(scale), scaled_q = q * scale;  // ds = dt / r
      step.set_queries(dq, dq_step);
      if (rotates()) {
        const Tensor dk_step = at::bmm(dt.transpose(1, 2), scaled_q);
        step.add_to_keys(dk, dk_step);
        by_angle.narrow(0, step.first_row, step.rows)
            .add_(angle_sum(q, k, dq_step, dk_step).view({step.rows, -1}).sum(1));
      } else {
        step.add_products_to_keys(dk, dt, scaled_q);
      }
    }
  }
  const Tensor dq_raw = q_.gradient(dq), dk_raw = k_.gradient(dk);
  if (rotates()) {
    q_rotation_.turn(dq_raw, -1);
    k_rotation_.turn(dk_raw, -1);
  }
  const auto of_heads = [&](const Tensor& by_row) { return by_row.view({grad_u.size(0), -1}).sum(0); };
  return {.h = blocks_.from_query_rows(h),
          .q = blocks_.from_query_rows(dq_raw),
          .k = blocks_.from_key_rows(dk_raw),
          .v = blocks_.from_key_rows(v_.gradient(dv)),
          .s_w = of_heads(by_mask + by_angle * per_row(&HeadNumbers::angle_step_slope).to(wide_)),
          .s_r = of_heads(by_trim * per_row(&HeadNumbers::one_minus_r).to(wide_) * -power)};
}

/// The heads of a group in tensors of all heads. Neighbours are a view.
class HeadIndex {
 public:
  HeadIndex(const HeadGroup& group, at::Device device)
      : first_(group.heads.front()), count_(static_cast<int64_t>(group.heads.size())) {
    if (group.heads.back() - first_ + 1 != count_) index_ = at::tensor(group.heads, at::kLong).to(device);
  }

  Tensor of(const Tensor& x, int64_t dim) const {
    return index_.defined() ? x.index_select(dim, index_) : x.narrow(dim, first_, count_);
  }
  void write(const Tensor& to, int64_t dim, const Tensor& value) const {
    if (index_.defined()) {
      to.index_copy_(dim, index_, value.to(to.scalar_type()));
    } else {
      to.narrow(dim, first_, count_).copy_(value);
    }
  }

 private:
  int64_t first_, count_;
  Tensor index_;
};

}  // namespace

Tensor screening_blocked(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                         const ScreeningOptions& options) {
  const WithoutAutocast without_autocast;
  const auto dtype = computing_dtype(q.scalar_type());
  Tensor u = at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options().dtype(dtype));
  if (!AttentionSizes(q, k).empty()) {
    const std::vector<HeadNumbers> numbers = head_numbers(s_w, s_r, options);
    for (const HeadGroup& group : head_groups(numbers, AttentionSizes(q, k), q.device())) {
      const HeadIndex heads(group, q.device());
      heads.write(u, 2, GroupedHeads(heads.of(q, 2), heads.of(k, 2), heads.of(v, 2), group, numbers, options).sums());
    }
  }
  if (options.tanh_norm) u.mul_(TanhNorm(u).factor);
  if (options.gate) u.mul_(gate_factor(*options.gate));  // (18)
  return u.to(v.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> screening_backward_blocked(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
    const ScreeningOptions& options) {
  const WithoutAutocast without_autocast;
  const auto dtype = computing_dtype(q.scalar_type());
  const auto zeros_like = [&](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  const Tensor dq = zeros_like(q), dk = zeros_like(k), dv = zeros_like(v), ds_w = zeros_like(s_w),
               ds_r = zeros_like(s_r);
  Tensor dgate = options.gate ? zeros_like(*options.gate) : Tensor();
  if (AttentionSizes(q, k).empty()) return {dq, dk, dv, ds_w, ds_r, dgate};

  const Tensor du = options.gate ? widened(grad) * gate_factor(*options.gate) : widened(grad);
  const Tensor h = at::empty(grad.sizes(), grad.options().dtype(dtype));
  const std::vector<HeadNumbers> numbers = head_numbers(s_w, s_r, options);
  for (const HeadGroup& group : head_groups(numbers, AttentionSizes(q, k), q.device())) {
    const HeadIndex heads(group, q.device());
    const GroupedHeads grouped(heads.of(q, 2), heads.of(k, 2), heads.of(v, 2), group, numbers, options);
    const auto d = grouped.gradients(heads.of(du, 2), options.tanh_norm);
    heads.write(h, 2, d.h);
    heads.write(dq, 2, d.q);
    heads.write(dk, 2, d.k);
    heads.write(dv, 2, d.v);
    heads.write(ds_w, 0, d.s_w);
    heads.write(ds_r, 0, d.s_r);
  }
  if (options.gate) {
    const Tensor gate = widened(*options.gate).contiguous(), G = gate_factor(gate), sigmoid = at::sigmoid(gate);
    const Tensor u = options.tanh_norm ? h * TanhNorm(h).factor : h;
    const Tensor slope = (1 - G.square()) * sigmoid * (1 + gate * (1 - sigmoid));
    dgate = (widened(grad) * u * slope).to(options.gate->scalar_type()).contiguous();
  }
  return {dq, dk, dv, ds_w, ds_r, dgate};
}

}  // namespace tamis::ops

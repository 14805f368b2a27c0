#include "tamis/distributed/context_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

namespace tamis::distributed {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The last rows of process `from` that process `to`, further right, needs for a head.
int64_t needed_rows(int64_t halo, int64_t from, int64_t to, int64_t tokens) {
  const int64_t between = (to - from - 1) * tokens;
  return std::clamp<int64_t>(halo - between, 0, tokens);
}

/// Rows that `from` sends to `to`, over all heads.
int64_t rows_between(std::span<const int64_t> halos, int64_t from, int64_t to, int64_t tokens) {
  int64_t rows = 0;
  for (const int64_t halo : halos) rows += from < to ? needed_rows(halo, from, to, tokens) : 0;
  return rows;
}

/// Rows [first, first + rows) of one head, [B, rows, C].
Tensor rows_of(const Tensor& x_BTHC, int64_t head, int64_t first, int64_t rows) {
  return x_BTHC.select(2, head).narrow(1, first, rows);
}

/// The messages of with_left. A message holds the parts for one process after the other, in a part head after head.
struct HaloMessages {
  ProcessGroup& group;
  const std::vector<int64_t>& halos;
  int64_t B, T, C;

  /// Numbers that this process has for each process to the right, and that each one to the left has for it.
  std::vector<int64_t> to_right() const {
    return counts([&](int64_t r) { return rows_between(halos, group.rank(), r, T); });
  }
  std::vector<int64_t> from_left() const {
    return counts([&](int64_t r) { return rows_between(halos, r, group.rank(), T); });
  }

  /// Calls visit(rows of x, [B, rows, C] of the message) for each head and process to the right; x holds the own rows.
  template <typename Visit>
  void visit_to_right(const Tensor& x_BTHC, const Tensor& message, const Visit& visit) const {
    int64_t place = 0;
    for (int64_t r = group.rank() + 1; r < group.size(); ++r) {
      place = visit_heads(group.rank(), r, /*end=*/T, x_BTHC, message, place, visit);
    }
  }
  /// The same for each process to the left; x holds `left` rows before the own ones.
  template <typename Visit>
  void visit_from_left(const Tensor& x_BTHC, int64_t left, const Tensor& message, const Visit& visit) const {
    int64_t place = 0;
    for (int64_t r = 0; r < group.rank(); ++r) {
      place = visit_heads(r, group.rank(), left - (group.rank() - r - 1) * T, x_BTHC, message, place, visit);
    }
  }

 private:
  template <typename RowsOf>
  std::vector<int64_t> counts(const RowsOf& rows_of_process) const {
    std::vector<int64_t> counts;
    for (int64_t r = 0; r < group.size(); ++r) counts.push_back(rows_of_process(r) * B * C);
    return counts;
  }

  /// The rows that `to` needs of `from` end at row `end` of x. Returns where the next part of the message begins.
  template <typename Visit>
  int64_t visit_heads(int64_t from, int64_t to, int64_t end, const Tensor& x_BTHC, const Tensor& message, int64_t place,
                      const Visit& visit) const {
    for (size_t h = 0; h < halos.size(); ++h) {
      const int64_t rows = needed_rows(halos[h], from, to, T), numbers = rows * B * C;
      if (rows == 0) continue;
      visit(rows_of(x_BTHC, static_cast<int64_t>(h), end - rows, rows),
            message.narrow(0, place, numbers).view({B, rows, C}));
      place += numbers;
    }
    return place;
  }
};

Tensor empty_message(const std::vector<int64_t>& counts, const Tensor& like) {
  return at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, like.options());
}

struct WithLeft : torch::autograd::Function<WithLeft> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_BTHC, ProcessGroup* group, std::vector<int64_t> halos) {
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    ctx->saved_data["halos"] = halos;
    ctx->saved_data["tokens"] = x_BTHC.size(1);
    const int64_t B = x_BTHC.size(0), T = x_BTHC.size(1), C = x_BTHC.size(3);
    const HaloMessages messages{*group, halos, B, T, C};
    const std::vector<int64_t> send = messages.to_right(), receive = messages.from_left();
    const Tensor from = empty_message(send, x_BTHC), to = empty_message(receive, x_BTHC);
    messages.visit_to_right(x_BTHC, from, [](const Tensor& rows, const Tensor& part) { part.copy_(rows); });
    ProcessGroup::Pending pending = group->all_to_all(to, from, receive, send);

    const int64_t left = ContextGroup::left_rows(halos, group->rank(), T);
    const Tensor result = at::zeros({B, left + T, x_BTHC.size(2), C}, x_BTHC.options());
    result.narrow(1, left, T).copy_(x_BTHC);
    pending.wait();
    messages.visit_from_left(result, left, to, [](const Tensor& rows, const Tensor& part) { rows.copy_(part); });
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto* group = reinterpret_cast<ProcessGroup*>(ctx->saved_data["group"].toInt());
    const std::vector<int64_t> halos = ctx->saved_data["halos"].toIntVector();
    const Tensor& d = grads[0];
    const int64_t T = ctx->saved_data["tokens"].toInt(), left = d.size(1) - T;
    const HaloMessages messages{*group, halos, d.size(0), T, d.size(3)};
    const std::vector<int64_t> send = messages.from_left(), receive = messages.to_right();
    const Tensor from = empty_message(send, d), to = empty_message(receive, d);
    messages.visit_from_left(d, left, from, [](const Tensor& rows, const Tensor& part) { part.copy_(rows); });
    ProcessGroup::Pending pending = group->all_to_all(to, from, receive, send);
    const Tensor result = d.narrow(1, left, T).clone();
    pending.wait();
    messages.visit_to_right(result, to, [](const Tensor& rows, const Tensor& part) { rows.add_(part); });
    return {result, Tensor(), Tensor()};
  }
};

/// Both directions of a recurrent state.
struct FromLeft : torch::autograd::Function<FromLeft> {
  static variable_list forward(AutogradContext* ctx, const Tensor& /*anchor*/, const variable_list& zeros,
                               ProcessGroup* group) {
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    variable_list result;
    for (const Tensor& like : zeros) {
      result.push_back(at::empty_like(like, at::MemoryFormat::Contiguous));
      group->receive(result.back(), group->rank() - 1);
    }
    return result;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto* group = reinterpret_cast<ProcessGroup*>(ctx->saved_data["group"].toInt());
    for (const Tensor& grad : grads) group->send(grad.contiguous(), group->rank() - 1);
    return {Tensor(), Tensor(), Tensor()};
  }
};

struct ToRight : torch::autograd::Function<ToRight> {
  static Tensor forward(AutogradContext* ctx, at::TensorList tensors, ProcessGroup* group) {
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    ctx->save_for_backward(tensors.vec());
    for (const Tensor& tensor : tensors) group->send(tensor.contiguous(), group->rank() + 1);
    return at::zeros({}, tensors[0].options());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    auto* group = reinterpret_cast<ProcessGroup*>(ctx->saved_data["group"].toInt());
    variable_list result;
    for (const Tensor& saved : ctx->get_saved_variables()) {
      result.push_back(at::empty_like(saved, at::MemoryFormat::Contiguous));
      group->receive(result.back(), group->rank() + 1);
    }
    result.emplace_back();
    return result;
  }
};

}  // namespace

int64_t ContextGroup::left_rows(std::span<const int64_t> halos, int64_t rank, int64_t tokens) {
  int64_t most = 0;
  for (const int64_t halo : halos) most = std::max(most, halo);
  return std::min(most, rank * tokens);
}

int64_t ContextGroup::rows_sent(std::span<const int64_t> halos, int64_t rank, int64_t size, int64_t tokens) {
  int64_t rows = 0;
  for (int64_t r = rank + 1; r < size; ++r) rows += rows_between(halos, rank, r, tokens);
  return rows;
}

int64_t ContextGroup::rows_received(std::span<const int64_t> halos, int64_t rank, int64_t tokens) {
  int64_t rows = 0;
  for (int64_t r = 0; r < rank; ++r) rows += rows_between(halos, r, rank, tokens);
  return rows;
}

Tensor ContextGroup::with_left(const Tensor& x_BTHC, const std::vector<int64_t>& halos) {
  return WithLeft::apply(x_BTHC, &group_, halos);
}

std::vector<Tensor> ContextGroup::from_left(const std::vector<Tensor>& zeros, const Tensor& anchor) {
  if (rank() == 0) return zeros;
  return FromLeft::apply(anchor, zeros, &group_);
}

Tensor ContextGroup::to_right(const std::vector<Tensor>& tensors) {
  if (rank() + 1 == size()) return at::zeros({}, tensors[0].options());
  return ToRight::apply(at::TensorList(tensors), &group_);
}

}  // namespace tamis::distributed

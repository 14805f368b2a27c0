#include "tamis/distributed/context_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <exception>

#include "tamis/base/error.h"

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

/// The messages of with_left. One goes from a process to each of those further right that need its rows, head after
/// head; that of the gradients comes back. `options` are those of the messages; x_BTHC may have another dtype.
struct HaloMessages {
  ContextGroup& context;
  const std::vector<int64_t>& halos;
  int64_t B, T, C;
  at::TensorOptions options;

  /// Sends process r what x_BTHC has for it. Here and in receive(), x holds `left` rows before the own ones.
  void send(int64_t r, const Tensor& x_BTHC, int64_t left) const {
    const Tensor message = empty(r);
    if (!message.defined()) return;
    visit_heads(r, x_BTHC, left, message, [](const Tensor& rows, const Tensor& part) { part.copy_(rows); });
    context.send_later(message, r);
  }

  /// Receives what process r sends, and calls visit(rows of x, what has come for them) for each head.
  template <typename Visit>
  void receive(int64_t r, const Tensor& x_BTHC, int64_t left, const Visit& visit) const {
    const Tensor message = empty(r);
    if (!message.defined()) return;
    context.group().receive(message, r);
    visit_heads(r, x_BTHC, left, message, visit);
  }

 private:
  /// Between this process and r: undefined if the one further right needs no rows.
  Tensor empty(int64_t r) const {
    const auto [from, to] = std::minmax({context.rank(), r});
    const int64_t rows = rows_between(halos, from, to, T);
    return rows > 0 ? at::empty({rows * B * C}, options) : Tensor();
  }

  /// Calls visit(rows of x, [B, rows, C] of the message) for each head.
  template <typename Visit>
  void visit_heads(int64_t r, const Tensor& x_BTHC, int64_t left, const Tensor& message, const Visit& visit) const {
    const auto [from, to] = std::minmax({context.rank(), r});
    const int64_t end = r == to ? left + T : left - (to - from - 1) * T;  // of the rows of `from` in x
    int64_t place = 0;
    for (size_t h = 0; h < halos.size(); ++h) {
      const int64_t rows = needed_rows(halos[h], from, to, T), numbers = rows * B * C;
      if (rows == 0) continue;
      visit(rows_of(x_BTHC, static_cast<int64_t>(h), end - rows, rows),
            message.narrow(0, place, numbers).view({B, rows, C}));
      place += numbers;
    }
  }
};

struct WithLeft : torch::autograd::Function<WithLeft> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_BTHC, ContextGroup* context, std::vector<int64_t> halos) {
    ctx->saved_data["context"] = reinterpret_cast<int64_t>(context);
    ctx->saved_data["halos"] = halos;
    ctx->saved_data["tokens"] = x_BTHC.size(1);
    const int64_t B = x_BTHC.size(0), T = x_BTHC.size(1), C = x_BTHC.size(3), own = context->rank();
    const HaloMessages messages{*context, halos, B, T, C, x_BTHC.options()};
    for (int64_t r = own + 1; r < context->size(); ++r) messages.send(r, x_BTHC, /*left=*/0);

    const int64_t left = ContextGroup::left_rows(halos, own, T);
    const Tensor result = at::zeros({B, left + T, x_BTHC.size(2), C}, x_BTHC.options());
    result.narrow(1, left, T).copy_(x_BTHC);
    const auto copy = [](const Tensor& rows, const Tensor& part) { rows.copy_(part); };
    for (int64_t r = 0; r < own; ++r) messages.receive(r, result, left, copy);
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto* context = reinterpret_cast<ContextGroup*>(ctx->saved_data["context"].toInt());
    const std::vector<int64_t> halos = ctx->saved_data["halos"].toIntVector();
    const Tensor& d = grads[0];
    const int64_t T = ctx->saved_data["tokens"].toInt(), left = d.size(1) - T, own = context->rank();
    const HaloMessages messages{*context, halos, d.size(0), T, d.size(3), d.options()};
    for (int64_t r = 0; r < own; ++r) messages.send(r, d, left);
    // Rounded once, to the dtype of d, and not after every process.
    const auto dtype = at::promote_types(d.scalar_type(), at::kFloat);
    const Tensor sum = d.narrow(1, left, T).to(dtype, /*non_blocking=*/false, /*copy=*/true);
    const auto add = [](const Tensor& rows, const Tensor& part) { rows.add_(part); };
    for (int64_t r = own + 1; r < context->size(); ++r) messages.receive(r, sum, /*left=*/0, add);
    return {sum.to(d.scalar_type()), Tensor(), Tensor()};
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

ContextGroup::~ContextGroup() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (ProcessGroup::Pending& pending : sending_) pending.wait();
  } catch (const Error&) {
    return;  // the process that was lost has nothing more to receive
  }
}

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
  return WithLeft::apply(x_BTHC, this, halos);
}

void ContextGroup::send_later(const Tensor& tensor, int64_t rank) {
  const size_t most = 4 * static_cast<size_t>(size());  // a few layers, each to all others
  for (; sending_.size() >= most; sending_.pop_front()) sending_.front().wait();
  sending_.push_back(group_.start_send(tensor, rank));
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

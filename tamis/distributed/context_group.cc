#include "tamis/distributed/context_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

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

/// Calls visit(head, rows, place) for every head with rows from `from` to `to`; place counts rows in the message.
template <typename Visit>
void visit_heads(std::span<const int64_t> halos, int64_t from, int64_t to, int64_t tokens, const Visit& visit) {
  int64_t place = 0;
  for (size_t h = 0; h < halos.size(); ++h) {
    const int64_t rows = needed_rows(halos[h], from, to, tokens);
    if (rows > 0) visit(static_cast<int64_t>(h), rows, place);
    place += rows;
  }
}

/// Rows [first, first + rows) of one head, [B, rows, C].
Tensor rows_of(const Tensor& x_BTHC, int64_t head, int64_t first, int64_t rows) {
  return x_BTHC.select(2, head).narrow(1, first, rows);
}

struct WithLeft : torch::autograd::Function<WithLeft> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_BTHC, ProcessGroup* group, std::vector<int64_t> halos) {
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    ctx->saved_data["halos"] = halos;
    ctx->saved_data["tokens"] = x_BTHC.size(1);
    const int64_t B = x_BTHC.size(0), T = x_BTHC.size(1), C = x_BTHC.size(3);
    const int64_t rank = group->rank(), size = group->size();
    std::vector<int64_t> send(size), receive(size);
    for (int64_t r = 0; r < size; ++r) {
      send[r] = rows_between(halos, rank, r, T) * B * C;
      receive[r] = rows_between(halos, r, rank, T) * B * C;
    }
    const auto total = [](const std::vector<int64_t>& counts) {
      int64_t sum = 0;
      for (const int64_t count : counts) sum += count;
      return sum;
    };
    const Tensor from = at::empty({total(send)}, x_BTHC.options());
    const Tensor to = at::empty({total(receive)}, x_BTHC.options());
    int64_t begin = 0;
    for (int64_t r = rank + 1; r < size; begin += send[r], ++r) {
      visit_heads(halos, rank, r, T, [&](int64_t head, int64_t rows, int64_t place) {
        from.narrow(0, begin + place * B * C, rows * B * C)
            .view({B, rows, C})
            .copy_(rows_of(x_BTHC, head, T - rows, rows));
      });
    }
    ProcessGroup::Pending pending = group->all_to_all(to, from, receive, send);

    const int64_t left = ContextGroup::left_rows(halos, rank, T);
    const Tensor result = at::zeros({B, left + T, x_BTHC.size(2), C}, x_BTHC.options());
    result.narrow(1, left, T).copy_(x_BTHC);
    pending.wait();
    begin = 0;
    for (int64_t r = 0; r < rank; begin += receive[r], ++r) {
      const int64_t end = left - (rank - r - 1) * T;  // of r's rows, in the result
      visit_heads(halos, r, rank, T, [&](int64_t head, int64_t rows, int64_t place) {
        rows_of(result, head, end - rows, rows)
            .copy_(to.narrow(0, begin + place * B * C, rows * B * C).view({B, rows, C}));
      });
    }
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto* group = reinterpret_cast<ProcessGroup*>(ctx->saved_data["group"].toInt());
    const std::vector<int64_t> halos = ctx->saved_data["halos"].toIntVector();
    const Tensor& d = grads[0];
    const int64_t rank = group->rank(), size = group->size();
    const int64_t B = d.size(0), C = d.size(3);
    const int64_t T = ctx->saved_data["tokens"].toInt();
    const int64_t left = d.size(1) - T;
    std::vector<int64_t> send(size), receive(size);
    int64_t sent = 0, received = 0;
    for (int64_t r = 0; r < size; ++r) {
      send[r] = rows_between(halos, r, rank, T) * B * C;
      receive[r] = rows_between(halos, rank, r, T) * B * C;
      sent += send[r];
      received += receive[r];
    }
    const Tensor from = at::empty({sent}, d.options()), to = at::empty({received}, d.options());
    int64_t begin = 0;
    for (int64_t r = 0; r < rank; begin += send[r], ++r) {
      const int64_t end = left - (rank - r - 1) * T;
      visit_heads(halos, r, rank, T, [&](int64_t head, int64_t rows, int64_t place) {
        from.narrow(0, begin + place * B * C, rows * B * C)
            .view({B, rows, C})
            .copy_(rows_of(d, head, end - rows, rows));
      });
    }
    group->all_to_all(to, from, receive, send).wait();
    const Tensor result = d.narrow(1, left, T).clone();
    begin = 0;
    for (int64_t r = rank + 1; r < size; begin += receive[r], ++r) {
      visit_heads(halos, rank, r, T, [&](int64_t head, int64_t rows, int64_t place) {
        rows_of(result, head, T - rows, rows)
            .add_(to.narrow(0, begin + place * B * C, rows * B * C).view({B, rows, C}));
      });
    }
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

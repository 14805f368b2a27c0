#include "tamis/models/mixers/ring_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention_part.h"

namespace tamis::models {
namespace {

using at::Tensor;
using distributed::ProcessGroup;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A tensor that is on its way from another process; undefined if there is none to come.
struct Arriving {
  Tensor tensor;
  ProcessGroup::Pending pending;

  Tensor wait() {
    pending.wait();
    return tensor;
  }
};

/// Sends `tensor` to the process `steps` to the right (left if negative) where there is one, and receives one of the
/// same size from the other side. Every process calls it.
Arriving shift(ProcessGroup& group, const Tensor& tensor, int64_t steps) {
  const auto exists = [&](int64_t rank) { return rank >= 0 && rank < group.size(); };
  const int64_t to = group.rank() + steps, from = group.rank() - steps;
  std::vector<int64_t> send(group.size()), receive(group.size());
  if (exists(to)) send[to] = tensor.numel();
  if (exists(from)) receive[from] = tensor.numel();
  Arriving arriving;
  if (exists(from)) arriving.tensor = at::empty(tensor.sizes(), tensor.options());
  const Tensor nothing = at::empty({0}, tensor.options());
  arriving.pending = group.all_to_all(exists(from) ? arriving.tensor.view(-1) : nothing,
                                      exists(to) ? tensor.view(-1) : nothing, receive, send);
  return arriving;
}

/// What both passes need beside the tensors of autograd.
struct Ring {
  ProcessGroup* group;
  double scale;

  /// The options over the keys of the process `steps` to the left.
  ops::ScaledAttentionOptions options(int64_t steps, int64_t tokens, const Tensor& query_scale,
                                      const Tensor& document) const {
    ops::ScaledAttentionOptions options{.scale = scale, .keys_before = steps > 0};
    if (query_scale.defined()) options.query_scale = query_scale;
    if (document.defined()) {
      const auto of = [&](int64_t rank) { return document.narrow(1, rank * tokens, tokens); };
      options.document = steps == 0 ? of(group->rank()) : at::cat({of(group->rank() - steps), of(group->rank())}, 1);
    }
    return options;
  }

  /// Calls work(steps, k, v) for the keys and values of the processes to the left, nearest first; `kv` are the own
  /// ones. Those of the next step arrive meanwhile. Steps without keys pass undefined tensors, so that every process
  /// takes all steps.
  template <typename Work>
  void for_each_left(const Tensor& kv, int64_t key_dim, const Work& work) const {
    const int64_t size = group->size();
    Arriving next = size > 1 ? shift(*group, kv, 1) : Arriving();
    for (int64_t steps = 1; steps < size; ++steps) {
      const Tensor now = next.wait();
      if (steps + 1 < size) next = shift(*group, kv, steps + 1);
      if (!now.defined()) {
        work(steps, Tensor(), Tensor());
      } else {
        work(steps, now.narrow(3, 0, key_dim), now.narrow(3, key_dim, now.size(3) - key_dim));
      }
    }
  }
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& given_scale, const std::optional<Tensor>& given_document,
                        double scale, ProcessGroup* group) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor query_scale = given_scale.value_or(Tensor()), document = given_document.value_or(Tensor());
    const Ring ring{group, scale};
    const int64_t T = q.size(1);
    ops::SoftmaxAttentionPart whole = softmax_attention_part(q, k, v, ring.options(0, T, query_scale, document));
    ring.for_each_left(at::cat({k, v}, 3), q.size(3), [&](int64_t steps, const Tensor& keys, const Tensor& values) {
      if (!keys.defined()) return;
      whole = merged(whole, softmax_attention_part(q, keys, values, ring.options(steps, T, query_scale, document)));
    });
    ctx->save_for_backward({q, k, v, query_scale, document, whole.out, whole.statistics});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return whole.out.to(v.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const Tensor &q = in[0], &k = in[1], &v = in[2], &query_scale = in[3], &document = in[4];
    const ops::SoftmaxAttentionPart whole{in[5], in[6]};
    const Ring ring{reinterpret_cast<ProcessGroup*>(ctx->saved_data["group"].toInt()),
                    ctx->saved_data["scale"].toDouble()};
    const int64_t T = q.size(1), K = q.size(3);
    const auto part_backward = [&](int64_t steps, const Tensor& keys, const Tensor& values) {
      return softmax_attention_part_backward(grads[0], whole, q, keys, values,
                                             ring.options(steps, T, query_scale, document));
    };
    auto [dq, dk, dv, d_scale] = part_backward(0, k, v);
    // Sums over the processes in float32.
    Tensor dq_sum = dq.to(at::kFloat), dkv_sum = at::cat({dk, dv}, 3).to(at::kFloat);
    Tensor d_scale_sum = d_scale;
    const Tensor kv = at::cat({k, v}, 3);
    Tensor returned = at::zeros(kv.sizes(), kv.options());  // gradients of what another process holds
    Arriving home;
    const auto add_home = [&] {
      const Tensor arrived = home.wait();
      if (arrived.defined()) dkv_sum.add_(arrived);
    };
    ring.for_each_left(kv, K, [&](int64_t steps, const Tensor& keys, const Tensor& values) {
      Tensor of_left = returned;
      if (keys.defined()) {
        const auto [dq_left, dk_left, dv_left, d_scale_left] = part_backward(steps, keys, values);
        dq_sum.add_(dq_left);
        if (query_scale.defined()) d_scale_sum = d_scale_sum + d_scale_left;
        of_left = at::cat({dk_left, dv_left}, 3);
      }
      add_home();
      home = shift(*ring.group, of_left, -steps);
    });
    add_home();
    return {dq_sum.to(q.scalar_type()),
            dkv_sum.narrow(3, 0, K).to(k.scalar_type()),
            dkv_sum.narrow(3, K, v.size(3)).to(v.scalar_type()),
            query_scale.defined() ? d_scale_sum : Tensor(),
            {},
            {},
            {}};
  }
};

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const ops::SoftmaxAttentionOptions& options,
                      distributed::ContextGroup& context) {
  const int64_t T = q.size(1), start = context.rank() * T;
  // Scalable-Softmax counts the keys of all processes before: as many rows, which nobody reads.
  ops::SoftmaxAttentionOptions counted = options;
  if (options.document) counted.document = options.document->narrow(1, 0, start + T);
  const Tensor all = k.narrow(1, 0, 1).expand({k.size(0), start + T, k.size(2), k.size(3)});
  ops::ScaledAttentionOptions scaled = ops::scaled(counted, q, all);
  if (scaled.query_scale) scaled.query_scale = scaled.query_scale->expand({q.size(0), T, q.size(2)});
  return RingAttention::apply(q, k, v, scaled.query_scale, options.document, scaled.scale, &context.group());
}

int64_t ring_rows_sent(int64_t rank, int64_t size, int64_t tokens) {
  return (size - 1 - rank) * tokens;
}

}  // namespace tamis::models

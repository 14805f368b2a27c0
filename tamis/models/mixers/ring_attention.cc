#include "tamis/models/mixers/ring_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

#include "tamis/ops/attention.h"
#include "tamis/ops/checks.h"
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

/// What both passes need besides the tensors of autograd.
struct Ring {
  ProcessGroup* group;
  double scale;
  bool strict;

  /// The options over the keys of the process `steps` to the left.
  ops::ScaledAttentionOptions options(int64_t steps, int64_t tokens, const Tensor& query_scale,
                                      const Tensor& document) const {
    ops::ScaledAttentionOptions options{.scale = scale, .strict = strict, .keys_before = steps > 0};
    if (query_scale.defined()) options.query_scale = query_scale;
    if (document.defined()) {
      const auto of = [&](int64_t rank) { return document.narrow(1, rank * tokens, tokens); };
      options.document = steps == 0 ? of(group->rank()) : at::cat({of(group->rank() - steps), of(group->rank())}, 1);
    }
    return options;
  }

  /// Calls work(steps, k, v) for the own keys and values, then for those of the processes to the left, nearest first.
  /// Those of the next step arrive meanwhile. Steps without keys pass undefined tensors, so that every process takes
  /// all steps.
  template <typename Work>
  void for_each_process(const Tensor& k, const Tensor& v, const Work& work) const {
    const int64_t size = group->size(), key_dim = k.size(3), value_dim = v.size(3);
    const Tensor kv = at::cat({k, v}, 3);
    Arriving now{.tensor = kv, .pending = {}};
    for (int64_t steps = 0; steps < size; ++steps) {
      const Tensor kv_now = now.wait();
      if (steps + 1 < size) now = shift(*group, kv, steps + 1);
      if (kv_now.defined()) {
        work(steps, kv_now.narrow(3, 0, key_dim), kv_now.narrow(3, key_dim, value_dim));
      } else {
        work(steps, Tensor(), Tensor());
      }
    }
  }
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& given_scale, const std::optional<Tensor>& given_document,
                        double scale, bool strict, ProcessGroup* group) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor query_scale = given_scale.value_or(Tensor()), document = given_document.value_or(Tensor());
    const Ring ring{group, scale, strict};
    ops::SoftmaxAttentionPart whole;
    ring.for_each_process(k, v, [&](int64_t steps, const Tensor& keys, const Tensor& values) {
      if (!keys.defined()) return;
      const auto part = softmax_attention_part(q, keys, values, ring.options(steps, q.size(1), query_scale, document));
      whole = steps == 0 ? part : merged(whole, part);
    });
    ctx->save_for_backward({q, k, v, query_scale, document, whole.out, whole.statistics});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["strict"] = strict;
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return whole.out.to(v.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list in = ctx->get_saved_variables();
    const Tensor &q = in[0], &k = in[1], &v = in[2], &query_scale = in[3], &document = in[4];
    const ops::SoftmaxAttentionPart whole{in[5], in[6]};
    const Ring ring{reinterpret_cast<ProcessGroup*>(ctx->saved_data["group"].toInt()),
                    ctx->saved_data["scale"].toDouble(), ctx->saved_data["strict"].toBool()};
    const int64_t K = k.size(3);
    // Sums of the gradients that each process finds, in at least float32; of k and v they are sent in the dtype of
    // these.
    Tensor dq_sum, dkv_sum, d_scale_sum;
    Arriving arriving;  // gradients of the own k and v
    const auto add_arriving = [&] {
      const Tensor arrived = arriving.wait();
      if (arrived.defined()) dkv_sum.add_(arrived);
    };
    const Tensor nothing = at::zeros({k.size(0), k.size(1), k.size(2), K + v.size(3)}, k.options());
    ring.for_each_process(k, v, [&](int64_t steps, const Tensor& keys, const Tensor& values) {
      Tensor dkv = nothing;
      if (keys.defined()) {
        const auto [dq, dk, dv, d_scale] = softmax_attention_part_backward(
            grads[0], whole, q, keys, values, ring.options(steps, q.size(1), query_scale, document));
        dq_sum = steps == 0 ? ops::widened(dq) : dq_sum.add_(dq);
        d_scale_sum = steps == 0 ? d_scale : d_scale_sum + d_scale;
        dkv = at::cat({dk, dv}, 3);
      }
      if (steps == 0) {
        dkv_sum = ops::widened(dkv);
        return;
      }
      add_arriving();
      arriving = shift(*ring.group, dkv, -steps);
    });
    add_arriving();
    return {dq_sum.to(q.scalar_type()),
            dkv_sum.narrow(3, 0, K).to(k.scalar_type()),
            dkv_sum.narrow(3, K, v.size(3)).to(v.scalar_type()),
            query_scale.defined() ? d_scale_sum : Tensor(),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const ops::SoftmaxAttentionOptions& options,
                      distributed::ContextGroup& context) {
  const int64_t T = q.size(1), start = context.rank() * T;
  TORCH_CHECK_VALUE(!options.window && options.key_start == 0, "ring_attention: takes neither a window nor key_start");
  if (options.document) {
    ops::check_document("ring_attention", *options.document, q, context.size() * T, "B of q and T of all processes");
  }
  // Scalable-Softmax counts the keys of all processes before: as many rows, whose values do not matter.
  ops::SoftmaxAttentionOptions counted = options;
  if (options.document) counted.document = options.document->narrow(1, 0, start + T);
  const Tensor all = k.narrow(1, 0, 1).expand({k.size(0), start + T, k.size(2), k.size(3)});
  ops::ScaledAttentionOptions scaled = ops::scaled(counted, q, all);
  if (scaled.query_scale) scaled.query_scale = scaled.query_scale->expand({q.size(0), T, q.size(2)});
  return RingAttention::apply(q, k, v, scaled.query_scale, options.document, scaled.scale, options.strict,
                              &context.group());
}

int64_t ring_rows_sent(int64_t rank, int64_t size, int64_t tokens) {
  return (size - 1 - rank) * tokens;
}

}  // namespace tamis::models

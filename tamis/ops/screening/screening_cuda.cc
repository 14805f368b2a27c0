// Screening on CUDA devices: memory and launches for the kernels of screening_cuda_kernel.cu. Equation numbers are
// those of "Screening Is Enough".

#include "tamis/ops/screening/screening_cuda.h"

#include <ATen/ATen.h>

#include <limits>

#include "tamis/ops/cuda/cuda_program.h"

extern "C" const char tamis_screening_cuda_kernel_cu[];  // embedded by cmake/TamisCuda.cmake

namespace tamis::ops {

using at::Tensor;

namespace {

constexpr int64_t kMostKeyDim = 32, kMostValueDim = 128;
constexpr int64_t kRows = 64, kWarps = 4;  // of a block of threads
constexpr int64_t kNumbersOfAHead = 6;
constexpr int64_t kPlanes = 2;

struct Strides {
  int64_t b, t, h;
};

CudaProgram& program() {
  static CudaProgram program("screening", screening_cuda_source());
  return program;
}

int64_t blocks_of(int64_t items, int64_t threads) {
  return (items + threads - 1) / threads;
}

bool is_half(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

CudaMacros macros_of(const Tensor& q, const Tensor& v, const ScreeningOptions& options) {
  return {{"INPUT", q.scalar_type() == at::kFloat      ? 0
                    : q.scalar_type() == at::kBFloat16 ? 1
                                                       : 2},
          {"CHUNKS", blocks_of(q.size(3), 16)},
          {"VALUE", v.size(3)},
          {"POWER", options.trim_power},
          {"MASK", options.softmask == "none"     ? 0
                   : options.softmask == "cosine" ? 1
                                                  : 2}};
}

/// Numbers of a row that are neighbours.
Tensor with_rows(const Tensor& x) {
  return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
}

Strides strides_of(const Tensor& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}

/// One call: what the kernels share.
class Call {
 public:
  Call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
       const ScreeningOptions& options)
      : options_(options),
        macros_(macros_of(q, v, options)),
        device_(q.device()),
        q_(with_rows(q)),
        k_(with_rows(k)),
        v_(with_rows(v)),
        floats_(q.options().dtype(at::kFloat)) {
    if (options.document) document_ = options.document->to(at::kLong).contiguous();
    if (options.gate) gate_ = with_rows(*options.gate);
    if (s_w.scalar_type() != at::kFloat || s_r.scalar_type() != at::kFloat) scalars_ = at::kDouble;
    const Tensor w = s_w.detach().to(scalars_).contiguous(), r = s_r.detach().to(scalars_).contiguous();
    heads_ = at::empty({H(), kNumbersOfAHead}, floats_.dtype(at::kDouble));
    launch("head_numbers", {{blocks_of(H(), 64), 1, 1}, 64}, w.const_data_ptr(), r.const_data_ptr(), wide(),
           heads_.data_ptr<double>(), size(H()), options.mipe_threshold,
           options.expand_beyond.value_or(std::numeric_limits<double>::infinity()), int{options.position == "mipe"});
    unit_rows(q_, T_k() - T_q(), q_planes_, q_unit_);
    unit_rows(k_, 0, k_planes_, k_unit_);
    v_norm_ = at::empty({B(), H(), T_k()}, floats_);
    launch("inverse_norms", rows_of(v_, 32), v_.const_data_ptr(), strides_of(v_), v_norm_.data_ptr<float>(), size(B()),
           size(T_k()), size(H()));
  }

  /// u times the gate, [B, T_q, H, V].                                            (8)-(18)
  Tensor result() {
    Tensor out = at::empty({B(), T_q(), H(), V()}, v_.options());
    forward(out, {}, {}, {});
    return out;
  }

  struct Gradients {
    Tensor q, k, v, s_w, s_r, gate;  // those of the scalars in the dtype in which both are computed
  };
  Gradients gradients(const Tensor& grad) {
    const Tensor dh = at::empty({B(), T_q(), H(), V()}, floats_);
    TORCH_CHECK_VALUE(grad.sizes() == dh.sizes(), "screening_backward: grad must have the shape ", dh.sizes(),
                      ", but has ", grad.sizes());
    Gradients result;
    if (gate_.defined()) result.gate = at::empty(gate_.sizes(), gate_.options());
    forward({}, with_rows(grad.to(v_.options())), dh, result.gate);

    const int64_t query_blocks = blocks_of(T_q(), kRows), key_blocks = blocks_of(T_k(), kRows);
    const Tensor dq = at::empty({B(), H(), T_q(), K()}, floats_), dk = at::empty({B(), H(), T_k(), K()}, floats_);
    const Tensor dv = at::empty({B(), H(), T_k(), V()}, floats_);
    const Tensor sums = at::empty({B(), H(), query_blocks * kWarps, 3}, heads_.options());
    const auto rows = [&](const char* kernel, int64_t blocks, int64_t numbers, auto... outputs) {
      const auto bytes = static_cast<int64_t>(kRows * numbers * sizeof(float));
      launch(kernel, {{blocks, H(), B()}, kWarps * 32, bytes}, q_planes_.const_data_ptr(), k_planes_.const_data_ptr(),
             q_unit_.const_data_ptr<float>(), k_unit_.const_data_ptr<float>(), v_.const_data_ptr(), strides_of(v_),
             v_norm_.const_data_ptr<float>(), dh.const_data_ptr<float>(), heads_.const_data_ptr<double>(), document(),
             outputs..., size(T_q()), size(T_k()), size(H()), size(K()));
    };
    rows("query_gradients", query_blocks, V() + K(), dq.data_ptr<float>(), sums.data_ptr<double>());
    rows("key_gradients", key_blocks, 2 * V() + K(), dk.data_ptr<float>(), dv.data_ptr<float>());

    result.q = row_gradients(q_, T_k() - T_q(), q_unit_, dq);
    result.k = row_gradients(k_, 0, k_unit_, dk);
    result.v = at::empty(v_.sizes(), v_.options().memory_format(at::MemoryFormat::Contiguous));
    launch("value_gradients", rows_of(v_, 32), v_.const_data_ptr(), strides_of(v_), v_norm_.const_data_ptr<float>(),
           dv.const_data_ptr<float>(), result.v.data_ptr(), size(B()), size(T_k()), size(H()));
    result.s_w = at::empty({H()}, floats_.dtype(scalars_));
    result.s_r = at::empty_like(result.s_w);
    launch("head_gradients", {{H(), 1, 1}, 128}, sums.const_data_ptr<double>(), heads_.const_data_ptr<double>(), wide(),
           result.s_w.data_ptr(), result.s_r.data_ptr(), size(B()), size(H()), size(query_blocks * kWarps));
    return result;
  }

 private:
  int64_t B() const { return q_.size(0); }
  int64_t T_q() const { return q_.size(1); }
  int64_t T_k() const { return k_.size(1); }
  int64_t H() const { return q_.size(2); }
  int64_t K() const { return q_.size(3); }
  int64_t V() const { return v_.size(3); }

  /// As the kernels take them.
  int wide() const { return int{scalars_ == at::kDouble}; }
  static int size(int64_t x) { return static_cast<int>(x); }

  /// Threads for every row [B, T, H] of x.
  static CudaGrid rows_of(const Tensor& x, int64_t threads) {
    constexpr int64_t kThreads = 128;
    return {{blocks_of(x.size(0) * x.size(1) * x.size(2) * threads, kThreads), 1, 1}, kThreads};
  }

  template <typename... Arguments>
  void launch(const char* kernel, const CudaGrid& grid, Arguments... arguments) {
    program().launch(device_, macros_, kernel, grid, arguments...);
  }

  const int64_t* document() const { return document_.defined() ? document_.const_data_ptr<int64_t>() : nullptr; }

  void unit_rows(const Tensor& x, int64_t first, Tensor& planes, Tensor& unit) {
    const auto storage = floats_.dtype(at::kBFloat16);
    planes = at::empty({B(), H(), x.size(1), macros_.at("CHUNKS"), kPlanes, 16}, storage);
    unit = at::empty({B(), H(), x.size(1), K()}, floats_);
    launch("unit_rows", rows_of(x, 1), x.const_data_ptr(), strides_of(x), heads_.const_data_ptr<double>(),
           planes.data_ptr(), unit.data_ptr<float>(), size(B()), size(x.size(1)), size(H()), size(K()), size(first));
  }

  Tensor row_gradients(const Tensor& x, int64_t first, const Tensor& unit, const Tensor& d_unit) {
    Tensor result = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
    launch("row_gradients", rows_of(x, 1), x.const_data_ptr(), strides_of(x), heads_.const_data_ptr<double>(),
           unit.const_data_ptr<float>(), d_unit.const_data_ptr<float>(), result.data_ptr(), size(B()), size(x.size(1)),
           size(H()), size(K()), size(first));
    return result;
  }

  /// The result or, with its gradient, those of h and of the gate.
  void forward(const Tensor& out, const Tensor& grad, const Tensor& dh, const Tensor& dgate) {
    const auto pointer = [](const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; };
    const auto strides = [](const Tensor& x) { return x.defined() ? strides_of(x) : Strides{}; };
    const auto bytes = static_cast<int64_t>(kRows * V() * sizeof(float));
    launch("screening", {{blocks_of(T_q(), kRows), H(), B()}, kWarps * 32, bytes}, pointer(q_planes_),
           pointer(k_planes_), pointer(q_unit_), pointer(k_unit_), pointer(v_), strides_of(v_), pointer(v_norm_),
           pointer(heads_), document(), pointer(gate_), strides(gate_), pointer(out), pointer(grad), strides(grad),
           pointer(dh), pointer(dgate), size(T_q()), size(T_k()), size(H()), size(K()), int{options_.tanh_norm});
  }

  const ScreeningOptions& options_;
  CudaMacros macros_;
  c10::Device device_;
  Tensor q_, k_, v_, gate_, document_;
  at::TensorOptions floats_;
  at::ScalarType scalars_ = at::kFloat;  // of s_w and s_r
  Tensor heads_;                         // float64 [H, 6]
  Tensor q_planes_, k_planes_;           // bfloat16 [B, H, T, chunks, planes, 16]
  Tensor q_unit_, k_unit_;               // float32 [B, H, T, K]
  Tensor v_norm_;                        // 1 / |v|, float32 [B, H, T_k]
};

}  // namespace

const char* screening_cuda_source() {
  return tamis_screening_cuda_kernel_cu;
}

bool screening_has_cuda(const Tensor& q, const Tensor& v, const ScreeningOptions& options) {
  if (!q.is_cuda() || !(q.scalar_type() == at::kFloat || is_half(q))) return false;
  if (q.size(3) > kMostKeyDim || v.size(3) > kMostValueDim || q.size(2) > 65535 || q.size(0) > 65535) return false;
  return program().works(q.device(), macros_of(q, v, options));
}

Tensor screening_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                      const ScreeningOptions& options) {
  return Call(q, k, v, s_w, s_r, options).result();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> screening_backward_cuda(const Tensor& grad, const Tensor& q,
                                                                                   const Tensor& k, const Tensor& v,
                                                                                   const Tensor& s_w, const Tensor& s_r,
                                                                                   const ScreeningOptions& options) {
  const auto d = Call(q, k, v, s_w, s_r, options).gradients(grad);
  return {d.q, d.k, d.v, d.s_w.to(s_w.scalar_type()), d.s_r.to(s_r.scalar_type()), d.gate};
}

}  // namespace tamis::ops

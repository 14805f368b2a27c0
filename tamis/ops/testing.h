#pragma once

// What the tests of every operator share. Included by tests only.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/kernels/testing.h"
#include "tamis/ops/matmul_backend.h"

namespace tamis::ops::testing {

using Tensors = std::vector<at::Tensor>;

/// An operator as a function of its differentiable tensors; everything else is captured.
using Function = std::function<Tensors(const Tensors&)>;

using kernels::testing::for_each_target;

/// Sets ATen's number of threads for its lifetime.
class Threads {
 public:
  explicit Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// Sets the backend of a dtype's matrix products for its lifetime.
class Backend {
 public:
  Backend(at::ScalarType dtype, MatmulBackend backend) : dtype_(dtype), before_(matmul_backend(dtype)) {
    set_matmul_backend(dtype, backend);
  }
  ~Backend() { set_matmul_backend(dtype_, before_); }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

 private:
  at::ScalarType dtype_;
  MatmulBackend before_;
};

/// Whether products of `dtype` may be by `backend` on this processor.
inline bool has_backend(at::ScalarType dtype, MatmulBackend backend) {
  const std::vector<MatmulBackend> all = matmul_backends(dtype);
  return std::find(all.begin(), all.end(), backend) != all.end();
}

/// Calls `work()` with every backend that products of `dtype` may have on this processor.
template <typename Work>
void for_each_backend(at::ScalarType dtype, const Work& work) {
  for (const MatmulBackend backend : matmul_backends(dtype)) {
    SCOPED_TRACE(::testing::Message() << dtype << " products by " << to_string(backend));
    const Backend set(dtype, backend);
    work();
  }
}

/// Calls `work` on one thread that has no scratch memory of earlier calls, so that its use of memory can be measured.
template <typename Work>
void in_fresh_thread(const Work& work) {
  std::thread([&] {
    const Threads one(1);
    work();
  }).join();
}

/// Counts the bytes of CPU tensors that exist, and their peak, during its lifetime: of all threads together and of each
/// one. A tensor counts for the thread that made it. Tensors made during its lifetime must not outlive it.
class PeakAllocation : private c10::Allocator {
 public:
  PeakAllocation() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~PeakAllocation() override { c10::SetCPUAllocator(before_); }
  PeakAllocation(const PeakAllocation&) = delete;
  PeakAllocation& operator=(const PeakAllocation&) = delete;

  int64_t peak_bytes() const { return all_.peak(); }
  int64_t current_bytes() const { return all_.current(); }

  /// The largest of the threads' own peaks: unlike `peak_bytes()`, it does not depend on which threads run together.
  int64_t peak_bytes_of_a_thread() const {
    const std::scoped_lock lock(mutex_);
    int64_t largest = 0;
    for (const auto& [thread, count] : of_thread_) largest = std::max(largest, count.peak());
    return largest;
  }

 private:
  class Count {
   public:
    void add(int64_t bytes) {
      const int64_t now = current_ += bytes;
      for (int64_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) continue;
    }
    int64_t current() const { return current_; }
    int64_t peak() const { return peak_; }

   private:
    std::atomic<int64_t> current_{0};
    std::atomic<int64_t> peak_{0};
  };

  /// Stored before the data, so that a plain pointer is enough to release a block.
  struct alignas(64) Header {
    std::array<Count*, 2> counts;
    int64_t bytes;
  };

  Count& of_this_thread() {
    const std::scoped_lock lock(mutex_);
    return of_thread_[std::this_thread::get_id()];
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(alignof(Header), (sizeof(Header) + bytes + 63) / 64 * 64);
    auto* header = new (memory) Header{{&all_, &of_this_thread()}, static_cast<int64_t>(bytes)};
    for (Count* count : header->counts) count->add(header->bytes);
    return {header + 1, header + 1, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* data) {
    Header* header = static_cast<Header*>(data) - 1;
    for (Count* count : header->counts) count->add(-header->bytes);
    std::free(header);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  c10::Allocator* before_;
  Count all_;
  mutable std::mutex mutex_;
  std::map<std::thread::id, Count> of_thread_;  // a map: its elements stay where they are
};

/// Standard normal numbers; a seed gives the same ones on every machine.
inline at::Tensor random_normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::Tensor out = at::empty(shape, at::kDouble);
  Random random{seed};
  for (int64_t i = 0; i < out.numel(); ++i) out.data_ptr<double>()[i] = random.normal();
  return out.to(dtype);
}

/// The same values with other strides: every second element of a larger tensor that is NaN elsewhere.
inline at::Tensor strided(const at::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.push_back(2);
  at::Tensor wide = at::empty(shape, x.options());
  if (x.is_floating_point()) wide.fill_(std::numeric_limits<double>::quiet_NaN());
  wide.select(-1, 0).copy_(x);
  return wide.select(-1, 0);
}

/// True when both hold the same bits (NaN equal to NaN, 0 different from -0), shapes and dtypes.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.contiguous().flatten().view(at::kByte).equal(b.contiguous().flatten().view(at::kByte));
}

inline bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return same_bits(x, y); });
}

/// Outputs of `function`, then the gradient of sum(output * direction) for every input, for fixed random directions
/// that every dtype represents exactly. The gradient of an input that gets none is zero.
inline Tensors outputs_and_gradients(const Function& function, const Tensors& inputs, uint64_t seed = 17) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
  Tensors outputs = function(leaves);
  Tensors directions;
  for (const at::Tensor& output : outputs) {
    directions.push_back(random_normal(output.sizes(), seed++, at::kBFloat16).to(output.scalar_type()));
  }
  const Tensors gradients = torch::autograd::grad(outputs, leaves, directions, /*retain_graph=*/false,
                                                  /*create_graph=*/false, /*allow_unused=*/true);
  for (at::Tensor& output : outputs) output = output.detach();
  for (size_t i = 0; i < leaves.size(); ++i) {
    outputs.push_back(gradients[i].defined() ? gradients[i] : at::zeros_like(inputs[i]));
  }
  return outputs;
}

/// A form of an operator below autograd, forward and backward, each a function of tensors.
struct Form {
  Function forward;
  std::function<Tensors(const Tensors& gradients, const Tensors& inputs)> backward;
};

struct FormFunction : torch::autograd::Function<FormFunction> {
  struct KeptForm : torch::CustomClassHolder {
    explicit KeptForm(Form kept) : form(std::move(kept)) {}
    Form form;
  };

  static Tensors forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs, const Form& form) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["form"] = at::IValue::make_capsule(c10::make_intrusive<KeptForm>(form));
    return form.forward(inputs.vec());
  }
  static Tensors backward(torch::autograd::AutogradContext* ctx, const Tensors& gradients) {
    const auto kept = ctx->saved_data["form"].toCapsule();
    Tensors result = static_cast<const KeptForm&>(*kept).form.backward(gradients, ctx->get_saved_variables());
    result.emplace_back();
    return result;
  }
};

/// Where blocked forms are tested: TAMIS_TEST_DEVICE, such as `cuda`, or the CPU.
inline at::Device test_device() {
  const char* device = std::getenv("TAMIS_TEST_DEVICE");
  return device ? at::Device(device) : at::Device(at::kCPU);
}

/// The options with their tensors on the device of the tests.
template <typename Options>
Options on_test_device(Options options) {
  if (options.document) options.document = options.document->to(test_device());
  return options;
}

/// A function of tensors on the device of the tests as one of CPU tensors.
inline Function from_cpu(const Function& function) {
  return [function](const Tensors& inputs) {
    Tensors there;
    for (const at::Tensor& input : inputs) there.push_back(input.to(test_device()));
    Tensors results = function(there);
    for (at::Tensor& result : results) result = result.to(at::kCPU);
    return results;
  };
}

/// The form as a differentiable function of CPU tensors, computed on the device of the tests.
inline Function differentiable(const Form& form) {
  return from_cpu([form](const Tensors& inputs) { return FormFunction::apply(at::TensorList(inputs), form); });
}

/// The peak number of bytes of CPU tensors while `work()` runs in a new thread, including inputs that it makes.
template <typename Work>
int64_t peak_bytes_of(const Work& work) {
  int64_t peak = 0;
  in_fresh_thread([&] {
    const PeakAllocation tensors;
    work();
    peak = tensors.peak_bytes();
  });
  return peak;
}

/// Expects work(T) to need memory in proportion to the number of tokens T, and with 8,192 of them less than a byte for
/// each pair of tokens.
template <typename Work>
void expect_linear_memory(const Work& work) {
  const int64_t at_2k = peak_bytes_of([&] { work(2048); }), at_8k = peak_bytes_of([&] { work(8192); });
  EXPECT_LE(at_8k, 4.25 * at_2k);
  EXPECT_LT(at_8k, int64_t{8192} * 8192);
}

/// Distance of neighbouring numbers of `dtype` at `magnitude`.
inline double unit_in_last_place(at::ScalarType dtype, double magnitude) {
  const int bits = dtype == at::kDouble     ? 52
                   : dtype == at::kBFloat16 ? 7
                   : dtype == at::kHalf     ? 10
                                            : 23;  // of the fraction
  return magnitude == 0 ? 0 : std::ldexp(1.0, std::ilogb(magnitude) - bits);
}

inline double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.abs().max().to(at::kDouble).item().toDouble();
}

/// The accuracy rule, per tensor: max|fused - exact| <= factor max|plain - exact| + 4 ulp(max|exact|).
inline void expect_error_within(double factor, const Tensors& fused, const Tensors& plain, const Tensors& exact) {
  ASSERT_EQ(fused.size(), exact.size());
  ASSERT_EQ(plain.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(fused[i].sizes(), exact[i].sizes()) << "tensor " << i;
    const double error = largest(fused[i].to(at::kDouble) - exact[i]);
    const double plain_error = largest(plain[i].to(at::kDouble) - exact[i]);
    const double ulp = unit_in_last_place(fused[i].scalar_type(), largest(exact[i]));
    EXPECT_TRUE(error <= factor * plain_error + 4 * ulp)
        << "tensor " << i << " (outputs, then gradients): error " << error << ", plain torch " << plain_error
        << ", one ulp of the largest value " << ulp;
  }
}

/// Outputs and gradients of every sample, stacked by tensor.
inline Tensors joint_results(const Function& function, const std::vector<Tensors>& samples,
                             std::optional<at::ScalarType> dtype = std::nullopt) {
  std::vector<Tensors> by_tensor;
  for (const Tensors& sample : samples) {
    Tensors inputs = sample;
    for (at::Tensor& input : inputs) input = dtype ? input.to(*dtype) : input;
    const Tensors found = outputs_and_gradients(function, inputs);
    by_tensor.resize(found.size());
    for (size_t t = 0; t < found.size(); ++t) by_tensor[t].push_back(found[t]);
  }
  Tensors joint;
  for (const Tensors& of_samples : by_tensor) joint.push_back(at::stack(of_samples));
  return joint;
}

/// Calls `check(expect)`, where `expect()` computes `fused` once and expects it to satisfy the accuracy rule.
template <typename Check>
void with_accuracy_rule(const Function& fused, const Function& reference, const std::vector<Tensors>& samples,
                        const Check& check) {
  const Tensors exact = joint_results(reference, samples, at::kDouble);
  Tensors plain = joint_results(reference, samples, at::kFloat);
  check([&] {
    const Tensors found = joint_results(fused, samples);
    for (size_t t = 0; t < found.size(); ++t) plain[t] = plain[t].to(found[t].scalar_type());
    expect_error_within(2.0, found, plain, exact);
  });
}

/// Expects `fused` and its gradients to satisfy the accuracy rule against `reference`, on every instruction set. Inputs
/// have the dtype of storage (float32, bfloat16 or float16). Errors are the largest of all `samples`: a gradient of a
/// few numbers may have a plain result that happens to be exact.
inline void expect_as_accurate_as_plain(const Function& fused, const Function& reference,
                                        const std::vector<Tensors>& samples) {
  with_accuracy_rule(fused, reference, samples, [](const auto& expect) { for_each_target(expect); });
}

inline void expect_as_accurate_as_plain(const Function& fused, const Function& reference, const Tensors& inputs) {
  expect_as_accurate_as_plain(fused, reference, std::vector<Tensors>{inputs});
}

/// The same, computing `fused` once: for forms without our kernels, which do not depend on the instruction set.
inline void expect_as_accurate_as_plain_once(const Function& fused, const Function& reference,
                                             const std::vector<Tensors>& samples) {
  with_accuracy_rule(fused, reference, samples, [](const auto& expect) { expect(); });
}

struct FiniteDifferenceOptions {
  double step = 1e-6;
  double tolerance = 1e-7;  // of max(1, largest gradient)
};

/// Compares the gradients of sum(output * direction) with central differences, element by element; float64 inputs.
inline void expect_gradients(const Function& function, const Tensors& inputs,
                             const FiniteDifferenceOptions& options = {}, uint64_t seed = 17) {
  const Tensors found = outputs_and_gradients(function, inputs, seed);
  const size_t outputs = found.size() - inputs.size();
  Tensors moved;
  for (const at::Tensor& input : inputs) moved.push_back(input.detach().clone(at::MemoryFormat::Contiguous));
  const auto value = [&] {
    const Tensors at_moved = function(moved);
    double sum = 0;
    for (size_t i = 0; i < outputs; ++i) {
      const at::Tensor direction = random_normal(at_moved[i].sizes(), seed + i, at::kBFloat16).to(at::kDouble);
      sum += (at_moved[i].detach() * direction).sum().item().toDouble();
    }
    return sum;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(inputs[i].scalar_type(), at::kDouble);
    at::Tensor expected = at::empty_like(moved[i]);
    double* elements = moved[i].data_ptr<double>();
    for (int64_t e = 0; e < expected.numel(); ++e) {
      const double here = elements[e];
      elements[e] = here + options.step;
      const double above = value();
      elements[e] = here - options.step;
      const double below = value();
      elements[e] = here;
      expected.data_ptr<double>()[e] = (above - below) / (2 * options.step);
    }
    const double error = largest(found[outputs + i] - expected);
    EXPECT_LE(error, options.tolerance * std::max(1.0, largest(expected))) << "gradient of input " << i;
  }
}

/// Expects `statement()` to throw `Exception` with `text` in its message.
template <typename Exception, typename Statement>
void expect_throws(const Statement& statement, const std::string& text) {
  try {
    statement();
    ADD_FAILURE() << "expected an exception that says: " << text;
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

}  // namespace tamis::ops::testing

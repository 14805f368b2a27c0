#pragma once

// A device for tests on machines without one. Included by tests only.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::ops::testing {

struct SeenOnDevice {
  std::vector<std::string> to_host, from_host;
  int64_t bytes_to_host = 0;
  bool inside = false;  // an operator, whose copies are not the program's
  int current = 0;      // the device of the thread
};

/// PyTorch's device `privateuseone`, of which there are two, in host memory. As on a GPU, an operator whose tensors are
/// on different devices is refused, single numbers excepted, and Tamis computes in the blocked forms. PyTorch's own
/// operators compute as on the CPU.
///
/// It lists what would make a program wait for a GPU: copies to the host and from it, and results on which the host
/// depends, such as a number or a shape. Every thread has a list of its own.
class SimulatedDevice {
 public:
  /// Makes the device in the first call.
  static SimulatedDevice& get() {
    static SimulatedDevice device;
    return device;
  }

  static at::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }

  static void reset() { seen_ = {.current = seen_.current}; }
  /// What the host read, and what it wrote, since reset(): the names of operators, or "copy [shape]".
  static const std::vector<std::string>& to_host() { return seen_.to_host; }
  static const std::vector<std::string>& from_host() { return seen_.from_host; }
  static int64_t bytes_to_host() { return seen_.bytes_to_host; }

 private:
  class Allocator final : public c10::Allocator {
   public:
    c10::DataPtr allocate(size_t bytes) override {
      c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
      memory.unsafe_set_device(current());
      return memory;
    }
    c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  };

  class Guard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
   public:
    c10::DeviceIndex deviceCount() const noexcept override { return 2; }
    c10::Device exchangeDevice(c10::Device next) const override {
      const c10::Device before = current();
      setDevice(next);
      return before;
    }
    void setDevice(c10::Device next) const override { uncheckedSetDevice(next); }
    void uncheckedSetDevice(c10::Device next) const noexcept override {
      seen_.current = std::max<int>(next.index(), 0);
    }
    c10::Device getDevice() const override { return current(); }
    c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
    c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }

   private:
    static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, current()); }
  };

  struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  };

  SimulatedDevice() {
    c10::register_privateuse1_backend("privateuseone");  // autograd knows registered devices only
    at::RegisterPrivateUse1HooksInterface(&hooks_);
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::PrivateUse1)].store(&guard_);
    fallback_.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    aten_.impl("empty.memory_format", &empty);
    aten_.impl("empty_strided", &empty_strided);
    aten_.impl("as_strided", &at::native::as_strided_tensorimpl);
    aten_.impl("view", &at::native::view);
    aten_.impl("_reshape_alias", &at::native::_reshape_alias);
    aten_.impl("resize_", &resize);
    aten_.impl("_copy_from", &copy_from);
    aten_.impl("_copy_from_and_resize", &copy_from_and_resize);
    autograd_.impl("_has_compatible_shallow_copy_type", &is_compatible);  // for Tensor::set_data
  }

  static at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                          std::optional<at::Device> device, std::optional<bool>,
                          std::optional<at::MemoryFormat> format) {
    const c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_generic(size, &get().allocator_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     dtype.value_or(at::kFloat), format);
  }
  static at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                                  std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
    const c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_strided_generic(size, stride, &get().allocator_,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             dtype.value_or(at::kFloat));
  }

  static const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                                  std::optional<at::MemoryFormat> format) {
    const c10::OptionalDeviceGuard guard(self.device());
    return at::native::resize_(self, size, format);
  }

  /// The same memory as a tensor of the CPU.
  static at::Tensor in_host_memory(const at::Tensor& x) {
    if (x.is_cpu()) return x;
    return at::from_blob(x.unsafeGetTensorImpl()->mutable_data(), x.sizes(), x.strides(), x.options().device(at::kCPU));
  }

  static at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
    if (self.is_cpu() != to.is_cpu() && !seen_.inside) {
      (to.is_cpu() ? seen_.to_host : seen_.from_host).push_back("copy " + c10::str(self.sizes()));
      if (to.is_cpu()) seen_.bytes_to_host += static_cast<int64_t>(self.nbytes());
    }
    in_host_memory(to).copy_(in_host_memory(self));
    return to;
  }
  static at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
    if (self.sizes() != to.sizes()) to.resize_(self.sizes());
    return copy_from(self, to, false);
  }
  static bool is_compatible(const at::Tensor&, const at::Tensor&) { return true; }

  static at::Device current() { return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(seen_.current)}; }

  /// Every other operator.
  static void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const std::string& name = op.schema().name();
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensor()) check_argument(name, argument.toTensor());
      if (argument.isTensorList()) {
        for (const at::Tensor& x : argument.toTensorVector()) check_argument(name, x);
      }
      if (argument.isOptionalTensorList()) {
        for (const std::optional<at::Tensor> index : argument.toOptionalTensorList()) check_index(name, index);
      }
    }
    constexpr std::string_view kRead[] = {"aten::_local_scalar_dense",
                                          "aten::equal",
                                          "aten::nonzero",
                                          "aten::masked_select",
                                          "aten::_unique",
                                          "aten::_unique2",
                                          "aten::unique_dim",
                                          "aten::unique_consecutive",
                                          "aten::unique_dim_consecutive",
                                          "aten::histc",
                                          "aten::bincount",
                                          "aten::repeat_interleave"};
    if (std::ranges::find(kRead, name) != std::end(kRead)) seen_.to_host.push_back(name);
    const auto restore = c10::make_scope_exit([before = seen_.inside] { seen_.inside = before; });
    seen_.inside = true;
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  }

  static void check_argument(const std::string& name, const at::Tensor& x) {
    if (!x.defined() || !x.is_cpu()) return;
    TORCH_CHECK(x.dim() == 0, name, ": tensors are on different devices, ", device(), " and ", x.device());
    if (name == "aten::where") seen_.from_host.push_back(name);  // copies the number
  }

  /// An index of aten::index and its like, which may be on the CPU. A mask has as many elements as are true.
  static void check_index(const std::string& name, const std::optional<at::Tensor>& x) {
    if (!x || !x->defined()) return;
    if (x->is_cpu()) seen_.from_host.push_back(name);
    if (x->scalar_type() == at::kBool || x->scalar_type() == at::kByte) seen_.to_host.push_back(name);
  }

  Hooks hooks_;
  Guard guard_;
  Allocator allocator_;
  torch::Library fallback_{torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
  torch::Library aten_{torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
  torch::Library autograd_{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__};
  static inline thread_local SeenOnDevice seen_;
};

}  // namespace tamis::ops::testing

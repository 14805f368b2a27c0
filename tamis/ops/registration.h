#pragma once

// What the registration of every operator needs.
//
// The forms of an operator (CPU, Meta, ...) are functions of its options and its tensors:
//   Tensor on_cpu(const MyOptions& options, const Tensor& q, const Tensor& k);
// A schema lists the options one by one behind the tensors. The struct is taken apart and put together here alone, by
// the list that each operator gives:
//   template <>
//   struct SchemaOptions<MyOptions> {
//     static constexpr std::tuple kFields{&MyOptions::alpha, &MyOptions::document};  // in the schema's order
//   };
//   m.impl("my_operator", schema_form<&on_cpu>);

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tamis::ops {

template <typename Options>
struct SchemaOptions;

/// How the dispatcher passes an option of type T.
template <typename T>
struct SchemaArgument {
  using Type = T;
};
template <>
struct SchemaArgument<std::string> {
  using Type = c10::string_view;
};
template <>
struct SchemaArgument<std::optional<at::Tensor>> {
  using Type = const std::optional<at::Tensor>&;
};

template <typename Function, typename Fields>
struct SchemaForm;

/// A field may be a member of a base class of Options.
template <typename Result, typename Options, typename... Tensors, typename... Types, typename... Owners>
struct SchemaForm<Result(const Options&, Tensors...), const std::tuple<Types Owners::*...>> {
  template <Result (*kFunction)(const Options&, Tensors...)>
  static Result call(Tensors... tensors, typename SchemaArgument<Types>::Type... values) {
    Options options;
    const auto set = [&]<size_t... I>(std::index_sequence<I...>, const auto& all) {
      ((options.*std::get<I>(SchemaOptions<Options>::kFields) = std::get<I>(all)), ...);
    };
    set(std::index_sequence_for<Types...>(), std::tie(values...));
    return kFunction(options, tensors...);
  }
};

template <typename Function>
struct OptionsOf;
template <typename Result, typename Options, typename... Tensors>
struct OptionsOf<Result (*)(const Options&, Tensors...)> {
  using Type = Options;
};

/// A form of an operator with the signature of its schema: the tensors, then the options one by one.
template <auto kFunction>
inline constexpr auto* schema_form = &SchemaForm<
    std::remove_pointer_t<decltype(kFunction)>,
    decltype(SchemaOptions<typename OptionsOf<decltype(kFunction)>::Type>::kFields)>::template call<kFunction>;

/// The dispatcher's handle of an operator: `find_operator<Signature>("tamis::screening").call(...)`.
template <typename Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// Calls the operator of which kForm is a form; `name` is always the same for a form.
template <auto kForm, typename Options, typename... Tensors>
auto call_operator(const char* name, const Options& options, const Tensors&... tensors) {
  static const auto op = find_operator<std::remove_pointer_t<decltype(schema_form<kForm>)>>(name);
  return std::apply([&](auto... field) { return op.call(tensors..., options.*field...); },
                    SchemaOptions<Options>::kFields);
}

/// Contiguous memory of x's shape and dtype, sizes perhaps symbolic; what it holds is not set.
inline at::Tensor empty_contiguous_like(const at::Tensor& x) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

/// A saved tensor as the optional argument that it was.
inline std::optional<at::Tensor> given(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

template <typename Options>
struct KeptOptions : torch::CustomClassHolder {
  explicit KeptOptions(const Options& given_options) : options(given_options) {}
  Options options;
};

/// Calls visit(member) for the options that are tensors.
template <typename Options, typename Visit>
void for_each_tensor_option(Options& options, const Visit& visit) {
  const auto visit_tensor = [&](auto& member) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(member)>, std::optional<at::Tensor>>) visit(member);
  };
  std::apply([&](auto... field) { (visit_tensor(options.*field), ...); }, SchemaOptions<Options>::kFields);
}

/// Saves tensors and options for the backward pass, where get_saved_variables() begins with `tensors`.
template <typename Options>
void save_for_backward(torch::autograd::AutogradContext* ctx, const Options& options,
                       torch::autograd::variable_list tensors) {
  auto kept = c10::make_intrusive<KeptOptions<Options>>(options);
  for_each_tensor_option(kept->options, [&](std::optional<at::Tensor>& option) {
    tensors.push_back(option.value_or(at::Tensor()));
    option.reset();
  });
  ctx->save_for_backward(std::move(tensors));
  ctx->saved_data["options"] = at::IValue::make_capsule(std::move(kept));
}

/// The options that save_for_backward was given; `saved` is get_saved_variables().
template <typename Options>
Options saved_options(torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list& saved) {
  const auto kept = ctx->saved_data["options"].toCapsule();
  Options options = static_cast<const KeptOptions<Options>&>(*kept).options;
  size_t next = saved.size();
  for_each_tensor_option(options, [&](auto&) { --next; });
  for_each_tensor_option(options, [&](std::optional<at::Tensor>& option) { option = given(saved[next++]); });
  return options;
}

}  // namespace tamis::ops

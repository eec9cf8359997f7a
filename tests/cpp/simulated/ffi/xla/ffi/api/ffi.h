// This is as much of XLA's header as the handlers use, over plain memory: so the simulation calls
// them as XLA does, without XLA. A handler gives its function, with its type, to whoever calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

struct XLA_FFI_Error;
struct XLA_FFI_CallFrame {
  void (*function)() = nullptr;
  const std::type_info* type = nullptr;
};
using XLA_FFI_Handler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

namespace xla::ffi {

enum class ErrorCode { kInternal, kFailedPrecondition, kInvalidArgument };

class Error {
 public:
  Error(ErrorCode, std::string message) : message_(std::move(message)), failed_(true) {}
  static Error Success() { return {}; }
  static Error InvalidArgument(std::string message) {
    return {ErrorCode::kInvalidArgument, std::move(message)};
  }
  bool failure() const { return failed_; }
  bool success() const { return !failed_; }
  const std::string& message() const { return message_; }

 private:
  Error() = default;
  std::string message_;
  bool failed_ = false;
};

template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, std::size_t size) : data_(data), size_(size) {}
  Span(const std::vector<std::remove_const_t<T>>& all)  // NOLINT: as XLA has it, not explicit
      : data_(all.data()), size_(all.size()) {}
  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

enum class DataType {
  INVALID,
  PRED,
  S8,
  S16,
  S32,
  S64,
  U8,
  U16,
  U32,
  U64,
  F16,
  BF16,
  F32,
  F64,
  C64,
  C128,
  TOKEN
};
inline constexpr DataType PRED = DataType::PRED;
inline constexpr DataType S8 = DataType::S8;
inline constexpr DataType S16 = DataType::S16;
inline constexpr DataType S32 = DataType::S32;
inline constexpr DataType S64 = DataType::S64;
inline constexpr DataType U8 = DataType::U8;
inline constexpr DataType U16 = DataType::U16;
inline constexpr DataType U32 = DataType::U32;
inline constexpr DataType U64 = DataType::U64;
inline constexpr DataType F16 = DataType::F16;
inline constexpr DataType BF16 = DataType::BF16;
inline constexpr DataType F32 = DataType::F32;
inline constexpr DataType F64 = DataType::F64;
inline constexpr DataType C64 = DataType::C64;
inline constexpr DataType C128 = DataType::C128;
inline constexpr DataType TOKEN = DataType::TOKEN;

inline std::size_t ByteWidth(DataType type) {
  constexpr std::size_t widths[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16, 0};
  return widths[static_cast<std::size_t>(type)];
}

class AnyBuffer {
 public:
  AnyBuffer() = default;
  AnyBuffer(DataType type, void* data, std::vector<std::int64_t> shape)
      : type_(type), data_(data), shape_(std::move(shape)) {}
  DataType element_type() const { return type_; }
  Span<const std::int64_t> dimensions() const { return {shape_.data(), shape_.size()}; }
  void* untyped_data() const { return data_; }
  std::size_t element_count() const {
    return static_cast<std::size_t>(std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1},
                                                    std::multiplies<std::int64_t>()));
  }
  std::size_t size_bytes() const { return element_count() * ByteWidth(type_); }

 private:
  DataType type_ = DataType::INVALID;
  void* data_ = nullptr;
  std::vector<std::int64_t> shape_;
};

template <DataType type>
struct NativeOf;
template <>
struct NativeOf<DataType::S32> {
  using Type = std::int32_t;
};
template <>
struct NativeOf<DataType::U32> {
  using Type = std::uint32_t;
};
template <>
struct NativeOf<DataType::U8> {
  using Type = std::uint8_t;
};

inline constexpr std::size_t kAnyRank = static_cast<std::size_t>(-1);

template <DataType type, std::size_t rank = kAnyRank>
class Buffer : public AnyBuffer {
 public:
  Buffer() = default;
  Buffer(void* data, std::vector<std::int64_t> shape) : AnyBuffer(type, data, std::move(shape)) {}
  auto* typed_data() const { return static_cast<typename NativeOf<type>::Type*>(untyped_data()); }
};
template <DataType type>
using BufferR0 = Buffer<type, 0>;

struct Token {};

template <typename T>
class Result {
 public:
  Result() = default;
  Result(T value) : value_(std::move(value)) {}  // NOLINT
  T* operator->() { return &value_; }
  T& operator*() { return value_; }

 private:
  T value_{};
};

// Arrays, and the token that comes last on both sides.
class RemainingArgs {
 public:
  RemainingArgs(std::vector<AnyBuffer> arrays) : arrays_(std::move(arrays)) {}  // NOLINT
  std::size_t size() const { return arrays_.size() + 1; }
  template <typename T>
  const T* get(std::size_t i) const {
    return i < arrays_.size() ? &arrays_[i] : nullptr;
  }

 private:
  std::vector<AnyBuffer> arrays_;
};
class RemainingRets {
 public:
  RemainingRets(const std::vector<AnyBuffer>& arrays)  // NOLINT
      : arrays_(arrays.begin(), arrays.end()) {}
  std::size_t size() const { return arrays_.size() + 1; }
  template <typename T>
  std::optional<Result<T>> get(std::size_t i) const {
    return i < arrays_.size() ? std::optional<Result<T>>(arrays_[i]) : std::nullopt;
  }

 private:
  std::vector<Result<AnyBuffer>> arrays_;
};

// One thread: work that is shared out is done at once, by the rank itself.
class ThreadPool {
 public:
  template <typename Task>
  void Schedule(Task&& task) {
    task();
  }
  std::int64_t num_threads() const { return 1; }
};

// How a handler is bound does not matter here: its function is called with its own types.
class Ffi {
 public:
  static Ffi Bind() { return {}; }
  template <typename T>
  Ffi Attr(const char*) {
    return {};
  }
  template <typename T>
  Ffi Arg() {
    return {};
  }
  template <typename T>
  Ffi Ret() {
    return {};
  }
  Ffi RemainingArgs() { return {}; }
  Ffi RemainingRets() { return {}; }
  template <typename T>
  Ffi Ctx() {
    return {};
  }
  template <typename Function>
  std::unique_ptr<Ffi> To(Function* function) {
    function_ = reinterpret_cast<void (*)()>(function);
    type_ = &typeid(Function*);
    return std::make_unique<Ffi>(*this);
  }
  XLA_FFI_Error* Call(XLA_FFI_CallFrame* frame) const {
    frame->function = function_;
    frame->type = type_;
    return nullptr;
  }

 private:
  void (*function_)() = nullptr;
  const std::type_info* type_ = nullptr;
};

}  // namespace xla::ffi

// Values that all ranks must share: the handler of pfftjax/collectives/_same.py.
#include <array>
#include <complex>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "agreement.h"
#include "gpu/staged.h"
#include "half.h"
#include "handlers.h"

namespace pfftjax {
namespace {

// Values of few elements are written out in an error, larger ones by their hash.
constexpr std::int64_t kMostWritten = 4;

template <typename T>
T ValueAt(const void* x, std::int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(x) + i * static_cast<std::int64_t>(sizeof value),
              sizeof value);
  return value;
}

std::string Written(double value, int digits) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return text.data();
}

template <typename Real>
std::string WrittenComplex(const void* x, std::int64_t i, int digits) {
  const auto value = ValueAt<std::complex<Real>>(x, i);
  const std::string imaginary = Written(static_cast<double>(value.imag()), digits);
  return Written(static_cast<double>(value.real()), digits) +
         (imaginary.front() == '-' ? "" : "+") + imaginary + "i";
}

// Element `i`, with as many digits as tell it from its neighbours.
std::string Written(const void* x, std::int64_t i, Element element) {
  switch (element) {
    case Element::kBool:
      return ValueAt<std::uint8_t>(x, i) ? "True" : "False";
    case Element::kS8:
      return std::to_string(ValueAt<std::int8_t>(x, i));
    case Element::kS16:
      return std::to_string(ValueAt<std::int16_t>(x, i));
    case Element::kS32:
      return std::to_string(ValueAt<std::int32_t>(x, i));
    case Element::kS64:
      return std::to_string(ValueAt<std::int64_t>(x, i));
    case Element::kU8:
      return std::to_string(ValueAt<std::uint8_t>(x, i));
    case Element::kU16:
      return std::to_string(ValueAt<std::uint16_t>(x, i));
    case Element::kU32:
      return std::to_string(ValueAt<std::uint32_t>(x, i));
    case Element::kU64:
      return std::to_string(ValueAt<std::uint64_t>(x, i));
    case Element::kF16:
      return Written(static_cast<double>(static_cast<float>(ValueAt<Float16>(x, i))), 5);
    case Element::kBF16:
      return Written(static_cast<double>(static_cast<float>(ValueAt<BFloat16>(x, i))), 4);
    case Element::kF32:
      return Written(static_cast<double>(ValueAt<float>(x, i)), 9);
    case Element::kF64:
      return Written(ValueAt<double>(x, i), 17);
    case Element::kC64:
      return WrittenComplex<float>(x, i, 9);
    case Element::kC128:
      return WrittenComplex<double>(x, i, 17);
  }
  return "?";
}

std::string Written(const Operand& x, Element element, std::int64_t hash) {
  const auto count = static_cast<std::int64_t>(x.element_count());
  if (count > kMostWritten) {
    return std::string(InfoOf(element).name) + "[" + std::to_string(count) + "] with the hash " +
           std::to_string(hash);
  }
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    text += (i > 0 ? ", " : "") + Written(x.untyped_data(), i, element);
  }
  return x.dimensions().size() == 0 ? text : "[" + text + "]";
}

// The ranks compare a place in a program once. They must all do so at the same call, or wait for
// ever: `place` stands for the program's collectives up to this one, and the signature for all of
// them; both are equal on all ranks, as the check of the first call has found.
bool IsToBeCompared(Communicator& comm, const CallSite& site, std::int64_t place, bool each_call,
                    std::int64_t* key) {
  const std::array<std::int64_t, 2> words = {place, site.signature};
  *key = static_cast<std::int64_t>(Hash(words.data(), sizeof words));
  if (comm.size == 1) return false;
  if (GetOptions().check) return true;
  return GetOptions().first_call && (each_call || comm.verified.count(*key) == 0);
}

ffi::Error Same(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                std::string_view program, std::int64_t place, bool each_call,
                std::string_view operation, std::string_view what, std::string_view remedy,
                Operand x, Token, Result y, TokenResult) {
  const CallSite site{Operation::kSame, number, ranks, signature, program};
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  const Payload payload{*element, static_cast<std::int64_t>(x.element_count()), {}};
  return Run(site, payload, [&](Communicator& comm) {
    std::int64_t key = 0;
    if (y->untyped_data() != x.untyped_data()) {
      std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
    }
    if (!IsToBeCompared(comm, site, place, each_call, &key)) return ffi::Error::Success();
    const auto hash = static_cast<std::int64_t>(Hash(x.untyped_data(), x.size_bytes()));
    const std::string how = Difference(comm, hash, Written(x, *element, hash));
    if (!how.empty()) {
      return ffi::Error(
          ffi::ErrorCode::kInternal,
          FailureText(std::string(operation).c_str(), comm,
                      std::string(what) + " must be the same on every rank, but is " + how + "; " +
                          std::string(remedy)));
    }
    comm.verified.insert(key);
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kSame, Same,
                       OneToOne(BindSite(ffi::Ffi::Bind())
                                    .Attr<std::int64_t>("place")
                                    .Attr<bool>("each_call")
                                    .Attr<std::string_view>("operation")
                                    .Attr<std::string_view>("what")
                                    .Attr<std::string_view>("remedy")));

}  // namespace

std::vector<Registration> SameHandlers() { return {WithStaging<kSame>("pfftjax_same")}; }

}  // namespace pfftjax

// Values that all ranks must share (pfftjax/collectives/_same.py), and values that two arguments
// of a call must (pfftjax/pm/_expected.py).
#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
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

// With no more digits than tell the value from its neighbours, of which a dtype has `most`.
template <typename Real>
std::string Written(Real value, int most) {
  std::array<char, 40> text{};
  for (int digits = std::min(6, most); digits <= most; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, static_cast<double>(value));
    if (static_cast<Real>(std::strtod(text.data(), nullptr)) == value) break;
  }
  return text.data();
}

template <typename Real>
std::string WrittenComplex(const void* x, std::int64_t i, int most) {
  const auto value = ValueAt<std::complex<Real>>(x, i);
  const std::string imaginary = Written(value.imag(), most);
  return Written(value.real(), most) + (imaginary.front() == '-' ? "" : "+") + imaginary + "i";
}

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
      return Written(static_cast<float>(ValueAt<Float16>(x, i)), 5);
    case Element::kBF16:
      return Written(static_cast<float>(ValueAt<BFloat16>(x, i)), 4);
    case Element::kF32:
      return Written(ValueAt<float>(x, i), 9);
    case Element::kF64:
      return Written(ValueAt<double>(x, i), 17);
    case Element::kC64:
      return WrittenComplex<float>(x, i, 9);
    case Element::kC128:
      return WrittenComplex<double>(x, i, 17);
  }
  return "?";
}

std::string Written(const Operand& x, Element element) {
  const auto count = static_cast<std::int64_t>(x.element_count());
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    text += (i > 0 ? ", " : "") + Written(x.untyped_data(), i, element);
  }
  return x.dimensions().size() == 0 ? text : "[" + text + "]";
}

std::string Written(const Operand& x, Element element, std::int64_t hash) {
  const auto count = static_cast<std::int64_t>(x.element_count());
  if (count <= kMostWritten) return Written(x, element);
  return std::string(InfoOf(element).name) + "[" + std::to_string(count) + "] with the hash " +
         std::to_string(hash);
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

// Hands `passed` on where `value` is `expected`, but for a relative tolerance. What is not
// positive is not known. No message is sent; it has its place in the order of communication, so
// that ranks that fail all do so at the same collective.
ffi::Error Expect(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                  std::string_view program, std::string_view operation, std::string_view what,
                  std::string_view but, std::string_view remedy, double tolerance, Operand passed,
                  Operand value, Operand expected, Token, Result y, TokenResult) {
  const CallSite site{Operation::kExpect, number, ranks, signature, program};
  const std::optional<Element> element = ElementOf(value.element_type());
  if (element != Element::kF32 && element != Element::kF64) {
    return BadElement(site.operation, value.element_type());
  }
  const auto count = static_cast<std::int64_t>(value.element_count());
  const Payload payload{*element, count, {}};
  return Run(site, payload, [&](Communicator& comm) {
    if (y->untyped_data() != passed.untyped_data()) {
      std::memcpy(y->untyped_data(), passed.untyped_data(), passed.size_bytes());
    }
    const auto at = [&](const Operand& x, std::int64_t i) {
      return element == Element::kF32 ? static_cast<double>(ValueAt<float>(x.untyped_data(), i))
                                      : ValueAt<double>(x.untyped_data(), i);
    };
    for (std::int64_t i = 0; i < count; ++i) {
      const double a = at(value, i);
      const double b = at(expected, i);
      if (!(a > 0 && b > 0) || std::abs(a - b) <= tolerance * std::max(a, b)) continue;
      const bool is_short = count <= kMostWritten;
      return ffi::Error(ffi::ErrorCode::kInternal,
                        FailureText(std::string(operation).c_str(), comm,
                                    std::string(what) + " is " +
                                        (is_short ? Written(value, *element) : Written(a, 9)) +
                                        ", but " + std::string(but) + " " +
                                        (is_short ? Written(expected, *element) : Written(b, 9)) +
                                        "; " + std::string(remedy)));
    }
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kExpect, Expect,
                       BindSite(ffi::Ffi::Bind())
                           .Attr<std::string_view>("operation")
                           .Attr<std::string_view>("what")
                           .Attr<std::string_view>("but")
                           .Attr<std::string_view>("remedy")
                           .Attr<double>("tolerance")
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());

}  // namespace

std::vector<Registration> SameHandlers() {
  return {WithStaging<kSame>("pfftjax_same"), WithStaging<kExpect>("pfftjax_expect")};
}

}  // namespace pfftjax

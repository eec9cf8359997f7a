// Values that all ranks must share (pfftjax/collectives/_same.py), and values that two arguments
// of a call must (pfftjax/pm/_expected.py).
#include "collectives/same.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/types.h"
#include "collectives/exchange.h"
#include "runtime/agreement.h"
#include "runtime/handlers.h"

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

// So many digits tell a value of a floating-point type from its neighbours; `epsilon` is its
// relative rounding.
struct Precision {
  int digits;
  double epsilon;
};
template <typename T>
constexpr Precision PrecisionOf() {
  if constexpr (std::is_same_v<T, Float16>) return {5, 0x1p-10};
  if constexpr (std::is_same_v<T, BFloat16>) return {4, 0x1p-7};
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, std::complex<float>>) {
    return {9, std::numeric_limits<float>::epsilon()};
  }
  return {17, std::numeric_limits<double>::epsilon()};
}

// Writes no more digits than tell the value from its neighbours; a dtype has `most` of them.
template <typename Real>
std::string Written(Real value, int most) {
  std::array<char, 40> text{};
  for (int digits = std::min(6, most); digits <= most; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, static_cast<double>(value));
    if (static_cast<Real>(std::strtod(text.data(), nullptr)) == value) break;
  }
  return text.data();
}

std::string Written(const void* x, std::int64_t i, Element element) {
  return WithType(element, [&](auto zero) -> std::string {
    using T = decltype(zero);
    constexpr int most = PrecisionOf<T>().digits;
    if constexpr (std::is_same_v<T, bool>) {
      return ValueAt<std::uint8_t>(x, i) ? "True" : "False";
    } else if constexpr (std::is_integral_v<T>) {
      return std::to_string(ValueAt<T>(x, i));
    } else if constexpr (kIsHalf<T>) {
      return Written(static_cast<float>(ValueAt<T>(x, i)), most);
    } else if constexpr (kIsComplex<T>) {
      const T value = ValueAt<T>(x, i);
      const std::string imaginary = Written(value.imag(), most);
      return Written(value.real(), most) + (imaginary.front() == '-' ? "" : "+") + imaginary + "i";
    } else {
      return Written(ValueAt<T>(x, i), most);
    }
  });
}

std::string Written(const Operand& x, Element element) {
  std::string text;
  for (std::int64_t i = 0; i < CountOf(x); ++i) {
    text += (i > 0 ? ", " : "") + Written(x.untyped_data(), i, element);
  }
  return x.dimensions().size() == 0 ? text : "[" + text + "]";
}

std::string Written(const Operand& x, Element element, std::int64_t hash) {
  if (CountOf(x) <= kMostWritten) return Written(x, element);
  return std::string(InfoOf(element).name) + "[" + std::to_string(CountOf(x)) +
         "] with the hash " + std::to_string(hash);
}

// Two arrays differ not at all, as results of the same formula in differently compiled
// programs may, or more.
enum class Gap : std::int64_t { kNone, kRounding, kReal };

struct Worst {
  Gap gap = Gap::kNone;
  std::string text{};  // of the first element that differs most
};

// One array among those that lie one after the other in the operand.
struct Part {
  std::string_view label;
  std::int64_t count;
};

// "name\tcount" lines.
std::vector<Part> PartsOf(std::string_view text) {
  std::vector<Part> parts;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t tab = line.rfind('\t');
    if (tab == std::string_view::npos) return {};
    parts.push_back({line.substr(0, tab), std::stoll(std::string(line.substr(tab + 1)))});
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return parts;
}

// `T` is the type of one number as it lies in memory, `Wide` the one to calculate in; `epsilon` is
// the relative rounding of T, 0 for integers.
template <typename T, typename Wide>
Worst Compare(const void* mine, const void* reference, std::int64_t numbers, std::int64_t each,
              Element element, const std::vector<Part>& parts, double tolerance,
              const std::string& ranks) {
  const auto at = [](const void* data, std::int64_t i) {
    return static_cast<Wide>(ValueAt<T>(data, i));
  };
  Worst worst;
  std::int64_t start = 0;
  // Under vmap the arrays are there as often as the batch is large.
  for (std::size_t k = 0; start < numbers; k = (k + 1) % parts.size()) {
    const std::int64_t count = std::min(parts[k].count * each, numbers - start);
    Wide scale = 0;
    if constexpr (std::is_floating_point_v<Wide>) {
      for (std::int64_t i = start; i < start + count; ++i) {
        const Wide size = std::abs(at(reference, i));
        if (std::isfinite(size)) scale = std::max(scale, size);
      }
    }
    for (std::int64_t i = start; i < start + count; ++i) {
      const Wide a = at(mine, i), b = at(reference, i);
      if (a == b || (a != a && b != b)) continue;
      bool is_rounding = false;
      if constexpr (std::is_floating_point_v<Wide>) {
        is_rounding = std::abs(a - b) <= tolerance * scale;
      }
      const Gap gap = is_rounding ? Gap::kRounding : Gap::kReal;
      if (gap <= worst.gap) continue;
      const std::string index =
          parts[k].count > 1 ? "[" + std::to_string((i - start) / each) + "]" : "";
      worst = {gap, std::string(parts[k].label) + index + " is " +
                        Written(mine, i / each, element) + ranks +
                        Written(reference, i / each, element) + " on rank 0"};
      if (gap == Gap::kReal) return worst;
    }
    start += count;
  }
  return worst;
}

Worst CompareElements(const void* mine, const void* reference, Element element, std::int64_t count,
                      const std::vector<Part>& parts, double exponent, int rank) {
  const std::string ranks = " on rank " + std::to_string(rank) + " and ";
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    const double tolerance = std::pow(PrecisionOf<T>().epsilon, exponent);
    const auto compare = [&](auto number, auto wide, std::int64_t each = 1) {
      return Compare<decltype(number), decltype(wide)>(mine, reference, count * each, each,
                                                       element, parts, tolerance, ranks);
    };
    if constexpr (kIsComplex<T>) {
      return compare(zero.real(), zero.real(), 2);
    } else if constexpr (kIsHalf<T>) {
      return compare(zero, float{});
    } else if constexpr (std::is_floating_point_v<T>) {
      return compare(zero, zero);
    } else if constexpr (std::is_same_v<T, bool>) {
      return compare(std::uint8_t{}, std::uint64_t{});
    } else {
      return compare(zero, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>{});
    }
  });
}

bool IsZero(const void* data, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  return std::all_of(p, p + bytes, [](unsigned char byte) { return byte == 0; });
}

// Finds how this rank's values differ from those of rank 0, which are sent to all; returns an MPI
// code.
int CompareWithFirst(const Communicator& comm, const Operand& x, Element element,
                     std::string_view labels, double exponent, Worst* worst) {
  const std::int64_t count = CountOf(x);
  const std::unique_ptr<char[]> reference(new char[x.size_bytes()]);
  std::memcpy(reference.get(), x.untyped_data(), x.size_bytes());
  const int code =
      ForEachChunk(count, ChunkElements(element), [&](std::int64_t offset, std::int64_t piece) {
        return Mpi()->bcast(At(reference.get(), offset, element), piece, element, 0, comm.control);
      });
  const std::vector<Part> parts = PartsOf(labels);
  if (code == 0 && !parts.empty()) {
    *worst = CompareElements(x.untyped_data(), reference.get(), element, count, parts, exponent,
                             comm.rank);
  }
  return code;
}

// Remembers what has been said, and by which communicator; see Warn.
struct Said {
  process::Mutex mutex;
  std::set<std::pair<std::int64_t, std::string>> subjects;
};

// Says something on rank 0, once about each subject.
void Warn(const Communicator& comm, const std::string& subject, const std::string& text) {
  if (comm.rank != 0) return;
  {
    Said& said = process::Lasting<Said>();
    const std::lock_guard<process::Mutex> lock(said.mutex);
    if (!said.subjects.insert({comm.number, subject}).second) return;
  }
  std::fprintf(stderr, "pfftjax: warning: %s%s\n", subject.c_str(), text.c_str());
}

// Puts into words, the same on all ranks, how their values differ most; returns an MPI code.
int Agree(Communicator& comm, const Worst& mine, Worst* agreed) {
  const auto here = static_cast<std::int64_t>(mine.gap);
  std::int64_t most = 0;
  const int code = Mpi()->allreduce(&here, &most, 1, Element::kS64, Reduction::kMax, comm.control);
  if (code != 0) return code;
  const std::string first = FirstText(comm, here == most ? mine.text : "");
  // Without the rank, which the text names itself.
  const std::size_t colon = first.find(": ");
  *agreed = {static_cast<Gap>(most), colon == std::string::npos ? first : first.substr(colon + 2)};
  return 0;
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
  return GetOptions().first_call && (each_call || comm.Attached<Verified>().all.count(*key) == 0);
}

// Values that may differ in their last digits, or that should differ; MPI's code in `code`.
// Returns the error, empty where there is none.
std::string CompareValues(Communicator& comm, const Operand& x, Element element, Expected expected,
                          const std::string& what, std::string_view labels,
                          const std::string& remedy, int* code) {
  bool are_equal = true;
  const std::uint64_t hash = Hash(x.untyped_data(), x.size_bytes());
  *code = AreEqual(comm, static_cast<std::int64_t>(hash), &are_equal);
  if (*code != 0) return {};
  if (expected == Expected::kDifferent) {
    if (are_equal && !IsZero(x.untyped_data(), x.size_bytes())) Warn(comm, what, "; " + remedy);
    return {};
  }
  if (are_equal) return {};
  Worst mine, agreed;
  const double exponent = expected == Expected::kSameTotal ? 0.5 : 0.75;
  *code = CompareWithFirst(comm, x, element, labels, exponent, &mine);
  if (*code == 0) *code = Agree(comm, mine, &agreed);
  if (*code != 0) return {};
  if (agreed.gap == Gap::kReal) {
    return what + " must be the same on every rank, but " + agreed.text + ". " + remedy;
  }
  if (agreed.gap == Gap::kRounding) {
    Warn(comm, what,
         " should be the same on every rank, but differs in its last digits: " + agreed.text +
             ". " + remedy);
  }
  return {};
}

// Hands an operand on, unless XLA has put the result in its place.
void PassOn(const Operand& x, Result& y) {
  if (y->untyped_data() == x.untyped_data()) return;
  std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
}

// `labels` says what lies in the operand where more than its bits are compared.
ffi::Error Same(const CallSite& site, std::int64_t place, bool each_call, std::int32_t expected,
                std::string_view operation, std::string_view what, std::string_view labels,
                std::string_view remedy, Operand x, Token, Result y, TokenResult) {
  return RunOn(site, x, {}, 0, [&](Communicator& comm, Element element) {
    std::int64_t key = 0;
    PassOn(x, y);
    if (!IsToBeCompared(comm, site, place, each_call, &key)) return ffi::Error::Success();
    std::string error;
    if (const auto wanted = static_cast<Expected>(expected); wanted == Expected::kSameBits) {
      const auto hash = static_cast<std::int64_t>(Hash(x.untyped_data(), x.size_bytes()));
      int code = 0;
      const std::string how = Difference(comm, hash, Written(x, element, hash), &code);
      if (code != 0) return MpiFailed(site.operation, comm, element, CountOf(x), code);
      if (!how.empty()) {
        error = std::string(what) + " must be the same on every rank, but is " + how + "; " +
                std::string(remedy);
      }
    } else {
      int code = 0;
      error = CompareValues(comm, x, element, wanted, std::string(what), labels,
                            std::string(remedy), &code);
      if (code != 0) {
        return MpiFailed(site.operation, comm, element, CountOf(x), code);
      }
    }
    if (!error.empty()) return Failed(std::string(operation), comm, error);
    comm.Attached<Verified>().all.insert(key);
    return ffi::Error::Success();
  });
}

// Hands `passed` on where `value` is `expected`, but for a relative tolerance. What is not
// positive is not known. No message is sent; it has its place in the order of communication, so
// that ranks that fail all do so at the same collective.
ffi::Error Expect(const CallSite& site, std::string_view operation, std::string_view what,
                  std::string_view but, std::string_view remedy, double tolerance, Operand passed,
                  Operand value, Operand expected, Token, Result y, TokenResult) {
  const Element element = ElementOf(value.element_type());
  if (element != Element::kF32 && element != Element::kF64) {
    return Invalid("expect is for float32 and float64");
  }
  const std::int64_t count = CountOf(value);
  const Payload payload{element, count, {}};
  return Run(site, payload, [&](Communicator& comm) {
    PassOn(passed, y);
    const auto at = [&](const Operand& x, std::int64_t i) {
      return element == Element::kF32 ? static_cast<double>(ValueAt<float>(x.untyped_data(), i))
                                      : ValueAt<double>(x.untyped_data(), i);
    };
    for (std::int64_t i = 0; i < count; ++i) {
      const double a = at(value, i);
      const double b = at(expected, i);
      if (!(a > 0 && b > 0) || std::abs(a - b) <= tolerance * std::max(a, b)) continue;
      const bool is_short = count <= kMostWritten;
      return Failed(std::string(operation), comm,
                    std::string(what) + " is " +
                        (is_short ? Written(value, element) : Written(a, 9)) + ", but " +
                        std::string(but) + " " +
                        (is_short ? Written(expected, element) : Written(b, 9)) + "; " +
                        std::string(remedy));
    }
    return ffi::Error::Success();
  });
}

template <Operation kOperation>
Registration Comparing(const char* name) {
  return SiteHandler<kOperation, Same>(name, "place", "each_call", "expected", "operation", "what",
                                       "labels", "remedy");
}

}  // namespace

std::vector<Registration> SameHandlers() {
  return {Comparing<Operation::kSame>("pfftjax_same"),
          Comparing<Operation::kReplicate>("pfftjax_replicate"),
          SiteHandler<Operation::kExpect, Expect>("pfftjax_expect", "operation", "what", "but",
                                                  "remedy", "tolerance")};
}

}  // namespace pfftjax

#include "fft/plan.h"

#include <cmath>
#include <complex>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fft/lanes.h"

namespace pfftjax::fft {
namespace {

// exp(-2 pi i k / n), from an angle in the first octant, where sine and cosine are accurate.
std::complex<double> Root(std::int64_t k, std::int64_t n) {
  constexpr double two_pi = 6.283185307179586476925286766559;
  k %= n;
  if (k < 0) k += n;
  if (k == 0) return {1.0, 0.0};
  if (2 * k > n) return std::conj(Root(n - k, n));
  // Now 0 < k / n <= 1/2.
  if (4 * k > n) {
    const std::complex<double> mirrored = Root(n - 2 * k, 2 * n);  // pi - angle
    return {-mirrored.real(), mirrored.imag()};
  }
  if (8 * k > n) {
    const double rest = two_pi * static_cast<double>(n - 4 * k) / static_cast<double>(4 * n);
    return {std::sin(rest), -std::cos(rest)};
  }
  const double angle = two_pi * static_cast<double>(k) / static_cast<double>(n);
  return {std::cos(angle), -std::sin(angle)};
}

// A plan with what its pointers point to.
template <typename T>
struct Owned : Plan<T> {
  std::vector<Pass<T>> all_passes;
  std::vector<std::vector<T>> tables;

  const T* Keep(std::vector<T> values) {
    tables.push_back(std::move(values));
    return tables.back().data();
  }
};

template <typename T>
void Push(std::vector<T>& values, std::complex<double> root) {
  values.push_back(static_cast<T>(root.real()));
  values.push_back(static_cast<T>(root.imag()));
}

// Radices with a kernel first, then odd primes; the rest that is left has larger factors. Twos in
// as few passes as radix 8 makes possible, and these as equal as can be.
std::vector<std::int64_t> Factors(std::int64_t n, std::int64_t* rest) {
  std::vector<std::int64_t> factors;
  int twos = 0;
  for (; n % 2 == 0; n /= 2) ++twos;
  for (int passes = (twos + 2) / 3; passes > 0; --passes) {
    const int some = (twos + passes - 1) / passes;
    factors.push_back(std::int64_t{1} << some);
    twos -= some;
  }
  for (const std::int64_t radix : {3, 5}) {
    for (; n % radix == 0; n /= radix) factors.push_back(radix);
  }
  for (std::int64_t radix = 7; radix <= kMaxGenericRadix; radix += 2) {
    for (; n % radix == 0; n /= radix) factors.push_back(radix);
  }
  *rest = n;
  return factors;
}

std::int64_t SmoothAtLeast(std::int64_t n) {
  std::int64_t best = 1;
  while (best < n) best *= 2;
  for (std::int64_t fives = 1; fives < best; fives *= 5) {
    for (std::int64_t threes = fives; threes < best; threes *= 3) {
      std::int64_t candidate = threes;
      while (candidate < n) candidate *= 2;
      if (candidate < best) best = candidate;
    }
  }
  return best;
}

template <typename T>
void AddPasses(Owned<T>& plan, const std::vector<std::int64_t>& factors) {
  std::int64_t length = plan.n;
  std::int64_t stride = 1;
  for (const std::int64_t radix : factors) {
    Pass<T> pass;
    pass.radix = radix;
    pass.m = length / radix;
    pass.stride = stride;
    pass.has_kernel = radix <= 5 || radix == 8;
    std::vector<T> twiddles;
    for (std::int64_t p = 0; p < pass.m; ++p) {
      for (std::int64_t j = 1; j < radix; ++j) Push(twiddles, Root(p * j, length));
    }
    pass.twiddles = plan.Keep(std::move(twiddles));
    if (!pass.has_kernel) {
      std::vector<T> roots;
      for (std::int64_t j = 0; j < radix; ++j) Push(roots, Root(j, radix));
      pass.roots = plan.Keep(std::move(roots));
    }
    plan.all_passes.push_back(pass);
    length = pass.m;
    stride *= radix;
  }
  plan.passes = plan.all_passes.data();
  plan.pass_count = static_cast<int>(plan.all_passes.size());
  plan.workspace = 2 * plan.n;
}

// y[k] = c[k] sum_j (x[j] c[j]) conj(c[k - j]) with c[j] = exp(-i pi j^2 / n), from
// 2 j k = j^2 + k^2 - (k - j)^2: a convolution, of any length from 2 n - 1.
template <typename T>
void AddChirp(Owned<T>& plan) {
  const std::int64_t n = plan.n;
  plan.padded = SmoothAtLeast(2 * n - 1);
  plan.workspace = n + 2 * plan.padded;
  plan.convolution = &PlanFor<T>(plan.padded);
  std::vector<T> chirp;
  std::vector<std::complex<double>> conjugate(static_cast<std::size_t>(plan.padded));
  std::int64_t square = 0;  // j^2 modulo 2 n
  for (std::int64_t j = 0; j < n; ++j) {
    const std::complex<double> c = Root(square, 2 * n);
    Push(chirp, c);
    conjugate[j] = std::conj(c);
    if (j > 0) conjugate[plan.padded - j] = std::conj(c);
    square = (square + 2 * j + 1) % (2 * n);
  }
  plan.chirp = plan.Keep(std::move(chirp));

  // The spectrum of the conjugate, in double precision and by one instruction set, so that tables
  // are the same on all processors.
  const Plan<double>& convolution = PlanFor<double>(plan.padded);
  const Lanes& lanes = baseline::kLanes;
  const auto bytes = static_cast<std::size_t>(convolution.workspace) * 2 * lanes.vector_bytes;
  const std::unique_ptr<char[]> workspace(new char[bytes]);
  auto* const numbers = reinterpret_cast<double*>(conjugate.data());
  lanes.transform_f64(convolution, Kind::kForward, plan.padded, {numbers, 1, plan.padded},
                      {numbers, 1, plan.padded}, 1, 1.0, workspace.get());
  std::vector<T> spectrum;
  for (const std::complex<double>& value : conjugate) {
    Push(spectrum, value / static_cast<double>(plan.padded));
  }
  plan.spectrum = plan.Keep(std::move(spectrum));
}

template <typename T>
std::unique_ptr<Owned<T>> Make(std::int64_t n) {
  auto plan = std::make_unique<Owned<T>>();
  plan->n = n;
  std::int64_t rest = 1;
  const std::vector<std::int64_t> factors = Factors(n, &rest);
  if (rest == 1) {
    AddPasses(*plan, factors);
  } else {
    AddChirp(*plan);
  }
  std::vector<T> half_roots;
  for (std::int64_t k = 0; k <= n / 2; ++k) Push(half_roots, Root(k, 2 * n));
  plan->half_roots = plan->Keep(std::move(half_roots));
  return plan;
}

}  // namespace

template <typename T>
const Plan<T>& PlanFor(std::int64_t n) {
  // Recursive: a plan by convolution asks for another.
  static std::recursive_mutex mutex;
  static auto& plans = *new std::map<std::int64_t, std::unique_ptr<Owned<T>>>;
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  std::unique_ptr<Owned<T>>& plan = plans[n];
  if (!plan) plan = Make<T>(n);
  return *plan;
}

template const Plan<float>& PlanFor<float>(std::int64_t);
template const Plan<double>& PlanFor<double>(std::int64_t);

}  // namespace pfftjax::fft

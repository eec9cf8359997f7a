// Boxes of one buffer into another on the device, and sums of them; box_plan.h says in what parts.
#include <algorithm>
#include <cstdint>

#include "base/half.h"
#include "gpu/box_plan.h"
#include "gpu/kernels.h"
#include "gpu/launch.h"

namespace pfftjax::gpu {
namespace {

// These are more than can run at once, so that all processors are busy until the end.
constexpr std::int64_t kBlocksPerProcessor = 64;

// A column of a square lies in different banks of the shared memory: lines are 4 bytes longer than
// they need to be, or a word where that is more.
PFFTJAX_HOST_DEVICE constexpr std::size_t Pitch(std::size_t word_bytes) {
  return SquareSide(word_bytes) * word_bytes + (word_bytes < 4 ? 4 : word_bytes);
}
PFFTJAX_HOST_DEVICE constexpr std::size_t SquareBytes(std::size_t word_bytes) {
  return SquareSide(word_bytes) * Pitch(word_bytes);
}

// Offsets in bytes.
struct Place {
  std::int64_t from;
  std::int64_t to;
};

__device__ Place PlaceOf(const Batch& batch, const Move& move, std::uint32_t index) {
  Place at{0, 0};
#pragma unroll 1
  for (int a = move.axes_begin; a < move.axes_begin + move.axes_count; ++a) {
    const Axis& axis = batch.axes[a];
    const std::uint32_t rest = axis.Divide(index);
    const std::int64_t along = index - rest * axis.extent;
    at.from += along * axis.from;
    at.to += along * axis.to;
    index = rest;
  }
  return at;
}

template <typename Word>
__device__ Word Load(const unsigned char* at) {
  return *reinterpret_cast<const Word*>(at);
}

template <typename Word>
__device__ void Store(unsigned char* at, Word word) {
  *reinterpret_cast<Word*>(at) = word;
}

// ---- Sums --------------------------------------------------------------------------------------

template <typename T>
struct alignas(2 * sizeof(T)) Complex {
  T re;
  T im;
};

// Sums are those of AddBox (box.cc): integers wrap around, 1 + 1 is 1 in bool, 16-bit
// floating-point numbers are added as float.
template <typename T>
__device__ T Sum(T a, T b) {
  return static_cast<T>(a + b);
}
__device__ Float16 Sum(Float16 a, Float16 b) {
  return Float16::From(static_cast<float>(a) + static_cast<float>(b));
}
__device__ BFloat16 Sum(BFloat16 a, BFloat16 b) {
  return BFloat16::From(static_cast<float>(a) + static_cast<float>(b));
}
template <typename T>
__device__ Complex<T> Sum(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}

// ---- Tiles -------------------------------------------------------------------------------------

// All words of a thread are read before the first is written, so that they come together. They
// are in one row.
template <typename Word, bool kAdds>
__device__ void MoveWideRow(const Batch& batch, const Move& move, std::uint32_t x0,
                            std::uint32_t row0) {
  constexpr int log_words = LogWordsPerThread(sizeof(Word));
  const int log_apart = move.log_width - log_words;
  const std::uint32_t row = row0 + (threadIdx.x >> log_apart);
  if (row >= move.height) return;
  const Place at = PlaceOf(batch, move, row);
  const std::uint32_t first = x0 + (threadIdx.x & ((1u << log_apart) - 1));
  const unsigned char* const source = move.source + at.from;
  unsigned char* const target = move.target + at.to;
  Word words[1 << log_words];
  [[maybe_unused]] Word here[1 << log_words];
#pragma unroll
  for (std::uint32_t i = 0; i < 1u << log_words; ++i) {
    const std::uint32_t x = first + (i << log_apart);
    if (x >= move.width) continue;
    words[i] = Load<Word>(source + x * move.x_from);
    if constexpr (kAdds) here[i] = Load<Word>(target + x * move.x_to);
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 1u << log_words; ++i) {
    const std::uint32_t x = first + (i << log_apart);
    if (x >= move.width) continue;
    if constexpr (kAdds) words[i] = Sum(here[i], words[i]);
    Store(target + x * move.x_to, words[i]);
  }
}

template <typename Word, bool kAdds>
__device__ void MoveRows(const Batch& batch, const Move& move, std::uint32_t tile) {
  const int log_width = move.log_width;
  const std::uint32_t across = (move.width + (1u << log_width) - 1) >> log_width;
  const std::uint32_t down = tile / across;
  const std::uint32_t x0 = (tile - down * across) << log_width;
  const std::uint32_t row0 = down << (LogRowTile(sizeof(Word)) - log_width);
  if (log_width >= LogWideRow(sizeof(Word))) {
    return MoveWideRow<Word, kAdds>(batch, move, x0, row0);
  }

  // As many at a time as there are registers for.
  constexpr std::uint32_t together = 4;
#pragma unroll 1
  for (std::uint32_t begin = 0; begin < 1u << LogWordsPerThread(sizeof(Word)); begin += together) {
    Word words[together];
    [[maybe_unused]] Word here[together];
    std::int64_t to[together];
    bool inside[together];
#pragma unroll
    for (std::uint32_t i = 0; i < together; ++i) {
      const std::uint32_t item = threadIdx.x + (begin + i) * kThreads;
      const std::uint32_t x = x0 + (item & ((1u << log_width) - 1));
      const std::uint32_t row = row0 + (item >> log_width);
      inside[i] = x < move.width && row < move.height;
      if (inside[i]) {
        const Place at = PlaceOf(batch, move, row);
        to[i] = at.to + x * move.x_to;
        words[i] = Load<Word>(move.source + at.from + x * move.x_from);
        if constexpr (kAdds) here[i] = Load<Word>(move.target + to[i]);
      }
    }
#pragma unroll
    for (std::uint32_t i = 0; i < together; ++i) {
      if (!inside[i]) continue;
      if constexpr (kAdds) words[i] = Sum(here[i], words[i]);
      Store(move.target + to[i], words[i]);
    }
  }
}

template <typename Word>
__device__ void TurnSquare(const Batch& batch, const Move& move, std::uint32_t tile,
                           unsigned char* shared) {
  constexpr std::uint32_t side = SquareSide(sizeof(Word));
  constexpr std::uint32_t lines = kThreads / side;  // moved at a time
  constexpr std::uint32_t together = 1u << LogWordsPerThread(sizeof(Word));
  static_assert(side % (together * lines) == 0);
  constexpr std::size_t pitch = Pitch(sizeof(Word));
  const std::uint32_t across = (move.width + side - 1) / side;
  const std::uint32_t down = (move.height + side - 1) / side;
  const std::uint32_t x0 = tile % across * side;
  const std::uint32_t y0 = tile / across % down * side;
  const Place at = PlaceOf(batch, move, tile / across / down);
  const std::uint32_t lane = threadIdx.x % side;
  const std::uint32_t line = threadIdx.x / side;

  const unsigned char* source = move.source + at.from + (x0 + lane) * move.x_from;
#pragma unroll 1
  for (std::uint32_t first = line; first < side; first += together * lines) {
    Word words[together];
#pragma unroll
    for (std::uint32_t i = 0; i < together; ++i) {
      const std::uint32_t y = y0 + first + i * lines;
      if (x0 + lane < move.width && y < move.height) {
        words[i] = Load<Word>(source + y * move.y_from);
      }
    }
#pragma unroll
    for (std::uint32_t i = 0; i < together; ++i) {
      const std::uint32_t y = first + i * lines;
      if (x0 + lane < move.width && y0 + y < move.height) {
        Store(shared + y * pitch + lane * sizeof(Word), words[i]);
      }
    }
  }
  __syncthreads();  // the square is there

  unsigned char* target = move.target + at.to + std::int64_t{y0 + lane} * sizeof(Word);
#pragma unroll 1
  for (std::uint32_t first = line; first < side; first += together * lines) {
#pragma unroll
    for (std::uint32_t i = 0; i < together; ++i) {
      const std::uint32_t x = first + i * lines;
      if (x0 + x < move.width && y0 + lane < move.height) {
        Store(target + (x0 + x) * move.x_to, Load<Word>(shared + lane * pitch + x * sizeof(Word)));
      }
    }
  }
  __syncthreads();  // and is done with, before the next one
}

// Blocks on a processor: as many as do not make the kernel keep registers in memory. AMD's have
// shared memory for three.
#ifdef __HIP__
constexpr int kBlocks = 3;
#else
constexpr int kBlocks = 4;
#endif

// A kernel for each size of words: one for all would have the registers of all at once.
template <typename Word>
__global__ void __launch_bounds__(kThreads, kBlocks)
    CopyKernel(const __grid_constant__ Batch batch) {
  alignas(16) __shared__ unsigned char shared[SquareBytes(sizeof(Word))];
  int m = 0;
  for (std::uint32_t tile = blockIdx.x; tile < batch.tiles; tile += gridDim.x) {
    while (tile >= batch.moves[m].tiles_end) ++m;
    const Move& move = batch.moves[m];
    if (move.log_width == kSquares) {
      TurnSquare<Word>(batch, move, tile - move.tiles_begin, shared);
    } else {
      MoveRows<Word, false>(batch, move, tile - move.tiles_begin);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AddKernel(const __grid_constant__ Batch batch) {
  int m = 0;
  for (std::uint32_t tile = blockIdx.x; tile < batch.tiles; tile += gridDim.x) {
    while (tile >= batch.moves[m].tiles_end) ++m;
    MoveRows<T, true>(batch, batch.moves[m], tile - batch.moves[m].tiles_begin);
  }
}

// ---- Launching ---------------------------------------------------------------------------------

using Kernel = void (*)(Batch);

int Launch(Kernel kernel, const Batch& batch, StreamHandle stream) {
  int device = 0;
  int processors = 0;
  if (const int code = cudaGetDevice(&device)) return code;
  if (const int code =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) {
    return code;
  }
  const std::int64_t blocks =
      std::min<std::int64_t>(batch.tiles, processors * kBlocksPerProcessor);
  return LaunchBlocks(kernel, blocks, kThreads, stream, batch);
}

Kernel CopyKernelOf(std::int64_t word_bytes) {
  static const Kernel kernels[kWordSizes] = {CopyKernel<std::uint8_t>, CopyKernel<std::uint16_t>,
                                             CopyKernel<std::uint32_t>, CopyKernel<std::uint64_t>,
                                             CopyKernel<uint4>};
  int log = 0;
  while (std::int64_t{1} << log < word_bytes) ++log;
  return kernels[log];
}

// Kernels by Element; sums of integers need not know of signs.
Kernel AddKernelOf(Element element) {
  static const Kernel kernels[] = {
      AddKernel<bool>,          AddKernel<std::uint8_t>,   AddKernel<std::uint16_t>,
      AddKernel<std::uint32_t>, AddKernel<std::uint64_t>,  AddKernel<std::uint8_t>,
      AddKernel<std::uint16_t>, AddKernel<std::uint32_t>,  AddKernel<std::uint64_t>,
      AddKernel<Float16>,       AddKernel<BFloat16>,       AddKernel<float>,
      AddKernel<double>,        AddKernel<Complex<float>>, AddKernel<Complex<double>>};
  constexpr std::size_t count = sizeof kernels / sizeof kernels[0];
  static_assert(count == kElements.size());
  const auto index = static_cast<std::size_t>(element);
  return index < count ? kernels[index] : nullptr;
}

}  // namespace

int CopyBoxes(const BoxCopy* copies, int count, std::int64_t element_bytes, StreamHandle stream) {
  if (element_bytes < 1) return cudaErrorInvalidValue;
  return PlanBoxes(copies, count, element_bytes, Unit::kWords, [stream](const Batch& batch) {
    return Launch(CopyKernelOf(batch.word_bytes), batch, stream);
  });
}

int AddBoxes(const BoxCopy* copies, int count, Element element, StreamHandle stream) {
  const Kernel kernel = AddKernelOf(element);
  if (!kernel) return cudaErrorInvalidValue;
  // One at a time: the next box may add to the same places, and in this order.
  for (int i = 0; i < count; ++i) {
    const int code =
        PlanBoxes(copies + i, 1, InfoOf(element).bytes, Unit::kElements,
                  [kernel, stream](const Batch& batch) { return Launch(kernel, batch, stream); });
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace pfftjax::gpu

// Paint and readout on the host: all rows of a call (cpp/gpu/particle_row.h), one after the other.
#pragma once

#include <cstdint>

#include "gpu/particle_row.h"

namespace pfftjax::gpu {

// Where nobody else adds.
struct Plainly {
  template <typename T>
  static void Add(T* at, T value) {
    *at += value;
  }
  static void AddTwo(float* at, float first, float second) {
    Add(at, first);
    Add(at + 1, second);
  }
  static void AddThree(float* at, float first, float second, float third) {
    AddTwo(at, first, second);
    Add(at + 2, third);
  }
};

inline void RunRows(const ParticleCall& call) {
  WithTypes(call, [&](auto zero, auto points, auto operation) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      ParticleRow<decltype(zero), points>(call, row).template Run<operation>(Plainly{});
    }
  });
}

}  // namespace pfftjax::gpu

// Tests of kernels draw what they work on, and end where something is wrong.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

inline std::mt19937_64 generator(5);

inline std::int64_t Draw(std::int64_t below) {
  return static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(below));
}

inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::exit(1);
}

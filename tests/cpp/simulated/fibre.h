// Fibres: stacks of their own, between which one thread switches.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace pfftjax::simulated {

class Fibre {
 public:
  // Runs `body` when it is first switched to. `body` must not return: it switches away for good.
  explicit Fibre(std::function<void()> body);
  // One that is not finished is abandoned: nothing on its stack is destroyed.
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // From the thread's own stack into this fibre, until that leaves.
  void Enter();
  // From the running fibre back to where it was entered. `is_last`: it will not be entered again.
  static void Leave(bool is_last = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pfftjax::simulated

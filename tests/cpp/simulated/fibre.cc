#include "fibre.h"

#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include <cxxabi.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace pfftjax::simulated {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kStack = std::size_t{512} << 10;
#else
constexpr std::size_t kStack = std::size_t{128} << 10;
#endif
constexpr std::size_t kGuard = std::size_t{64} << 10;  // a page of any kernel

// Stacks are kept for the next fibre: a job makes some hundred, a night a million jobs.
std::vector<char*>& FreeStacks() {
  static auto* free = new std::vector<char*>;
  return *free;
}

char* TakeStack() {
  std::vector<char*>& free = FreeStacks();
  if (!free.empty()) {
    char* stack = free.back();
    free.pop_back();
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stack, kStack);
#endif
    return stack;
  }
  void* memory = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuard, PROT_NONE);
  return static_cast<char*>(memory) + kGuard;
}

// The C++ runtime keeps two words about exceptions that are being handled, which
// belong to a stack and not to the thread.
struct Exceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};
void SwapExceptions(Exceptions& other) {
  auto* mine = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(mine->caught, other.caught);
  std::swap(mine->uncaught, other.uncaught);
}

}  // namespace

struct Fibre::State {
  std::function<void()> body;
  char* stack = nullptr;
  Exceptions exceptions;
#if defined(__x86_64__)
  void* pointer = nullptr;  // of the stack, while it does not run
#else
  ucontext_t context;
#endif
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
#endif
};

namespace {

Fibre* running = nullptr;
#if defined(__x86_64__)
void* thread_pointer = nullptr;
#else
ucontext_t thread_context;
#endif
#ifdef __SANITIZE_ADDRESS__
const void* thread_stack = nullptr;
std::size_t thread_stack_bytes = 0;
#endif

}  // namespace

#if defined(__x86_64__)
// The registers that a callee keeps go to one stack and come from the other.
extern "C" void pfftjax_switch_stacks(void** save, void* load);
asm(R"(
.text
.globl pfftjax_switch_stacks
.type pfftjax_switch_stacks, @function
pfftjax_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pfftjax_switch_stacks, .-pfftjax_switch_stacks
)");
#endif

namespace {

std::function<void()>* starting = nullptr;

void Begin() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &thread_stack, &thread_stack_bytes);
#endif
  (*starting)();
  std::abort();
}

}  // namespace

Fibre::Fibre(std::function<void()> body) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  state_->stack = TakeStack();
#if defined(__x86_64__)
  // As pfftjax_switch_stacks left it: six registers, where to return to, and an unused word in
  // place of a caller's return address, which aligns the stack.
  auto* top = reinterpret_cast<void**>(state_->stack + kStack) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&Begin);
  top -= 6;
  std::memset(top, 0, 6 * sizeof *top);
  state_->pointer = top;
#else
  getcontext(&state_->context);
  state_->context.uc_stack.ss_sp = state_->stack;
  state_->context.uc_stack.ss_size = kStack;
  state_->context.uc_link = nullptr;
  makecontext(&state_->context, &Begin, 0);
#endif
}

Fibre::~Fibre() { FreeStacks().push_back(state_->stack); }

void Fibre::Enter() {
  running = this;
  starting = &state_->body;
  SwapExceptions(state_->exceptions);
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, state_->stack, kStack);
#endif
#if defined(__x86_64__)
  pfftjax_switch_stacks(&thread_pointer, state_->pointer);
#else
  swapcontext(&thread_context, &state_->context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  SwapExceptions(state_->exceptions);
  running = nullptr;
}

void Fibre::Leave(bool is_last) {
  State& state = *running->state_;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(is_last ? nullptr : &state.fake, thread_stack,
                                 thread_stack_bytes);
#else
  static_cast<void>(is_last);
#endif
#if defined(__x86_64__)
  pfftjax_switch_stacks(&state.pointer, thread_pointer);
#else
  swapcontext(&state.context, &thread_context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(state.fake, &thread_stack, &thread_stack_bytes);
#endif
}

}  // namespace pfftjax::simulated

// Ranks as threads of one process, on an MPI made of queues: what ThreadSanitizer sees of the
// shared memory between ranks (node.h), of exchanges that go on in the background (background.h)
// and of those between nodes (collectives/node_exchange.h).
//
// Built and run by tests/jobs/test_threads.py. mmap is wrapped, so that all ranks see the shared
// memory at the same address: accesses at different addresses are never a race for the sanitizer.
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collectives/node_exchange.h"
#include "fake_mpi.h"
#include "runtime/agreement.h"
#include "runtime/background.h"
#include "runtime/node.h"
#include "runtime/window.h"
#include "threads_mpi.h"

extern "C" void* __real_mmap(void*, std::size_t, int, int, int, off_t);  // NOLINT: the linker's
extern "C" int __real_munmap(void*, std::size_t);                        // NOLINT

namespace {

std::mutex map_mutex;
std::map<ino_t, void*> mapped;

}  // namespace

extern "C" void* __wrap_mmap(void* at, std::size_t bytes, int protection, int flags, int file,
                             off_t offset) {
  struct stat status{};
  if (file < 0 || fstat(file, &status) != 0) {
    return __real_mmap(at, bytes, protection, flags, file, offset);
  }
  const std::lock_guard lock(map_mutex);
  void*& base = mapped[status.st_ino];
  if (!base) base = __real_mmap(at, bytes, protection, flags, file, offset);
  return base;
}

extern "C" int __wrap_munmap(void*, std::size_t) { return 0; }  // others still use it

namespace pfftjax {
namespace {

using ranks::Rank;
using ranks::World;

// Returns what rank `from` has for rank `to` in exchange `number`; the same for all where `to` is
// -1.
char Value(int from, int to, std::int64_t number, std::int64_t i) {
  return static_cast<char>(131 * from + 31 * (to + 1) + 7 * number + i + i / 256);
}

void Expect(bool is_right, const std::string& what, int rank, std::int64_t number) {
  pfftjax::Expect(is_right, what + ", on rank " + std::to_string(rank) + " in exchange " +
                                std::to_string(number));
}

struct Exchange {
  std::int64_t block;
  bool is_same_for_all;
};

void Fill(std::vector<char>& send, const Exchange& e, int rank, int size, std::int64_t number) {
  send.resize(static_cast<std::size_t>(e.block * (e.is_same_for_all ? 1 : size)));
  for (std::size_t i = 0; i < send.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const int to = e.is_same_for_all ? -1 : static_cast<int>(at / e.block);
    send[i] = Value(rank, to, number, at % e.block);
  }
}

bool IsRight(const char* recv, const Exchange& e, int rank, int size, std::int64_t number) {
  for (int from = 0; from < size; ++from) {
    for (std::int64_t i = 0; i < e.block; ++i) {
      const char expected = Value(from, e.is_same_for_all ? -1 : rank, number, i);
      if (recv[from * e.block + i] != expected) return false;
    }
  }
  return true;
}

std::vector<Exchange> Plan(int exchanges) {
  std::mt19937 random(1);
  std::vector<Exchange> plan;
  for (int i = 0; i < exchanges; ++i) {
    const std::int64_t most = i % 29 == 0 ? 900'000 : 3000;
    plan.push_back({1 + static_cast<std::int64_t>(random() % most), random() % 2 == 0});
  }
  return plan;
}

void Slots(Communicator& comm, const std::vector<Exchange>& plan) {
  std::mt19937 random(comm.rank);
  Node* node = NodeOf(comm);
  Expect(node != nullptr, "no shared memory", comm.rank, 0);
  std::vector<char> send;
  std::vector<char> recv;
  for (std::size_t n = 0; n < plan.size(); ++n) {
    const auto number = static_cast<std::int64_t>(n);
    Fill(send, plan[n], comm.rank, comm.size, number);
    recv.assign(static_cast<std::size_t>(plan[n].block * comm.size), 0);
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    const auto slots = n % 3 == 0 ? Node::Slots::kThroughCache : Node::Slots::kPastCache;
    const bool is_in_place = !plan[n].is_same_for_all && n % 5 == 0;
    if (is_in_place) recv = send;
    const Node::Blocks blocks{plan[n].block, Element::kU8, plan[n].is_same_for_all};
    const int code =
        node->ThroughSlots(is_in_place ? recv.data() : send.data(), recv.data(), blocks, slots);
    Expect(code == 0, comm.difference, comm.rank, number);
    Expect(IsRight(recv.data(), plan[n], comm.rank, comm.size, number), "shared memory", comm.rank,
           number);
  }
}

// Now and then one rank makes another exchange than the others. All of them find out, and the next
// exchange is right.
void Differences(Communicator& comm, int exchanges) {
  std::mt19937 shared(2);
  std::mt19937 random(comm.rank);
  Node* node = NodeOf(comm);
  const std::int64_t large = (std::int64_t{1} << 20) / comm.size + 5;
  const std::array<std::int64_t, 5> blocks = {0, 7, 1000, 60'000, large};
  std::vector<char> send;
  std::vector<char> recv;
  for (int n = 0; n < exchanges; ++n) {
    const Exchange usual{blocks[shared() % blocks.size()], shared() % 2 == 0};
    const Exchange unusual{blocks[shared() % blocks.size()], shared() % 2 == 0};
    const bool is_unusual =
        shared() % 2 == 0 &&
        (unusual.block != usual.block || unusual.is_same_for_all != usual.is_same_for_all);
    const int odd = static_cast<int>(shared() % comm.size);
    const Exchange& mine = is_unusual && comm.rank == odd ? unusual : usual;
    Fill(send, mine, comm.rank, comm.size, n);
    recv.assign(static_cast<std::size_t>(mine.block * comm.size), 0);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    const auto by_mpi = [&] {
      const Rank& here = At<Rank>(comm.control);
      const auto all = here.world->Gather(comm.rank, send.data(), send.size());
      const std::int64_t own = mine.is_same_for_all ? 0 : comm.rank * mine.block;
      for (int from = 0; from < comm.size; ++from) {
        std::memcpy(recv.data() + from * mine.block,
                    all.data() + from * static_cast<std::int64_t>(send.size()) + own,
                    static_cast<std::size_t>(mine.block));
      }
      return 0;
    };
    const int code = node->Exchange(send.data(), recv.data(),
                                    {mine.block, Element::kU8, mine.is_same_for_all}, by_mpi);
    Expect(code == (is_unusual ? kOtherCall : 0), "a difference", comm.rank, n);
    if (is_unusual) continue;
    Expect(IsRight(recv.data(), mine, comm.rank, comm.size, n), "after differences", comm.rank, n);
  }
}

// All ranks find what each leaves in its part of the window, which grows once. Now and then one of
// them gives up before it begins, and all learn it.
void Windows(Communicator& comm, const std::vector<Exchange>& plan) {
  std::mt19937 random(comm.rank);
  for (std::size_t n = 0; n < plan.size(); ++n) {
    const auto number = static_cast<std::int64_t>(n);
    const std::int64_t bytes = plan[n].block + (n > plan.size() / 2 ? 3'000'000 : 0);
    Window* window = nullptr;
    Expect(WindowOf(comm, bytes, &window) == 0, comm.difference, comm.rank, number);
    Expect(window != nullptr, "no window", comm.rank, number);
    const bool is_given_up = n % 8 == 5;
    Window::Round round(*window, comm);
    if (is_given_up && comm.rank == static_cast<int>(n / 8) % comm.size) continue;
    Expect(round.Begin() == 0, "begin", comm.rank, number);
    char* mine = window->PartOf(comm.rank);
    for (std::int64_t i = 0; i < plan[n].block; ++i) mine[i] = Value(comm.rank, 0, number, i);
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    const auto about = static_cast<std::uint64_t>(2 * plan[n].block + 1);
    round.Publish(about);
    const int code = round.WaitForAll(about);
    Expect(code == (is_given_up ? kOtherCall : 0), comm.difference, comm.rank, number);
    if (is_given_up) continue;
    for (int from = 0; from < comm.size; ++from) {
      const char* theirs = window->PartOf(from);
      bool is_right = true;
      for (std::int64_t i = 0; i < plan[n].block; ++i) {
        is_right &= theirs[i] == Value(from, 0, number, i);
      }
      Expect(is_right, "window", comm.rank, number);
    }
  }
}

void Background(Communicator& comm, const std::vector<Exchange>& plan) {
  std::vector<char> send;
  for (std::size_t n = 0; n < plan.size(); ++n) {
    const auto number = static_cast<std::int64_t>(n);
    const auto about = static_cast<std::int64_t>(plan[n].block);
    Fill(send, plan[n], comm.rank, comm.size, number);
    auto started = std::make_shared<Pending>(comm.number, about, send.size(),
                                             static_cast<std::size_t>(plan[n].block * comm.size));
    std::memcpy(started->outgoing.data(), send.data(), send.size());
    Expect(started->Post(comm, plan[n].block, plan[n].is_same_for_all) == 0, "post", comm.rank,
           number);
    const std::int64_t ticket = Add(std::move(started));
    Expect(!Take(ticket, comm.number, about + 1), "a ticket for something else", comm.rank,
           number);
    const auto taken = Take(ticket, comm.number, about);
    Expect(taken && !Take(ticket, comm.number, about), "a ticket taken twice", comm.rank, number);
    while (!taken->Test()) std::this_thread::yield();
    Expect(taken->code() == 0, "background", comm.rank, number);
    const std::int64_t own = comm.rank * plan[n].block;
    std::memcpy(taken->incoming.data() + own,
                taken->outgoing.data() + (plan[n].is_same_for_all ? 0 : own),
                static_cast<std::size_t>(plan[n].block));
    Expect(IsRight(taken->incoming.data(), plan[n], comm.rank, comm.size, number), "background",
           comm.rank, number);
  }
}

// A stream that goes before its messages are through leaves its memory to them.
void Abandoned(Communicator& comm) {
  constexpr std::int64_t kBlock = 50'000'000;  // larger than any spare memory
  char* memory = nullptr;
  {
    Pending pending(comm.number, 0, 1, static_cast<std::size_t>(kBlock * comm.size));
    memory = pending.incoming.data();
    Expect(pending.Post(comm, 1, true) == 0, "post", comm.rank, 0);
  }
  const MessageMemory next(static_cast<std::size_t>(kBlock * comm.size));
  Expect(next.data() != memory, "memory of messages that are on their way", comm.rank, 0);
}

// An exchange n is cut into so many pieces, some of which some ranks have nothing of.
int PiecesOf(int n) { return 1 + n % 3; }

// Exchanges between nodes, with blocks of all sizes; now and then one rank gives up, before its
// first piece or after it, and all learn it. Bytes are as large as the chunks of messages, and
// larger.
void BetweenNodes(Communicator& comm, const std::vector<int>& first_on_node, int exchanges) {
  const Nodes nodes(first_on_node);
  const auto cut = [&](int pieces) {
    NodeExchange::Pieces moved;
    for (int piece = 0; piece < pieces; ++piece) {
      Volume volume{comm.size + 2, 2 * comm.size - 1, 50};
      (pieces == 2 ? volume.gathered_piece : volume.scattered_piece) = {piece, pieces};
      moved.push_back({volume, volume.Most(comm.size)});
    }
    return moved;
  };
  const auto window = Window::Make(comm, nodes, 3 * NodeExchange::WindowBytes(nodes, cut(1)));
  Expect(window != nullptr, "no window", comm.rank, 0);
  for (int n = 0; n < exchanges; ++n) {
    const bool fails = n % 4 == 3 && comm.rank == n / 4 % comm.size;
    const NodeExchange::Pieces pieces = cut(PiecesOf(n));
    const auto count = static_cast<int>(pieces.size());
    NodeExchange exchange(comm, *window, nodes, pieces);
    Expect(exchange.Begin() == 0, "begin", comm.rank, n);
    // Now and then one call lets several pieces go, or awaits them.
    const auto is_called = [&](int piece) {
      return n / 4 % 2 == 0 || piece % 2 == 1 || piece + 1 == count;
    };
    bool has_given_up = false;
    for (int piece = 0; piece < count && !has_given_up; ++piece) {
      for (int to = 0; to < comm.size; ++to) {
        if (to == comm.rank) continue;
        const std::int64_t bytes = pieces[piece].volume.Between(comm.rank, to, comm.size);
        char* const at = exchange.To(to, piece);
        for (std::int64_t i = 0; i < bytes; ++i) at[i] = Value(comm.rank, to, n + piece, i);
      }
      has_given_up = fails && piece == count / 2;
      if (has_given_up) break;
      if (!is_called(piece)) continue;
      Expect(exchange.Send(piece) == 0, comm.difference, comm.rank, n);
      Expect(exchange.Advance() == 0, "advance", comm.rank, n);
    }
    if (has_given_up) continue;
    int code = 0;
    for (int piece = 0; piece < count && code == 0; ++piece) {
      int awaited = piece;
      while (!is_called(awaited)) ++awaited;
      code = exchange.Arrive(awaited);
      for (int from = 0; from < comm.size && code == 0; ++from) {
        if (from == comm.rank) continue;
        bool is_right = true;
        const std::int64_t bytes = pieces[piece].volume.Between(from, comm.rank, comm.size);
        for (std::int64_t i = 0; i < bytes; ++i) {
          is_right &= exchange.From(from, piece)[i] == Value(from, comm.rank, n + piece, i);
        }
        Expect(is_right, "between nodes", comm.rank, n);
      }
    }
    Expect(code == (n % 4 == 3 ? kOtherCall : 0), "between nodes: " + comm.difference, comm.rank,
           n);
  }
}

// body(communicator) on each of so many threads; how many messages they have sent.
template <typename Body>
int OnRanks(int ranks, Body&& body) {
  World world(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&world, &body, rank, ranks] {
      Rank here{&world, rank};
      Communicator comm;
      comm.number = rank;
      comm.rank = rank;
      comm.size = ranks;
      comm.control = HandleOf(&here);
      body(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world.messages;
}

// One message for each piece and rank from each other node, however many chunks these have.
void RunNodes(const std::vector<int>& first_on_node, int exchanges) {
  const auto ranks = static_cast<int>(first_on_node.size());
  const int sent =
      OnRanks(ranks, [&](Communicator& comm) { BetweenNodes(comm, first_on_node, exchanges); });
  int expected = 0;
  for (int n = 0; n < exchanges; ++n) {
    expected += PiecesOf(n) * ranks * (Nodes(first_on_node).count() - 1);
  }
  pfftjax::Expect(sent == expected,
                  std::to_string(sent) + " messages in place of " + std::to_string(expected));
}

void Run(int ranks, int exchanges) {
  const std::vector<Exchange> plan = Plan(exchanges);
  OnRanks(ranks, [&](Communicator& comm) {
    Slots(comm, plan);
    Differences(comm, static_cast<int>(plan.size()) / 2);
    Windows(comm, plan);
    Background(comm, plan);
    if (comm.rank == 0) Abandoned(comm);
  });
}

// Transforms share memory among more ranks than have slots.
void RunMany(int ranks) {
  const std::vector<Exchange> plan = {{2000, true}, {100, true}, {5000, true}};
  OnRanks(ranks, [&](Communicator& comm) {
    Expect(NodeOf(comm) == nullptr, "slots for very many ranks", comm.rank, 0);
    Expect(SharesMemory(comm), "no memory for very many ranks", comm.rank, 0);
    Windows(comm, plan);
  });
}

}  // namespace

// In place of communicator.cc and agreement.cc, which know an MPI library.
const MpiApi* Mpi() { return ranks::FakeMpi(); }
std::uint64_t Hash(const void*, std::size_t size) { return size; }

}  // namespace pfftjax

int main(int count, char** arguments) {
  const int exchanges = count > 1 ? std::atoi(arguments[1]) : 100;
  for (int ranks = 2; ranks <= 4; ++ranks) pfftjax::Run(ranks, exchanges);
  pfftjax::RunMany(pfftjax::kMostRanksWithSlots + 2);
  for (const std::vector<int>& first_on_node : std::vector<std::vector<int>>{
           {0, 0, 2, 2}, {0, 1, 0, 1}, {0, 1, 1, 1}, {0, 0, 2, 0, 2, 5}, {0, 1, 2}, {0, 0}}) {
    pfftjax::RunNodes(first_on_node, exchanges);
  }
  pfftjax::StopBackground();
  std::puts("all data right");
}

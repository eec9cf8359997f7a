// Circles of ranks that wait for each other (deadlock.cc): which are seen, and which waits look
// like one and are none. Built and run by tests/jobs/test_threads.py.
#include "runtime/deadlock.h"

#include <cstdio>
#include <vector>

namespace {

using namespace pfftjax;  // NOLINT: of what is tested

int failures = 0;

Wait Message(Operation operation, int source, int dest, std::int64_t passed = 0) {
  return {Stage::kRunning, operation, 7, passed, source, dest};
}
Wait Recv(int source, std::int64_t passed = 0) {
  return Message(Operation::kRecv, source, kNobody, passed);
}
Wait Send(int dest) { return Message(Operation::kSend, kNobody, dest); }
Wait Sendrecv(int source, int dest) { return Message(Operation::kSendrecv, source, dest); }
Wait Tagged(Wait message, int send_tag, int recv_tag) {
  message.send_tag = send_tag;
  message.recv_tag = recv_tag;
  return message;
}
Wait Left(Wait message, std::int64_t ended) {
  message.awaited = message.awaited.Without(ended);
  return message;
}
constexpr auto kSent = Awaited::kSendEnded;
constexpr auto kReceived = Awaited::kReceiveEnded;
Wait In(Operation operation, std::int64_t passed = 1) {
  return {Stage::kRunning, operation, 7, passed, kNobody, kNobody};
}
Wait Checking(std::int64_t passed) {
  return {Stage::kChecking, Operation::kBcast, 7, passed, kNobody, kNobody};
}

// The ranks from `outside` on are not part of the circle.
void Expect(const char* what, const std::vector<Wait>& waits, bool is_circle, int answers = 3,
            std::size_t outside = 99) {
  for (std::size_t self = 0; self < waits.size(); ++self) {
    Deadlock deadlock;
    for (int time = 0; time < answers; ++time) {
      for (std::size_t rank = 0; rank < waits.size(); ++rank) {
        if (rank != self) deadlock.Hear(static_cast<int>(rank), waits[rank], true, time);
      }
    }
    const auto circle = deadlock.Circle(static_cast<int>(self), waits[self], 3);
    if (circle.empty() != (is_circle && self < outside)) continue;
    ++failures;
    std::printf("%s: %s on rank %zu\n", what, is_circle ? "not seen" : "seen", self);
  }
}

}  // namespace

int main() {
  const Wait idle;
  Expect("two receives", {Recv(1), Recv(0)}, true);
  Expect("two answers are too few", {Recv(1), Recv(0)}, false, 2);
  Expect("two sends", {Send(1), Send(0)}, true);
  Expect("a ring of receives", {Recv(3), Recv(0), Recv(1), Recv(2)}, true);
  Expect("a ring of exchanges", {Sendrecv(2, 1), Sendrecv(0, 2), Sendrecv(1, 0)}, false);
  Expect("a message under way", {Send(1), Recv(0)}, false);
  Expect("a receive from anybody takes it", {Send(1), Recv(kAnybody)}, false);
  Expect("a tag that nobody receives", {Tagged(Send(1), 1, kAnyTag), Tagged(Recv(0), 0, 2)}, true);
  Expect("the tag that is received", {Tagged(Send(1), 2, kAnyTag), Tagged(Recv(0), 0, 2)}, false);
  Expect("a receive of any tag", {Tagged(Send(1), 1, kAnyTag), Recv(0)}, false);
  Expect("both halves with other tags",
         {Tagged(Sendrecv(1, 1), 1, 2), Tagged(Sendrecv(0, 0), 3, 4)}, true);
  const Wait fits = Tagged(Sendrecv(1, 1), 1, 2);
  const Wait misses = Tagged(Sendrecv(0, 0), 3, 1);
  Expect("one half with another tag, while the other is under way", {fits, misses}, true);
  Expect("one half with another tag", {Left(fits, kSent), Left(misses, kReceived)}, true);
  Expect("one half with another tag, which has been sent",
         {Left(fits, kSent), Left(misses, kSent)}, false);
  Expect("both halves with a rank that does neither", {Sendrecv(1, 1), Recv(0)}, false);
  Expect("both halves with a rank in a collective", {Sendrecv(1, 1), In(Operation::kAlltoall)},
         true);
  Expect("a chain to a rank that computes", {Recv(1), Recv(2), idle}, false);
  Expect("a receive and a collective", {In(Operation::kAllreduce), Recv(0)}, true);
  Expect("a receive and the check before one", {Checking(0), Recv(0)}, true);
  Expect("a receive after the collective", {In(Operation::kAllreduce), Recv(0, 1)}, false);
  // A rank may leave these before all have come to them, and then send.
  Expect("a receive and a bcast", {In(Operation::kBcast), Recv(0)}, false);
  Expect("a receive and a scan", {In(Operation::kScan), Recv(0)}, false);
  Wait ahead = Tagged(Sendrecv(1, 1), 2, 1);
  ahead.awaited = Awaited::Piece(1, false, true);
  const Wait behind = Left(Tagged(Sendrecv(0, 0), 1, 1), kSent);
  Expect("the second piece of one who waits in the first", {ahead, behind}, true);
  ahead.send_tag = 1;
  Expect("the second piece of one whose first is under way", {ahead, behind}, false);
  Expect("an exchange with two partners", {Sendrecv(1, 2), Recv(0), idle}, true, 3, 2);
  Expect("an exchange with one that waits and one that computes",
         {Left(Sendrecv(1, 2), kReceived), Recv(0), idle}, false);
  Expect("a ring in which one waits with another tag",
         {Left(Tagged(Sendrecv(2, 1), 9, 1), kReceived), Left(Tagged(Sendrecv(0, 2), 1, 1), kSent),
          Recv(0)},
         true, 3, 2);

  Deadlock deadlock;
  for (int time = 0; time < 3; ++time) {
    Wait moved = Recv(0);
    moved.entered = time;
    deadlock.Hear(1, moved, true, time);
  }
  if (!deadlock.Circle(0, Recv(1), 2).empty()) {
    ++failures;
    std::printf("a rank that goes on is taken for one that waits\n");
  }

  Deadlock pieces;
  for (int time = 0; time < 3; ++time) {
    Wait moved = Recv(0);
    moved.awaited = Awaited::Piece(time, false, true);
    pieces.Hear(1, moved, true, time);
  }
  if (!pieces.Circle(0, Recv(1), 2).empty()) {
    ++failures;
    std::printf("a message that goes on is taken for one that waits\n");
  }

  Deadlock at_once;
  for (int time = 0; time < 5; ++time) at_once.Hear(1, Recv(0), time == 0, time);
  if (!at_once.Circle(0, Recv(1), 2).empty()) {
    ++failures;
    std::printf("answers to questions asked at once count as answers in a row\n");
  }

  // Many ways through the same ranks, none of which leads back: each is followed once.
  constexpr int kPairs = 24;
  Deadlock many;
  for (int time = 0; time < 3; ++time) {
    for (int pair = 1; pair <= kPairs; ++pair) {
      many.Hear(pair, Recv(kPairs + pair), true, time);
      many.Hear(kPairs + pair, In(Operation::kAllreduce), true, time);
    }
  }
  if (!many.Circle(0, In(Operation::kAllreduce), 3).empty()) {
    ++failures;
    std::printf("a circle of others is taken for one of this rank\n");
  }

  // Rank 1 has said that it waits for rank 2 until it was stopped; rank 2 may have sent to it, and
  // has come to its receive since.
  Deadlock stopped;
  for (int round = 0; round < 8; ++round) {
    if (round < 4 || round == 7) stopped.Hear(1, Recv(2), true, round);
    if (round >= 4) stopped.Hear(2, Recv(0), true, round);
    if (round == 7 && !stopped.Circle(0, Recv(1), 3).empty()) {
      ++failures;
      std::printf("what a rank said before the last of a circle came counts\n");
    }
  }
  stopped.Hear(1, Recv(2), true, 8);
  stopped.Hear(1, Recv(2), true, 9);
  if (stopped.Circle(0, Recv(1), 3).size() != 3) {
    ++failures;
    std::printf("a circle of which one came late is not seen\n");
  }
  if (failures == 0) std::printf("all right\n");
  return failures;
}

"""Faults planted in the C++ core, each of which the simulated MPI must find.

    python -m tools.simulate --faults [words of their names] [--seeds 20000]

prints how many schedules it took to find each, and how it showed.
"""

import concurrent.futures
import dataclasses
import pathlib
import shutil
import subprocess
import tempfile

from tools import simulate
from tools.launcher import ROOT


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old` in `file` of cpp/ becomes `new`."""

    what: str
    file: str
    old: str
    new: str


FAULTS = [
    Fault(
        "the watch still asks MPI when MPI_Finalize begins",
        "runtime/departure.cc",
        "  StopWatch();\n",
        "",
    ),
    Fault(
        "a process of several threads is taken to make its calls one after the other",
        "runtime/crossing.cc",
        "return has_threads->load();",
        "return false;",
    ),
    Fault(
        "the half of a message that has ended is taken to wait for its partner",
        "collectives/messages.cc",
        "{Waits::HalfEnded, &waits}",
        "{}",
    ),
    Fault(
        "rows that stay take the places of those that leave before these are packed",
        "pm/route.cc",
        "    const std::vector<Packed> leaving = Pack();\n    Stay();\n",
        "    Stay();\n    const std::vector<Packed> leaving = Pack();\n",
    ),
    Fault(
        "rows that stay beyond the last row in use are left there",
        "pm/way.h",
        "if (kept < run.count) beyond.push_back",
        "if (false) beyond.push_back",
    ),
    # These mistakes were in the core once.
    Fault(
        "a rank that has left its program is taken to make no calls any more",
        "runtime/departure.cc",
        "  if (!departure.completed) ++*completed_departures;\n",
        "",
    ),
    Fault(
        "a call in its check is taken for one that a leaving rank never makes",
        "runtime/watch.cc",
        "there.IsLeaving() && there.Wanted() < wanted",
        "there.IsLeaving() && there.passed < wanted",
    ),
    Fault(
        "the time for which a job is stopped counts as waiting",
        "base/stepped_clock.h",
        "std::min(std::chrono::duration<double>(now - last_).count(), longest_)",
        "std::chrono::duration<double>(now - last_).count()",
    ),
    Fault(
        "nobody asks why the duplicates of a communicator are not made",
        "runtime/gathering.cc",
        "if (gathering.inquiry.IsTimeToAsk(gathering.waited, is_urgent)) Ask(comm, gathering);",
        "",
    ),
    Fault(
        "who came to a communicator's first collective and has ended is taken for one that never "
        "came",
        "runtime/gathering.cc",
        "const bool has_come = answer.begun >= CountBegun(comm->group);",
        "const bool has_come = false;",
    ),
    Fault(
        "what a rank said before the last of a circle came to its call counts",
        "runtime/deadlock.cc",
        "rounds[rounds.size() - evidence.times] < evidence.since",
        "false",
    ),
    Fault(
        "a rank whose duplicates are late is taken for one on another communicator",
        "runtime/gathering.cc",
        "!answer.waits_for_asker || answer.begun != CountBegun(comm->group)",
        "!answer.waits_for_asker",
    ),
    Fault(
        "sizes: who waits for rank 0's choice does not see that it has made none",
        "runtime/node.cc",
        "is_made() || note.round.load(std::memory_order_acquire) == round",
        "is_made()",
    ),
    Fault(
        "sizes: a round is left before all ranks have come to it",
        "runtime/node.cc",
        "      result = kOtherCall;\n",
        "      return kOtherCall;\n",
    ),
    Fault(
        "sizes: those of an exchange that goes by MPI are not compared",
        "runtime/node.h",
        "(code = Compare(blocks)) == 0",
        "true",
    ),
    Fault(
        "what ranks mean in one operation is not compared",
        "runtime/watch.cc",
        "if (here.passed == there.passed) return are_equal(here.latest, there.latest);",
        "if (here.passed == there.passed) return here.operation == there.operation;",
    ),
    Fault(
        "who has come out of a comparison is evidence against the one that it was made with",
        "runtime/watch.cc",
        " && there.checks < here.checks",
        "",
    ),
    Fault(
        "answers count that are not apart in time",
        "runtime/watch.cc",
        "      times = why.empty() ? 0 : times + is_later;\n"
        "      if (times > 0 && is_later) inquiry.Postpone(now_ - watched.since);\n",
        "      times = why.empty() ? 0 : times + 1;\n",
    ),
    Fault(
        "calls in several pieces that were matched by other calls are not compared",
        "runtime/watch.cc",
        "here.InCollective() && !HaveMadeTheSame(here, there)",
        "here.InCollective() && false",
    ),
    Fault(
        "a collective that has failed and was caught is evidence against the next",
        "runtime/call.cc",
        "if (has_passed_ && !has_succeeded_) {",
        "if (false) {",
    ),
    # Memory order, and who may write what when.
    Fault(
        "a slot is read without acquiring it",
        "runtime/node.cc",
        "comm_, [&] { return note.round.load(std::memory_order_acquire) == round; }",
        "comm_, [&] { return note.round.load(std::memory_order_relaxed) == round; }",
    ),
    Fault(
        "a slot is filled and not released",
        "runtime/node.cc",
        "      note.round.store(round, std::memory_order_release);\n    }\n\n",
        "      note.round.store(round, std::memory_order_relaxed);\n    }\n\n",
    ),
    Fault("a rank has one slot", "runtime/node.cc", "kSlots = 2;", "kSlots = 1;"),
    Fault(
        "a window is written while others read it",
        "runtime/window.cc",
        "load(std::memory_order_acquire) < round - 1)",
        "load(std::memory_order_acquire) < round - 99)",
    ),
    Fault(
        "a part of a window is published and not released",
        "runtime/window.cc",
        "mine.written.store(Mark(piece), std::memory_order_release)",
        "mine.written.store(Mark(piece), std::memory_order_relaxed)",
    ),
    Fault(
        "a part of a window is read, and the reading not released",
        "runtime/window.cc",
        "read.store(window_.round_, std::memory_order_release)",
        "read.store(window_.round_, std::memory_order_relaxed)",
    ),
    Fault(
        "older values: what a call does is told and not released",
        "runtime/call.cc",
        "progress.operation.store(site_.operation, std::memory_order_release)",
        "progress.operation.store(site_.operation, std::memory_order_relaxed)",
    ),
    Fault(
        "older values: a call is counted and that not released",
        "runtime/call.cc",
        "progress.entered.store(progress.entered.load(std::memory_order_relaxed) + 1,\n"
        "                         std::memory_order_release)",
        "progress.entered.store(progress.entered.load(std::memory_order_relaxed) + 1,\n"
        "                         std::memory_order_relaxed)",
    ),
    Fault(
        "older values: a call begins and that is not released",
        "runtime/call.cc",
        "progress.stage.store(IsPointToPoint() ? Stage::kRunning : Stage::kChecking,\n"
        "                       std::memory_order_release)",
        "progress.stage.store(IsPointToPoint() ? Stage::kRunning : Stage::kChecking,\n"
        "                       std::memory_order_relaxed)",
    ),
    Fault(
        "older values: that MPI is finalized is released only",
        "runtime/departure.cc",
        "*finalized = true;",
        "finalized->store(true, std::memory_order_release);",
    ),
    Fault(
        "parts of a window for other ranks overlap",
        "pencils/stream.cc",
        "{ return dest < source ? dest : dest - 1; }",
        "{ return dest < source ? dest : 0; }",
    ),
    Fault(
        "a node's parcels are sent before all of its ranks have left theirs",
        "collectives/node_exchange.cc",
        "here_ = round_.WaitForAll(MeaningOf(comm_), PublishedAs(ready_));",
        "here_ = 0;",
    ),
    Fault(
        "parcels for another node are written over while they are sent",
        "collectives/node_exchange.cc",
        "while (incoming_.done < receives || outgoing_.done < sends)",
        "while (incoming_.done < receives)",
    ),
    # Waiting.
    Fault(
        "a lost wake-up: the progress thread is not told to end",
        "runtime/background.cc",
        "    wake_.notify_all();\n",
        "",
    ),
    Fault(
        "with a full window of receives nobody looks whether a send is through",
        "pencils/stream.cc",
        "sent_done < sent ? &sends",
        "sent_done < sent && received_done == received ? &sends",
    ),
    # Data.
    Fault(
        "a buffer is used again while its piece is on its way",
        "pencils/stream.cc",
        "const int slot = static_cast<int>(sent++ % kInFlight);",
        "const int slot = 0 * static_cast<int>(sent++ % kInFlight);",
    ),
    Fault(
        "ghosts from at most one turn around the axis",
        "pencils/halo.h",
        "owned.start + shift < end; shift += n)",
        "owned.start + shift < end && shift == n; shift += n)",
    ),
    Fault(
        "halos overwrite where they should add",
        "pencils/pencils.cc",
        "kToGhosts ? Arrival::kStore : Arrival::kSum",
        "Arrival::kStore",
    ),
    Fault(
        "a chunk starts where the last one did",
        "collectives/exchange.h",
        "At(send, sent > 0 ? offset : 0, element), sent",
        "At(send, 0, element), sent",
    ),
    Fault(
        "a ticket is taken by whatever comes with it",
        "runtime/background.cc",
        " || found->second->comm != comm || found->second->about != about",
        "",
    ),
    Fault(
        "particles stay outside of a box that goes round",
        "pm/coordinate.h",
        "return rest < 0 ? rest + n : rest;",
        "return rest < 0 ? rest + n - 1 : rest;",
    ),
    # Agreement, the watch and the way out.
    Fault(
        "overflow is not noticed",
        "collectives/rows.cc",
        "if (all[kTooMany]) {",
        "if (false) {",
    ),
    Fault(
        "ranks that differ are found by those that have the smaller hash only",
        "runtime/agreement.cc",
        "most[0] == ~most[1]",
        "most[0] == hash",
    ),
    Fault(
        "two threads are let into one communicator",
        "runtime/call.cc",
        "if (comm->busy.exchange(true)) {",
        "if (comm->busy.exchange(true) && false) {",
    ),
    Fault(
        "nobody says that a rank has ended",
        "runtime/departure.cc",
        "  ++*announced_departures;\n",
        "",
    ),
    Fault(
        "the way out does not wait for calls under way",
        "runtime/departure.cc",
        "if (comm && comm->busy) return comm;",
        "",
    ),
    Fault(
        "the watch believes a single answer", "runtime/inquiry.h", "kRounds = 2;", "kRounds = 1;"
    ),
    Fault(
        "partners of a sendrecv of all ranks are not compared",
        "collectives/messages.h",
        "if (sum == 0) return",
        "return",
    ),
]


def planted(fault, folder, objects, flags):
    """The program with the fault; objects that are not touched by it are those of the core."""
    core = folder / "cpp"
    shutil.copytree(ROOT / "cpp", core)
    file = core / fault.file
    text = file.read_text()
    if fault.old not in text:
        return None
    file.write_text(text.replace(fault.old, fault.new))
    everything = [core / f"{name}.cc" for name in simulate.CORE]
    everything += sorted(simulate.SIMULATED.glob("*.cc"))
    changed = [file] if file.suffix == ".cc" else everything
    fresh = simulate.compile_all(folder, changed, core, flags, 1)
    names = {target.name for target in fresh}
    kept = [target for target in objects.glob("*.o") if target.name not in names]
    return simulate.link(folder / "simulated", [*kept, *fresh], flags)


def hunt(fault, objects, flags, seeds):
    """A line of the table, and whether the fault was found."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            program = planted(fault, folder, objects, flags)
        except subprocess.CalledProcessError:
            return "cannot be compiled", False
        if program is None:
            return "STALE: the text is not there", False
        outcome = simulate.run(program, 0, seeds, "--most-failures", "1", seconds=900)
    if not outcome.failures:
        return f"NOT FOUND in {outcome.done} schedules", False
    first = outcome.failures[0].split("\n")[0]
    return f"{outcome.done or '?'} schedules: {first[:150]}", True


def table(words, seeds, jobs):
    """Prints what became of each; whether all were found."""
    simulate.build(jobs=jobs)
    objects = ROOT / "build" / "simulated"
    flags = simulate.options(None)
    wanted = [fault for fault in FAULTS if all(word in fault.what for word in words)]
    found = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for fault, (line, is_found) in zip(
            wanted,
            pool.map(lambda fault: hunt(fault, objects, flags, seeds), wanted),
            strict=True,
        ):
            print(f"{fault.what}\n    {line}", flush=True)
            found += is_found
    print(f"{found} of {len(wanted)} faults found")
    return found == len(wanted)

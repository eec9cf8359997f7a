"""The clock of the simulated MPI (tools/simulated_clock.py), where formulas say what it shows."""

import dataclasses
import math

import pytest

from tools import simulate, simulated_clock
from tools.simulated_clock import Case, Machine

pytestmark = pytest.mark.timeout(600)
# Nanoseconds; copies take no time, but where a test is about them.
MACHINE = Machine(
    latency=1000,
    overhead=100,
    gap=30,
    rate=10,
    latency_in_node=200,
    overhead_in_node=50,
    core_rate=1e9,
    memory_rate=1e9,
    cache=1e18,
    eager=8192,
)
LATENCY = MACHINE.overhead + MACHINE.latency + MACHINE.overhead


@pytest.fixture(scope="module")
def nanoseconds():
    program = simulate.build()

    def measure(case, **changes):
        machine = dataclasses.replace(MACHINE, **changes)
        return round(1e9 * simulated_clock.run(program, machine, case)["seconds"])

    return measure


def test_one_message(nanoseconds):
    """Short: o + L + nG + o. Long: a request and its answer before it."""
    assert nanoseconds(Case("message", 1000, 2, 1)) == LATENCY + 100
    assert nanoseconds(Case("message", 10, 2, 1)) == LATENCY + 30  # the gap
    long = 100_000
    assert nanoseconds(Case("message", long, 2, 1)) == LATENCY + 2 * 1000 + 30 + long / 10
    # The kernel copies: the sender reads, and the receiver writes.
    by_cores = nanoseconds(Case("message", long, 2, 1), copies=1, core_rate=20)
    assert by_cores == LATENCY + 2 * 1000 + 30 + long / 10 + 2 * long / 20


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_messages_through_one_link(nanoseconds, ranks):
    """One after the other, out of a node and into the next: o + P nG + L + o."""
    case = Case("link", 1000, 2, ranks)
    assert nanoseconds(case) == LATENCY + ranks * 100
    assert nanoseconds(case, gap=300) == LATENCY + ranks * 300
    # A clock that leaves congestion out would not pass.
    assert nanoseconds(case, congestion=0) == LATENCY + 100


@pytest.mark.parametrize("nodes", [3, 9])
def test_messages_to_one_node(nanoseconds, nodes):
    """They come at one time, and go through its link one after the other."""
    case = Case("incast", 1000, nodes, 1)
    assert nanoseconds(case, overhead=0) == 1000 + (nodes - 1) * 100
    assert nanoseconds(case, overhead=0, congestion=0) == 1000 + 100


@pytest.mark.parametrize("nodes", [2, 16, 64])
def test_collectives(nanoseconds, nodes):
    """log2(P) rounds of recursive doubling, and of dissemination."""
    rounds = math.ceil(math.log2(nodes))
    assert nanoseconds(Case("allreduce", 800, nodes, 1)) == rounds * (LATENCY + 80)
    assert nanoseconds(Case("barrier", 0, nodes, 1)) == rounds * (LATENCY + 30)


def test_blocks_of_all_ranks(nanoseconds):
    """Messages of 1, 2, 4 and 8 blocks by doubling, and of 8, 4, 2 and 1 by halving."""
    expected = sum(LATENCY + blocks * 400 / 10 for blocks in (1, 2, 4, 8))
    assert nanoseconds(Case("allgather", 400, 16, 1)) == expected
    assert nanoseconds(Case("reduce_scatter", 400, 16, 1)) == expected


def test_a_long_allreduce(nanoseconds):
    """Rabenseifner: halves, quarters, ... and back, of which each is short."""
    n, nodes = 16_384, 8
    halves = [n // 2, n // 4, n // 8]
    expected = sum(2 * (LATENCY + half / 10) for half in halves)
    assert nanoseconds(Case("allreduce", n, nodes, 1)) == pytest.approx(expected, abs=6)


def test_a_ring(nanoseconds):
    """One message out of each node, and one in, whatever goes on within the nodes."""
    assert nanoseconds(Case("ring", 1000, 5, 1)) == LATENCY + 100
    assert nanoseconds(Case("ring", 1000, 5, 4)) == LATENCY + 100


@pytest.mark.parametrize("ranks", [2, 16])
def test_memory_is_shared(nanoseconds, ranks):
    """Each receiver reads and writes n bytes, as fast as its core, or its part of memory, is."""
    case, n = Case("ring", 100_000, 1, ranks), 100_000
    alone = 50 + 200 + 50
    assert nanoseconds(case, cache=0, memory_rate=40) == alone + ranks * 2 * n / 40
    assert nanoseconds(case, cache=0, memory_rate=4000, core_rate=20) == alone + 2 * n / 20


def test_messages_are_counted():
    """In a transposition each rank sends one to each other one, long or short."""
    program = simulate.build()
    for eager in (0, 1e9):
        machine = dataclasses.replace(MACHINE, eager=eager)
        case = Case("transpose", 16, 2, 2, "MESSAGES", "4x1", 0)
        found = simulated_clock.run(program, machine, case)
        assert found["messages_between_nodes"] == 4 * 2
        assert found["bytes_between_nodes"] == 16**3 * 8 // 2


def test_alltoall_of_few_bytes_is_short(nanoseconds):
    """Bruck: log2(P) messages of P / 2 blocks, where P - 1 messages would take longer."""
    nodes, block = 16, 200
    expected = 4 * (LATENCY + nodes / 2 * block / 10)
    assert nanoseconds(Case("alltoall", block, nodes, 1)) == expected


@pytest.mark.parametrize("method", ["MESSAGES", "ALLTOALL"])
def test_a_transpose_takes_as_long_as_its_links(nanoseconds, method):
    """All ranks of 4 nodes send 3/4 of what they have, more than the links can take at once."""
    n, nodes, ranks = 32, 4, 4
    case = Case("transpose", n, nodes, ranks, method, "16x1", 0)
    on_the_links = n**3 * 8 / nodes * 3 / 4 / 10
    assert on_the_links < nanoseconds(case, eager=1 << 20) < 1.4 * on_the_links


def test_the_same_run_takes_the_same_time(nanoseconds):
    case = Case("transpose", 16, 2, 4, "MESSAGES", "2x4", 1)
    assert nanoseconds(case) == nanoseconds(case)


def test_what_does_not_exist_is_refused():
    program = simulate.build()
    for case, why in (
        (Case("alltoal", 8, 2, 1), "there is no alltoal"),
        (Case("transpose", 8, 2, 1, "MESAGES", "2x1", 0), "there is no method MESAGES"),
        (Case("transpose", 8, 2, 1, "MESSAGES", "4x1", 0), "the grid has not as many ranks"),
    ):
        with pytest.raises(RuntimeError, match=why):
            simulated_clock.run(program, MACHINE, case)

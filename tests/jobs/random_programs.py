"""Random programs of mixed collectives, against a model in NumPy.

    mpirun -n 3 python -m tests.jobs.random_programs --operations 10000 --seed 0

Every rank draws the same programs and the data of all ranks, so the expected values come without
communication. The data are small integers in every dtype: all results are exact, whatever the
order of additions, and are compared to the last bit. Programs are compiled once and run many
times; memory must not grow while compiled programs are run.
"""

import argparse
import dataclasses
import functools
import operator
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import CONTROL, DTYPES, FLOATS, RANK, SIZE

TAILS = ((), (1,), (3,), (2, 3), (0,), (2, 0), (5, 1))
STATEMENTS = 25
BYTES_THAT_MAY_COME = 16 << 20


@dataclasses.dataclass(frozen=True)
class Group:
    """A communicator, and the world's ranks in each of its parts in their order there."""

    comm: MPI.Comm
    parts: tuple[tuple[int, ...], ...]

    @property
    def members(self):
        return next(part for part in self.parts if RANK in part)


def groups():
    """The world, backwards, evens and odds, neighbours backwards, and every rank by itself."""
    world = MPI.COMM_WORLD
    ranks = range(SIZE)
    halves = [tuple(r for r in ranks if r % 2 == k) for k in range(2)]
    pairs = [tuple(r for r in ranks if r // 2 == k)[::-1] for k in range((SIZE + 1) // 2)]
    return [
        Group(world, (tuple(ranks),)),
        Group(world.Split(0, -RANK), (tuple(ranks)[::-1],)),
        Group(world.Split(RANK % 2, RANK), tuple(half for half in halves if half)),
        Group(world.Split(RANK // 2, -RANK), tuple(pairs)),
        Group(MPI.COMM_SELF, tuple((r,) for r in ranks)),
    ]


def drawn(rng, shape, dtype):
    """Small integers in any dtype."""
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    least = 0 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -3
    x = rng.integers(least, 4, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (x + 1j * rng.integers(least, 4, shape)).astype(dtype)
    return np.asarray(x).astype(dtype)


# ---- Reductions ---------------------------------------------------------------------------


def _logical(function):
    return lambda a, b: function(a != 0, b != 0).astype(a.dtype)


PAIRWISE = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": _logical(np.logical_and),
    "LOR": _logical(np.logical_or),
    "LXOR": _logical(np.logical_xor),
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
ON_BOOL = {
    "SUM": np.logical_or,
    "PROD": np.logical_and,
    "MIN": np.logical_and,
    "MAX": np.logical_or,
}


def defined(name, dtype):
    """Whether a reduction means something for a dtype."""
    if name in ("SUM", "PROD"):
        return True
    if name in ("MIN", "MAX"):
        return not dtype.startswith("complex")
    return dtype == "bool" or "int" in dtype


def reduced(name, xs):
    """The reduction of a list of arrays, in their dtype."""
    first = xs[0]
    table = {**PAIRWISE, **(ON_BOOL if first.dtype == bool else {})}
    if name.startswith("L"):
        xs = [(x != 0).astype(x.dtype) for x in xs]
    return np.asarray(functools.reduce(table[name], xs)).astype(first.dtype)


def identity(name, x):
    """What changes nothing under a reduction."""
    dtype = x.dtype
    if name in ("PROD", "LAND") or (dtype.kind == "b" and name in ("MIN", "BAND")):
        value = 1
    elif name in ("MIN", "MAX") and dtype.kind != "b":
        if jnp.issubdtype(dtype, jnp.integer):
            value = jnp.iinfo(dtype).max if name == "MIN" else jnp.iinfo(dtype).min
        else:
            value = np.inf if name == "MIN" else -np.inf
    elif name == "BAND":
        return np.invert(np.zeros_like(x))
    else:
        value = 0
    return np.full(x.shape, value, dtype)


# ---- Operations ---------------------------------------------------------------------------
# Of each: the shape of the operand; the call; the result of rank r of the group from the list of
# operands; and, where it is linear, the cotangent of rank r from operands (for their shapes) and
# cotangents.


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is drawn for one call."""

    op: str
    root: int
    shift: int
    counts: tuple[int, ...]

    def at(self, size):
        """The root in a group of this size."""
        return self.root % size

    def rows(self, sender, receiver):
        """How many rows alltoallv sends, and (receiver 0) allgatherv."""
        return self.counts[(2 * sender + receiver) % len(self.counts)]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of pfftjax and its model."""

    name: str
    call: Callable[..., Any]
    model: Callable[..., Any]
    adjoint: Callable[..., Any] | None = None
    one_entry_a_rank: bool = False
    lead: Callable[..., tuple[int, ...]] | None = None

    def shape(self, tail, r, size, choice):
        """The shape of the operand of rank r."""
        if self.lead is not None:
            return (*self.lead(r, size, choice), *tail)
        return (size, *tail) if self.one_entry_a_rank else tail


def _zeros(x):
    return np.zeros_like(x)


def _sum(ys):
    return functools.reduce(operator.add, ys)


def _padded(rows, capacity, like):
    rows = [*rows, np.zeros((capacity - sum(map(len, rows)), *like.shape[1:]), like.dtype)]
    return np.concatenate(rows)


_ROWS = 9
_CAPACITY = 12


def _segments(choice, size, sender):
    ends = np.cumsum([choice.rows(sender, j) for j in range(size)])
    return [slice(end - choice.rows(sender, j), end) for j, end in enumerate(ends)]


def _alltoallv(x, comm, choice):
    counts = jnp.asarray([choice.rows(comm.rank, j) for j in range(comm.size)], jnp.int32)
    return pc.alltoallv(x, counts, capacity=_CAPACITY, comm=comm)[0]


def _alltoallv_model(xs, r, choice):
    size = len(xs)
    rows = [xs[i][_segments(choice, size, i)[r]] for i in range(size)]
    return _padded(rows, _CAPACITY, xs[r])


def _alltoallv_adjoint(xs, ys, r, choice):
    size = len(xs)
    back = _zeros(xs[r])
    for j, segment in enumerate(_segments(choice, size, r)):
        start = sum(choice.rows(i, j) for i in range(r))
        back[segment] = ys[j][start : start + choice.rows(r, j)]
    return back


def _allgatherv(x, comm, choice):
    count = jnp.asarray(choice.rows(comm.rank, 0), jnp.int32)
    return pc.allgatherv(x, count, capacity=_CAPACITY, comm=comm)[0]


def _allgatherv_model(xs, r, choice):
    return _padded([x[: choice.rows(i, 0)] for i, x in enumerate(xs)], _CAPACITY, xs[r])


def _allgatherv_adjoint(xs, ys, r, choice):
    count, start = choice.rows(r, 0), sum(choice.rows(i, 0) for i in range(r))
    back = _zeros(xs[r])
    back[:count] = _sum([y[start : start + count] for y in ys])
    return back


def _ring(x, comm, choice):
    r, size = comm.rank, comm.size
    return pc.sendrecv(x, x, (r - choice.shift) % size, (r + choice.shift) % size, comm=comm)


def _send_recv(x, comm, choice):
    """One message, from the root to the next rank, received from anybody."""
    to = (choice.at(comm.size) + 1) % comm.size
    if comm.size == 1:  # MPICH does not buffer messages of a lone rank to itself
        return x
    if comm.rank == choice.at(comm.size):
        pc.send(x, to, tag=3, comm=comm)
    return pc.recv(x, MPI.ANY_SOURCE, tag=3, comm=comm) if comm.rank == to else x


def _status(x, comm, choice):
    """The same with a status and a template that is longer than the message."""
    to = (choice.at(comm.size) + 1) % comm.size
    template = jnp.concatenate([x.ravel(), x.ravel()[:1]])
    if comm.size == 1:
        return template
    if comm.rank == choice.at(comm.size):
        pc.send(x, to, comm=comm)
    return pc.recv(template, comm=comm, status=STATUS) if comm.rank == to else template


def _status_model(xs, r, choice):
    size = len(xs)
    sender = choice.at(size)
    source = sender if r == (sender + 1) % size else r
    return np.concatenate([xs[source].ravel(), xs[r].ravel()[:1]])


def _beside_barrier(x, comm, _):
    pc.barrier(comm=comm)
    return x


STATUS = MPI.Status()
OPERATIONS = (
    Operation(
        "allreduce",
        lambda x, comm, c: pc.allreduce(x, getattr(MPI, c.op), comm=comm),
        lambda xs, r, c: reduced(c.op, xs),
        lambda xs, ys, r, c: ys[r],
    ),
    Operation(
        "reduce",
        lambda x, comm, c: pc.reduce(x, getattr(MPI, c.op), c.at(comm.size), comm=comm),
        lambda xs, r, c: reduced(c.op, xs) if r == c.at(len(xs)) else xs[r],
        lambda xs, ys, r, c: ys[r] if r == c.at(len(xs)) else ys[r] + ys[c.at(len(xs))],
    ),
    Operation(
        "scan",
        lambda x, comm, c: pc.scan(x, getattr(MPI, c.op), comm=comm),
        lambda xs, r, c: reduced(c.op, xs[: r + 1]),
        lambda xs, ys, r, c: _sum(ys[r:]),
    ),
    Operation(
        "exscan",
        lambda x, comm, c: pc.exscan(x, getattr(MPI, c.op), comm=comm),
        lambda xs, r, c: reduced(c.op, xs[:r]) if r else identity(c.op, xs[0]),
        lambda xs, ys, r, c: _sum([_zeros(ys[r]), *ys[r + 1 :]]),
    ),
    Operation(
        "reduce_scatter",
        lambda x, comm, c: pc.reduce_scatter(x, getattr(MPI, c.op), comm=comm),
        lambda xs, r, c: reduced(c.op, [x[r] for x in xs]),
        lambda xs, ys, r, c: np.stack(ys),
        one_entry_a_rank=True,
    ),
    Operation(
        "bcast",
        lambda x, comm, c: pc.bcast(x, c.at(comm.size), comm=comm),
        lambda xs, r, c: xs[c.at(len(xs))],
        lambda xs, ys, r, c: _sum(ys) if r == c.at(len(xs)) else _zeros(ys[r]),
    ),
    Operation(
        "gather",
        lambda x, comm, c: pc.gather(x, c.at(comm.size), comm=comm),
        lambda xs, r, c: np.stack(xs) if r == c.at(len(xs)) else xs[r],
        lambda xs, ys, r, c: (ys[r][r] if r == c.at(len(xs)) else ys[r] + ys[c.at(len(xs))][r]),
    ),
    Operation(
        "scatter",
        lambda x, comm, c: pc.scatter(x, c.at(comm.size), comm=comm),
        lambda xs, r, c: xs[c.at(len(xs))][r],
        lambda xs, ys, r, c: np.stack(ys) if r == c.at(len(xs)) else _zeros(xs[r]),
        lead=lambda r, size, c: (size,) if r == c.at(size) else (),
    ),
    Operation(
        "allgather",
        lambda x, comm, c: pc.allgather(x, comm=comm),
        lambda xs, r, c: np.stack(xs),
        lambda xs, ys, r, c: _sum([y[r] for y in ys]),
    ),
    Operation(
        "alltoall",
        lambda x, comm, c: pc.alltoall(x, comm=comm),
        lambda xs, r, c: np.stack([x[r] for x in xs]),
        lambda xs, ys, r, c: np.stack([y[r] for y in ys]),
        one_entry_a_rank=True,
    ),
    Operation(
        "alltoall_split",
        lambda x, comm, c: pc.wait(pc.alltoall_start(x, comm=comm)),
        lambda xs, r, c: np.stack([x[r] for x in xs]),
        lambda xs, ys, r, c: np.stack([y[r] for y in ys]),
        one_entry_a_rank=True,
    ),
    Operation(
        "allgather_split",
        lambda x, comm, c: pc.wait(pc.allgather_start(x, comm=comm)),
        lambda xs, r, c: np.stack(xs),
        lambda xs, ys, r, c: _sum([y[r] for y in ys]),
    ),
    Operation(
        "alltoallv",
        _alltoallv,
        _alltoallv_model,
        _alltoallv_adjoint,
        lead=lambda *_: (_ROWS,),
    ),
    Operation(
        "allgatherv",
        _allgatherv,
        _allgatherv_model,
        _allgatherv_adjoint,
        lead=lambda *_: (_ROWS,),
    ),
    Operation(
        "sendrecv",
        _ring,
        lambda xs, r, c: xs[(r - c.shift) % len(xs)],
        lambda xs, ys, r, c: ys[(r + c.shift) % len(xs)],
    ),
    Operation(
        "send_recv",
        _send_recv,
        lambda xs, r, c: xs[c.at(len(xs)) if r == (c.at(len(xs)) + 1) % len(xs) else r],
    ),
    Operation("recv_status", _status, _status_model),
    Operation("barrier", _beside_barrier, lambda xs, r, c: xs[r]),
)
REDUCTIONS = ("allreduce", "reduce", "scan", "exscan", "reduce_scatter")

# ---- Statements and programs --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Statement:
    """One operation under one transformation."""

    operation: Operation
    group: Group
    choice: Choice
    dtype: str
    tail: tuple[int, ...]
    manner: str  # plain, vmap, scan, cond, vjp, jvp
    batch: int

    def __str__(self):
        return (
            f"{self.manner} of {self.operation.name} {self.choice} {self.dtype}{self.tail} "
            f"on {self.group.parts}"
        )

    def _draw(self, rng, shape_of):
        """The arrays of all ranks of the world."""
        arrays = {}
        for part in self.group.parts:
            for r, member in enumerate(part):
                arrays[member] = drawn(rng, shape_of(part, r), self.dtype)
        return arrays

    def data(self, rng):
        """(what all ranks have, by rank of the world): operands, and what else is needed."""
        lead = (self.batch,) if self.manner in ("vmap", "scan") else ()

        def shape(part, r):
            return (*lead, *self.operation.shape(self.tail, r, len(part), self.choice))

        xs = self._draw(rng, shape)
        if self.manner == "cond":
            return xs, bool(rng.integers(2))
        if self.manner == "jvp":
            return xs, self._draw(rng, shape)
        if self.manner == "vjp":
            results = {}
            for part in self.group.parts:
                for r, member in enumerate(part):
                    results[member] = self._one(xs, part, r).shape
            return xs, self._draw(rng, lambda part, r: results[part[r]])
        return xs, None

    def mine(self, data):
        """This rank's arguments of `function`."""
        xs, more = data
        return xs[RANK], more[RANK] if isinstance(more, dict) else more

    def function(self):
        """The statement, in JAX; made once, as JAX knows what it has compiled by its function."""

        def f(x):
            return self.operation.call(x, self.group.comm, self.choice)

        def flipped(x):
            return f(jnp.flip(x))

        def step(carry, x):
            return carry, f(x)

        def run(x, more):
            match self.manner:
                case "vmap":
                    return jax.vmap(f)(x)
                case "scan":
                    return jax.lax.scan(step, 0, x)[1]
                case "cond":
                    return jax.lax.cond(more, f, flipped, x)
                case "jvp":
                    return jax.jvp(f, (x,), (more,))
                case "vjp":
                    y, pull = jax.vjp(f, x)
                    return y, pull(more)[0]
            return f(x)

        return run

    def _one(self, xs, part, r):
        result = self.operation.model([xs[member] for member in part], r, self.choice)
        return np.asarray(result)

    def expected(self, data):
        """The statement, in NumPy."""
        xs, more = data
        part = self.group.members
        r = part.index(RANK)
        match self.manner:
            case "vmap" | "scan":
                each = [{m: x[i] for m, x in xs.items()} for i in range(self.batch)]
                return np.stack([self._one(x, part, r) for x in each])
            case "cond":
                return self._one(xs if more else {m: np.flip(x) for m, x in xs.items()}, part, r)
            case "jvp":
                return self._one(xs, part, r), self._one(more, part, r)
            case "vjp":
                back = self.operation.adjoint(
                    [xs[m] for m in part], [more[m] for m in part], r, self.choice
                )
                return self._one(xs, part, r), np.asarray(back)
        return self._one(xs, part, r)


def statement(rng, all_groups):
    """Draw one."""
    pick = lambda items: items[int(rng.integers(len(items)))]  # noqa: E731
    operation = pick(OPERATIONS)
    manners = ["plain", "plain", "scan", "cond"]
    if operation.name != "recv_status":  # a batch is one message, and its end is one end
        manners += ["vmap"]
    if operation.adjoint is not None:
        manners += ["vjp", "vjp", "jvp"]
    manner = pick(manners)
    differentiated = manner in ("vjp", "jvp")
    dtype = pick(FLOATS if differentiated else DTYPES)
    names = [name for name in PAIRWISE if defined(name, dtype)]
    return Statement(
        operation,
        pick(all_groups),
        Choice(
            "SUM" if differentiated else pick(names),
            int(rng.integers(12)),
            int(rng.integers(SIZE)),
            tuple(int(n) for n in rng.integers(0, 3, 5)),
        ),
        dtype,
        pick(TAILS),
        manner,
        int(rng.integers(1, 4)),
    )


class Program:
    """Statements one after the other; jitted, but for one program in ten."""

    def __init__(self, number, seed, all_groups, statements):
        rng = np.random.default_rng([seed, number])
        self.statements = [statement(rng, all_groups) for _ in range(statements)]

        functions = [s.function() for s in self.statements]

        def everything(arguments):
            return [f(*a) for f, a in zip(functions, arguments, strict=True)]

        self.call = everything if number % 10 == 9 else jax.jit(everything)

    def run(self, rng):
        """The statements whose results are wrong on this rank."""
        data = [s.data(rng) for s in self.statements]
        arguments = [s.mine(d) for s, d in zip(self.statements, data, strict=True)]
        results = self.call(jax.tree.map(jnp.asarray, arguments))
        wrong = []
        for s, d, result in zip(self.statements, data, results, strict=True):
            actual, expected = jax.tree.leaves(result), jax.tree.leaves(s.expected(d))
            if len(actual) != len(expected) or not all(map(_equal, actual, expected)):
                wrong.append(f"{s}: got {actual}, expected {expected}")
        return wrong


def _equal(actual, expected):
    actual = np.asarray(actual)
    return (
        actual.dtype == expected.dtype
        and actual.shape == expected.shape
        and bool(np.all(actual == expected))
    )


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main():
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=10, help="of each program")
    arguments = parser.parse_args()
    start = time.monotonic()
    count = max(1, -(-arguments.operations // (STATEMENTS * arguments.runs)))
    all_groups = groups()
    programs = [Program(i, arguments.seed, all_groups, STATEMENTS) for i in range(count)]
    rng = np.random.default_rng([arguments.seed, count, 1])
    wrong, done = [], 0
    memory = 0
    # Everything is compiled in the first run, and every buffer that is kept is there soon after.
    warm = max(1, arguments.runs // 2)
    for k in range(arguments.runs):
        if k == warm:
            CONTROL.Barrier()
            memory = resident()
        for program in programs:
            wrong += program.run(rng)
            done += len(program.statements)
    growth = resident() - memory if arguments.runs > warm else 0
    for text in wrong[:5]:
        print(f"rank {RANK}: {text}", file=sys.stderr, flush=True)
    mismatches = CONTROL.allreduce(len(wrong))
    most = CONTROL.allreduce(growth, MPI.MAX)
    if RANK == 0:
        print(
            f"{done} operations in {count} programs on {SIZE} ranks, seed {arguments.seed}: "
            f"{mismatches} mismatches; memory {memory >> 20} MiB, grown by {most >> 10} KiB in "
            f"{done * (arguments.runs - warm) // arguments.runs} operations; "
            f"{time.monotonic() - start:.0f} s",
            flush=True,
        )
    return int(mismatches > 0 or most > BYTES_THAT_MAY_COME)


if __name__ == "__main__":
    sys.exit(main())

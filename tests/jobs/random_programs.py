"""Random programs of mixed collectives, against a model in NumPy.

    mpirun -n 3 python -m tests.jobs.random_programs --operations 10000 --seed 0

Every rank draws the same programs and the data of all ranks, so the expected values come without
communication. The data are small integers in every dtype: all results are exact, whatever the
order of additions, and are compared to the last bit. Programs are compiled once and run many
times; memory must not grow while compiled programs are run.
"""

import argparse
import dataclasses
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from tests.collectives.reference import OPERATIONS, PAIRWISE, Choice, Operation, defined, drawn
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

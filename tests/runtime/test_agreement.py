"""What ranks compare before a program's first call names all that they must do alike: programs
that differ in nothing else differ in it.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax import ExchangeMethod, Pencil, PencilFFT, halo_exchange, halo_reduce, spectral
from pfftjax import collectives as pc
from pfftjax.pm import Route
from tests.helpers import RANK, SIZE

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(SIZE != 2, reason="two ranks are enough to differ"),
]
F4, F8, C8 = "float32", "float64", "complex64"
SHAPE = (4, 6, 5)


def compared(f, *operands):
    """The collectives of a program as the ranks compare them; nothing is run. The first collective
    has them, behind its own key.
    """
    text = jax.jit(f).lower(*operands).as_text()
    return re.findall(r'program = "[^"]{8}\\0A((?:[^"\\]|\\.)+)"', text)[0]


def grid():
    return pfftjax.ProcessGrid((SIZE, 1))


def square(dtype=F8):
    return jnp.ones((SIZE, SIZE), dtype)


def adjoint(f, x):
    return lambda y: jax.linear_transpose(f, x)(y)


def ragged(rows, dtype=F8, members=None):
    """alltoallv of rows of so many numbers; with so many counts of their own."""
    x, counts = jnp.ones((SIZE, rows), dtype), jnp.ones(SIZE, "int32")
    f = pc.alltoallv
    if members is not None:
        x, counts = (jnp.stack([a] * members) for a in (x, counts))
        f = jax.vmap(pc.alltoallv)
    return f, x, counts


def halo(width, *, shape=SHAPE, dtype=F8, **options):
    pencil = Pencil(shape, grid())
    return lambda x: halo_exchange(x, pencil, width, **options), jnp.ones(
        pencil.local_shape, dtype
    )


def summed_halo(width, **options):
    pencil = Pencil(SHAPE, grid())
    like = jax.eval_shape(lambda x: halo_exchange(x, pencil, width), jnp.ones(pencil.local_shape))
    return lambda x: halo_reduce(x, pencil, width, **options), jnp.ones(like.shape)


def moved(axes, split=(1, 0), shape=SHAPE, **options):
    source, target = Pencil(shape, grid()), Pencil(shape, grid(), split, axes)
    x = jnp.ones(source.local_shape)
    return lambda x: pfftjax.transpose(x, source, target, **options), x


def transform(way="forward", shape=SHAPE, dtype=C8, **options):
    plan = PencilFFT(shape, grid(), **options)
    pencil = plan.input if way == "forward" else plan.output
    return getattr(plan, way), jnp.ones(pencil.local_shape, dtype)


def derivative(operator, **options):
    plan = PencilFFT(SHAPE, grid(), **options)
    f = getattr(spectral, operator)
    if operator == "gradient":
        y = jnp.ones(plan.output.local_shape, C8)
        return lambda y: f(y, plan, 1.0, from_spectrum=True), y
    x = jnp.ones((3, *plan.input.local_shape), F4)
    return lambda x: f(x, plan, 1.0, to_spectrum=True), x


def particles(dtype, way="send"):
    mesh = Pencil((8, 8, 8), grid())
    at = jnp.zeros((4, 3))
    route = Route.to_owners(at, mesh, 4 * SIZE)
    rows = 4 if way == "send" else 4 * SIZE
    return getattr(route, way), jnp.zeros((rows, 3), dtype)


# Each pair differs in one thing, in which ranks may not differ.
PAIRS = {
    "alltoall: dtype": lambda: [(pc.alltoall, square(d)) for d in (F4, F8)],
    "alltoall: size": lambda: [(pc.alltoall, jnp.ones((SIZE, n))) for n in (2, 3)],
    "allgather: size": lambda: [(pc.allgather, jnp.ones(n)) for n in (2, 3)],
    "allreduce: op": lambda: [
        (lambda x, op=op: pc.allreduce(x, op), square()) for op in (MPI.SUM, MPI.MAX)
    ],
    "reduce: op": lambda: [
        (lambda x, op=op: pc.reduce(x, op, 0), square()) for op in (MPI.SUM, MPI.MAX)
    ],
    "reduce: root": lambda: [(lambda x, r=r: pc.reduce(x, MPI.SUM, r), square()) for r in (0, 1)],
    "reduce_scatter: op": lambda: [
        (lambda x, op=op: pc.reduce_scatter(x, op), square()) for op in (MPI.SUM, MPI.MAX)
    ],
    "scan: op": lambda: [(lambda x, op=op: pc.scan(x, op), square()) for op in (MPI.SUM, MPI.MAX)],
    "scan: exclusive": lambda: [(f, square()) for f in (pc.scan, pc.exscan)],
    "scan: direction": lambda: [(pc.scan, square()), (adjoint(pc.scan, square()), square())],
    "bcast: root": lambda: [(lambda x, r=r: pc.bcast(x, r), square()) for r in (0, 1)],
    "gather: root": lambda: [(lambda x, r=r: pc.gather(x, r), square()) for r in (0, 1)],
    "scatter: root": lambda: [
        (lambda x, r=r: pc.scatter(x if r == RANK else x[0], r), square()) for r in (0, 1)
    ],
    "start: which": lambda: [
        (lambda x, f=f: pc.wait(f(x)), square()) for f in (pc.alltoall_start, pc.allgather_start)
    ],
    "alltoallv: width": lambda: [ragged(n) for n in (2, 3)],
    "alltoallv: dtype": lambda: [ragged(2, d) for d in (F4, F8)],
    "alltoallv: batch": lambda: [ragged(2, members=n) for n in (2, 3)],
    "allgatherv: width": lambda: [(pc.allgatherv, jnp.ones((2, n))) for n in (2, 3)],
    "sendrecv: dtype": lambda: [
        (lambda x: pc.sendrecv(x, x, MPI.PROC_NULL, MPI.PROC_NULL, collective=True), square(d))
        for d in (F4, F8)
    ],
    "halo: width": lambda: [halo(w) for w in (((1, 0), 0), ((0, 1), 0))],
    "halo: periodic": lambda: [halo(1, periodic=p) for p in (True, False)],
    "halo: dtype": lambda: [halo(1, dtype=d) for d in (F4, F8)],
    "halo: whole": lambda: [halo(1, shape=(n, 6, 5)) for n in (2 * SIZE, 2 * SIZE + 1)],
    "halo: others": lambda: [halo(1, shape=(4, 6, n)) for n in (5, 6)],
    "halo: back": lambda: [summed_halo(1, periodic=p) for p in (True, False)],
    "transpose: order": lambda: [moved(axes) for axes in ((0, 1, 2), (1, 0, 2))],
    "transpose: split": lambda: [moved((0, 1, 2), split=s) for s in ((1, 0), (2, 0))],
    "transpose: method": lambda: [
        moved((0, 1, 2), method=m) for m in (ExchangeMethod.MESSAGES, ExchangeMethod.ALLTOALL)
    ],
    "fft: norm": lambda: [transform(norm=n) for n in ("backward", "forward")],
    "fft: direction": lambda: [transform(w) for w in ("forward", "inverse")],
    "fft: dtype": lambda: [transform(dtype=d) for d in (C8, "complex128")],
    # Half spectra of one shape.
    "fft: length": lambda: [transform("inverse", shape=(4, 6, n), real=True) for n in (6, 7)],
    "fft: method": lambda: [
        transform(method=m) for m in (ExchangeMethod.MESSAGES, ExchangeMethod.ALLTOALL)
    ],
    "gradient: method": lambda: [
        derivative("gradient", real=True, method=m)
        for m in (ExchangeMethod.MESSAGES, ExchangeMethod.ALLTOALL)
    ],
    "divergence: norm": lambda: [
        derivative("divergence", real=True, norm=n) for n in ("backward", "forward")
    ],
    "particles: dtype": lambda: [particles(d) for d in (F4, F8)],
    "particles: way": lambda: [particles(F4, w) for w in ("send", "send_back")],
}


@pytest.mark.parametrize("what", PAIRS)
def test_programs_that_differ_in_one_thing(what):
    one, other = (compared(f, *operands) for f, *operands in PAIRS[what]())
    assert one != other


def test_the_end_of_a_long_program_counts():
    """The text that errors show has an end; what is compared has not."""

    def program(last):
        def f(x):
            for _ in range(70):
                x = pc.alltoall(x)
            return last(x)

        text = jax.jit(f).lower(square()).as_text()
        return re.findall(r"signature = (-?[1-9]\d*)", text)

    assert program(pc.alltoall) == program(pc.alltoall)
    assert program(pc.alltoall) != program(pc.allgather)

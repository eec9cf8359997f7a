"""Every operation of MPI in NumPy, from the data of all ranks, and as pfftjax calls it.

Data are small integers in every dtype: results are exact, whatever the order of additions.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax import collectives as pc


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
    """One operation of pfftjax and its model.

    `model` gives the result of rank r of the group from the list of operands. `adjoint`, where the
    operation is linear, gives the cotangent of rank r from the operands (for their shapes) and the
    cotangents of the results. `lead` is what stands before the tail in an operand's shape.
    """

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

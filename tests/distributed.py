"""Distributed arrays in tests: grids, blocks of global arrays that every rank knows, and what the
transforms and their derivatives are, by numpy on the whole array."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scipy.fft
from mpi4py import MPI

from pfftjax import ExchangeMethod, ProcessGrid
from pfftjax._runtime.options import options
from pfftjax._runtime.primitive import as_on_gpus
from tests.helpers import CONTROL, NODES, RANK, SIZE

# The sizes of the issue: even, odd, prime, 1, fewer planes than ranks.
SHAPES = (
    (8, 16, 32),
    (12, 12, 23),
    (17, 16, 16),
    (29, 30, 31),
    (17, 1, 16),
    (2, 3, 5),
    (4, 4, 4),
    (1, 7, 9),
    (11, 1, 1),
    pytest.param((64, 64, 64), marks=pytest.mark.memory),
)
COMPLEX = {"float32": "complex64", "float64": "complex128"}
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "complex64": 1e-5, "complex128": 1e-13}


def grids(comm=None):
    """Every process grid of this many ranks."""
    return [ProcessGrid((p, SIZE // p), comm) for p in range(1, SIZE + 1) if SIZE % p == 0]


@functools.cache
def most_on_a_node():
    """How many ranks the largest node has: of this machine, and as the environment has it."""
    node = CONTROL.Split_type(MPI.COMM_TYPE_SHARED)
    mine = node.Split(NODES[RANK] if len(NODES) > 1 else 0)
    size = CONTROL.allreduce(mine.size, MPI.MAX)
    mine.Free()
    node.Free()
    return size


def shares_memory():
    """Whether all ranks do: on one node (tools/nodes.py), and as the environment has it."""
    return options.shared_memory and most_on_a_node() == SIZE


def methods():
    """Every method of exchange that can be had here."""
    shared = (ExchangeMethod.FUSED, ExchangeMethod.SHARED)
    # Handlers for GPUs refuse what is for CPUs only, and so do those of the fake device.
    have_shared = shares_memory() and not as_on_gpus(jax.default_backend())
    others = () if have_shared else shared
    if not options.shared_memory or as_on_gpus(jax.default_backend()):
        others = (*others, ExchangeMethod.HIERARCHICAL)
    # Operations for GPUs only have tests of their own (tests/jobs/test_gpu_transports.py).
    return [m for m in ExchangeMethod if m not in (*others, ExchangeMethod.PIPELINED)]


def by_method(plan):
    """The plan by every method; the same plan once where there is nobody to exchange with."""
    chosen = methods() if plan.grid.size > 1 else [plan.method]
    return [dataclasses.replace(plan, method=method) for method in chosen]


def alone():
    """A grid of this rank only."""
    return ProcessGrid((1, 1), MPI.COMM_SELF)


def gathered(x, pencil):
    """The global array, by global axis, from the blocks of all ranks; leading axes are kept."""
    ndim = len(pencil.axes)
    x = np.asarray(x)
    lead = x.shape[: x.ndim - ndim]
    whole = np.zeros((*lead, *pencil.global_shape), x.dtype)
    dims = pencil.grid.dims
    for rank, block in enumerate(pencil.grid.comm.allgather(x)):
        ranges = [pencil.range_of(axis, divmod(rank, dims[1])) for axis in range(ndim)]
        index = (..., *(slice(start, start + count) for start, count in ranges))
        back = [len(lead) + pencil.axes.index(axis) for axis in range(ndim)]
        whole[index] = block.transpose(*range(len(lead)), *back)
    return whole


def assert_block(actual, whole, pencil, tolerance):
    """This rank's block, relative to the largest of the whole array: its own may be small, or
    empty. NaN fails."""
    expected = np.asarray(pencil.local_block(np.asarray(whole)))
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    error = np.abs(actual - expected).max(initial=0.0) / max(np.abs(whole).max(), 1e-300)
    assert error <= tolerance, f"relative error {error:.3e} on rank {RANK} in {pencil}"


def raised_everywhere(error, text, function, *arguments, **options):
    """The same error with the same text on every rank."""
    with pytest.raises(error, match=text) as caught:
        function(*arguments, **options)
    assert len(set(CONTROL.allgather(str(caught.value)))) == 1


def total(a, b):
    """sum over ranks of sum(a b), without conjugation: how JAX pairs vectors."""
    value = np.sum(np.asarray(a, np.complex128) * np.asarray(b, np.complex128))
    return CONTROL.allreduce(complex(value))


class Model:
    """What a plan computes, and the transpose of that, on the whole array in double precision."""

    AXES = (-3, -2, -1)

    def __init__(self, plan):
        self.plan = plan
        self.options = {"norm": plan.norm, "axes": self.AXES}

    def forward(self, x):
        return (np.fft.rfftn if self.plan.real else np.fft.fftn)(x, **self.options)

    def inverse(self, y):
        if self.plan.real:
            return np.fft.irfftn(y, self.plan.shape, **self.options)
        return np.fft.ifftn(y, **self.options)

    def forward_transposed(self, c):
        """c[k] -> sum_k c[k] exp(-i k j), its real part where x is real."""
        full = np.zeros((*c.shape[:-1], self.plan.shape[2]), complex)
        full[..., : c.shape[-1]] = c
        result = np.fft.fftn(full, **self.options)
        return result.real if self.plan.real else result

    def inverse_transposed(self, u):
        """u[j] -> sum_j u[j] exp(+i k j), for every time that the coefficient is used."""
        result = np.fft.ifftn(u, **self.options)
        if not self.plan.real:
            return result
        n = self.plan.shape[2]
        k = np.arange(n // 2 + 1)
        return result[..., : n // 2 + 1] * np.where((k == 0) | (2 * k == n), 1, 2)


def points(kind, n, side=1.0):
    """Where the values of an axis of n points are, and what the functions of a coefficient are."""
    start, between = {
        "fft": (0, n),
        "rfft": (0, n),
        "dct1": (0, n - 1),
        "dct2": (0.5, n),
        "dct3": (0, n),
        "dct4": (0.5, n),
        "dst1": (1, n + 1),
        "dst2": (0.5, n),
        "dst3": (1, n),
        "dst4": (0.5, n),
    }[kind]
    return (np.arange(n) + start) * side / between, np.sin if kind[:3] == "dst" else np.cos


def transformed(plan, x, *, inverse=False):
    """What a `PencilTransform` computes, by scipy on the whole array in double precision."""
    ndim = len(plan.shape)
    order = range(ndim) if inverse else reversed(range(ndim))
    for axis in order:
        kind, n = plan.kinds[axis], plan.shape[axis]
        options = {"axis": axis - ndim, "norm": plan.norm}
        if kind == "rfft":
            x = np.fft.irfft(x, n, **options) if inverse else np.fft.rfft(x, **options)
        elif kind == "fft":
            x = (np.fft.ifft if inverse else np.fft.fft)(x, **options)
        else:
            function = getattr(scipy.fft, ("i" if inverse else "") + kind[:3])
            x = function(x.real, int(kind[3]), **options) + (
                1j * function(x.imag, int(kind[3]), **options) if np.iscomplexobj(x) else 0
            )
    return x

"""pfftjax.info(): what it says is so, and it costs nothing."""

import dataclasses
import importlib.metadata
import os
import time

import jax.numpy as jnp
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax._runtime import machine
from pfftjax._runtime import support as support
from pfftjax._runtime.ffi import native
from tests.helpers import CONTROL, RANK, SIZE


def test_of_this_rank():
    info = pfftjax.info()
    assert (info.rank, info.size) == (RANK, SIZE)
    assert info.versions["pfftjax"] == pfftjax.__version__
    assert info.versions["jax"] == importlib.metadata.version("jax")
    assert info.mpi_library in MPI.Get_library_version()
    assert info.mpi_standard == ".".join(map(str, MPI.Get_version()))
    assert info.thread_level == "multiple"
    assert set(info.cores) == os.sched_getaffinity(0)
    assert info.simd in native.runnable_simd()
    assert info.x64 == (jnp.ones(()).dtype == jnp.float64)
    assert info.platforms in (("cpu",), ("CUDA", "cpu"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(info, "rank", 3)  # noqa: B010 (as a type checker would refuse it)


def test_ranks_on_this_node_are_those_that_the_launcher_started():
    node = CONTROL.Split_type(MPI.COMM_TYPE_SHARED)
    assert pfftjax.info().local_ranks == node.size
    node.Free()


def test_is_the_same_on_all_ranks_but_for_the_rank():
    info = pfftjax.info()
    everyone = CONTROL.allgather(dataclasses.replace(info, rank=0, launched_rank=0))
    assert all(other == everyone[0] for other in everyone)


def test_needs_no_communication_and_little_time():
    pfftjax.info()
    if RANK == 0:  # the others make no call
        start = time.perf_counter()
        pfftjax.info()
        assert time.perf_counter() - start < 0.5


def test_as_text():
    text = str(pfftjax.info())
    for part in (f"{RANK} of {SIZE}", pfftjax.__version__, pfftjax.info().mpi_library, "GPUs"):
        assert part in text
    unknown = dataclasses.replace(
        pfftjax.info(), local_ranks=None, mpi_takes_cuda_pointers=None, huge_pages=None, gpus=None
    )
    assert str(unknown).count("unknown") == 3
    assert "not been asked" in str(unknown)
    between = dataclasses.replace(
        unknown, gpu_transport="ipc (within the node)", gpu_device="GPU-7, shared by ranks 0, 1"
    )
    assert "ipc (within the node); this rank's is GPU-7, shared by ranks 0, 1" in str(between)


def test_no_gpus_here():
    # A matter of the build, not of devices.
    assert pfftjax.collectives.has_cuda_support() == ("CUDA" in pfftjax.info().platforms)
    assert not pfftjax.collectives.has_sycl_support()


def test_support_is_that_of_the_registered_handlers(monkeypatch):
    monkeypatch.setattr(support, "platforms", frozenset({"cpu", "CUDA"}))
    assert support.has_cuda_support()
    assert not support.has_sycl_support()


def test_an_mpi_that_does_not_say(monkeypatch):
    """A library without the question: unknown, not no."""
    assert support.mpi_takes_cuda_pointers() in (True, False)
    monkeypatch.setattr(support.ctypes, "CDLL", lambda name: object())
    assert support.mpi_takes_cuda_pointers() is None


def test_a_kernel_that_says_nothing(monkeypatch):
    monkeypatch.setattr(machine, "read", lambda path: None)
    assert machine.huge_pages() is None
    assert machine.ptrace_scope() is None
    assert machine.xla_threads() is None


def test_gpus_are_asked_for_only_where_there_may_be_some(monkeypatch):
    def never(*_, **__):
        raise AssertionError("JAX was asked")

    monkeypatch.setattr(machine.jax, "local_devices", never)
    monkeypatch.setattr(machine, "jax_plugins", list)
    assert machine.gpus(ask=True) == ()
    monkeypatch.setattr(machine, "jax_plugins", lambda: ["cuda"])
    monkeypatch.setattr(machine, "_platforms", lambda: "cpu")
    assert machine.gpus(ask=True) == ()
    monkeypatch.setattr(machine, "_platforms", lambda: None)
    assert machine.gpus(ask=False) is None
    monkeypatch.setattr(machine.jax, "local_devices", lambda backend: ["cuda:0"])
    assert machine.gpus(ask=True) == ("cuda:0",)

"""pfftjax.info(): what it says is so, and it costs nothing."""

import dataclasses
import importlib.metadata
import os
import time

import jax.numpy as jnp
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax._runtime import launcher, machine
from pfftjax._runtime import support as support
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
    assert info.simd in ("baseline", "avx2", "avx512")
    assert info.x64 == (jnp.ones(()).dtype == jnp.float64)
    assert info.platforms in (("cpu",), ("CUDA", "cpu"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.rank = 3


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


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, (4, None, None)),
        # A batch script, which is one process.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (None, None, None)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "0"}, (8, None, None)),
        ({"PMI_SIZE": "many"}, (None, None, None)),
    ],
)
def test_launchers(environment, expected):
    launch = launcher.read(environment)
    assert (launch.ranks, launch.rank, launch.local_ranks) == expected


@pytest.mark.parametrize(
    ("environment", "size", "expected"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
            1,
            "Open MPI's mpirun started 4",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, 1, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, 4, None),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, 1, "an mpirun of MPICH's kind started 2"),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, 1, None),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0"}, 1, "srun started 8"),
        # A batch script, and what it runs without srun.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, 1, None),
        # One mpirun a task of srun.
        (
            {
                "OMPI_COMM_WORLD_SIZE": "1",
                "OMPI_COMM_WORLD_RANK": "0",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_PROCID": "0",
            },
            1,
            None,
        ),
        ({}, 1, None),
    ],
)
def test_jobs_of_their_own(environment, size, expected):
    text = launcher.warn_alone(environment, size, "An MPI 1.0", lambda _: False)
    assert (text is None) == (expected is None)
    if expected is not None:
        assert text.startswith(f"{expected} processes, but each of them is a job of its own")
        assert "pfftjax runs on 'An MPI 1.0' here" in text
    # A rank hands its variables on to what it runs.
    assert launcher.warn_alone(environment, size, "An MPI 1.0", lambda _: True) is None


@pytest.mark.parametrize(
    ("tasks", "node", "expected"),
    [("4", 0, 4), ("4(x2),3", 1, 4), ("4(x2),3", 2, 3), ("4(x2),3", 3, None), ("?", 0, None)],
)
def test_slurm_s_list_of_tasks(tasks, node, expected):
    environment = {
        "SLURM_STEP_NUM_TASKS": "11",
        "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }
    assert launcher.read(environment).local_ranks == expected


def test_a_kernel_that_says_nothing(monkeypatch):
    monkeypatch.setattr(machine, "_read", lambda path: None)
    assert machine.huge_pages() is None
    assert machine.ptrace_scope() is None
    assert machine.xla_threads() is None


def test_gpus_are_asked_for_only_where_there_may_be_some(monkeypatch):
    def never(*_, **__):
        raise AssertionError("JAX was asked")

    monkeypatch.setattr(machine.jax, "local_devices", never)
    monkeypatch.setattr(machine, "_has_plugins", lambda: False)
    assert machine.gpus(ask=True) == ()
    monkeypatch.setattr(machine, "_has_plugins", lambda: True)
    monkeypatch.setattr(machine, "_platforms", lambda: "cpu")
    assert machine.gpus(ask=True) == ()
    monkeypatch.setattr(machine, "_platforms", lambda: None)
    assert machine.gpus(ask=False) is None
    monkeypatch.setattr(machine.jax, "local_devices", lambda backend: ["cuda:0"])
    assert machine.gpus(ask=True) == ("cuda:0",)

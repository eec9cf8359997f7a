"""What launchers say of a process and of its node, in the environments that they plant."""

import dataclasses

import pytest

import pfftjax
from pfftjax._runtime import launcher
from pfftjax._runtime.launcher import Launch, asked_of_mpi, read
from tests.helpers import CONTROL, RANK, SIZE

HYDRA = "an mpirun of MPICH's kind"


def ompi(ranks, rank, local_ranks, local_rank):
    """What mpirun of Open MPI sets; so does jsrun."""
    values = {"SIZE": ranks, "RANK": rank, "LOCAL_SIZE": local_ranks, "LOCAL_RANK": local_rank}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


def pmi(ranks, rank, **more):
    """What every launcher sets that starts MPI by PMI."""
    return {"PMI_SIZE": str(ranks), "PMI_RANK": str(rank)} | {k: str(v) for k, v in more.items()}


def srun(ranks, rank, *, node, tasks, local_rank):
    """What srun sets for a step whose nodes run so many tasks."""
    return {
        # The job's own, which a step of it need not have.
        "SLURM_NTASKS": str(ranks),
        "SLURM_TASKS_PER_NODE": "64(x8)",
        "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local_rank),
    }


def flux(ranks, rank, nodes, local_rank):
    return {
        "FLUX_JOB_SIZE": str(ranks),
        "FLUX_JOB_NNODES": str(nodes),
        "FLUX_TASK_RANK": str(rank),
        "FLUX_TASK_LOCAL_ID": str(local_rank),
    }


UNEVEN = {"tasks": "2(x3),1"}
MPI_LOCAL = {"MPI_LOCALNRANKS": 4, "MPI_LOCALRANKID": 1}
PMI_LOCAL = {"PMI_LOCAL_SIZE": 4, "PMI_LOCAL_RANK": 1}
PALS = {"PALS_RANKID": 5, "PALS_LOCAL_SIZE": 4, "PALS_LOCAL_RANKID": 1}
JSM = {name.replace("OMPI_COMM_WORLD", "JSM_NAMESPACE"): n for name, n in ompi(8, 5, 4, 1).items()}
MVAPICH = {name.replace("OMPI", "MV2"): n for name, n in ompi(8, 5, 4, 1).items()}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        # mpirun of Open MPI, of MPICH, of Intel MPI (with variables of its own), of MVAPICH.
        (ompi(8, 5, 4, 1), Launch(8, 5, 4, 1, "Open MPI's mpirun")),
        (pmi(8, 5, **MPI_LOCAL), Launch(8, 5, 4, 1, HYDRA)),
        (pmi(8, 5, **MPI_LOCAL, I_MPI_HYDRA_BOOTSTRAP="ssh"), Launch(8, 5, 4, 1, HYDRA)),
        (MVAPICH, Launch(8, 5, 4, 1, "an mpirun of MVAPICH")),
        # PALS, in the words of PMI and in its own.
        (pmi(8, 5, **PMI_LOCAL, **PALS), Launch(8, 5, 4, 1, HYDRA)),
        (pmi(8, 5, **PALS), Launch(8, 5, 4, 1, HYDRA)),
        # srun on one node, with --ntasks-per-node, without it (uneven), and with PMI.
        (srun(4, 3, node=0, tasks="4", local_rank=3), Launch(4, 3, 4, 3, "srun")),
        (srun(8, 5, node=1, tasks="4(x2)", local_rank=1), Launch(8, 5, 4, 1, "srun")),
        (srun(7, 5, node=2, **UNEVEN, local_rank=1), Launch(7, 5, 2, 1, "srun")),
        (srun(7, 6, node=3, **UNEVEN, local_rank=0), Launch(7, 6, 1, 0, "srun")),
        (
            srun(7, 6, node=3, **UNEVEN, local_rank=0) | pmi(7, 6),
            Launch(7, 6, 1, 0, "srun"),
        ),
        # srun whose list says nothing of this node.
        (srun(7, 6, node=4, **UNEVEN, local_rank=0), Launch(7, 6, None, 0, "srun")),
        (srun(7, 6, node=0, tasks="?", local_rank=0), Launch(7, 6, None, 0, "srun")),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "0"}, Launch(8, launcher="srun")),
        # An mpirun that srun has started, one task a node.
        (
            srun(2, 1, node=1, tasks="1(x2)", local_rank=0) | ompi(8, 5, 4, 1),
            Launch(8, 5, 4, 1, "Open MPI's mpirun"),
        ),
        (
            srun(2, 1, node=1, tasks="1(x2)", local_rank=0) | pmi(8, 5),
            Launch(8, 5, None, None, HYDRA),
        ),
        # A batch script, which is one process.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, Launch()),
        # jsrun, as MPI sees it and by itself.
        (ompi(8, 5, 4, 1) | JSM, Launch(8, 5, 4, 1, "jsrun")),
        (JSM, Launch(8, 5, 4, 1, "jsrun")),
        # flux on one node and on several.
        (pmi(4, 3) | flux(4, 3, 1, 3), Launch(4, 3, 4, 3, "flux")),
        (flux(8, 5, 2, 1), Launch(8, 5, None, 1, "flux")),
        ({"PMI_SIZE": "many"}, Launch()),
        ({}, Launch()),
    ],
)
def test_launchers(environment, expected):
    assert read(environment) == expected


def on_this_node():
    node = CONTROL.Split_type(launcher.MPI.COMM_TYPE_SHARED)
    place = node.size, node.rank
    node.Free()
    return place


@pytest.mark.parametrize(
    "said",
    [
        Launch(),
        # flux on several nodes; srun inside of another launcher's job.
        Launch(SIZE, RANK, None, 0, "flux"),
        Launch(SIZE + 1, RANK, 7, 5, "srun"),
    ],
)
def test_mpi_is_asked_where_the_launcher_does_not_say(said):
    place = dict(zip(("local_ranks", "local_rank"), on_this_node(), strict=True))
    assert asked_of_mpi(said) == dataclasses.replace(said, **place)


@pytest.mark.skipif(SIZE == 1, reason="one rank is alone on its node")
def test_mpi_is_not_asked_where_the_launcher_says_it():
    said = Launch(SIZE, RANK, 7, 5, "srun")
    if RANK == 0:  # the others would wait
        assert asked_of_mpi(said) == said


def test_all_ask_one_place():
    """What the launcher says is what info, exchanges and the C++ core know."""
    assert (launcher.here.local_ranks, launcher.here.local_rank) == on_this_node()
    info = pfftjax.info()
    assert info.local_ranks == launcher.here.local_ranks
    assert (info.launched_ranks, info.launched_rank) == (launcher.here.ranks, launcher.here.rank)


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
    if expected is None:
        assert text is None
    else:
        assert text is not None
        assert text.startswith(f"{expected} processes, but each of them is a job of its own")
        assert "pfftjax runs on 'An MPI 1.0' here" in text
    # A rank hands its variables on to what it runs.
    assert launcher.warn_alone(environment, size, "An MPI 1.0", lambda _: True) is None

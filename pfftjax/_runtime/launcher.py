"""Answers who launched this process, and how many ranks of the job share its node.

A launcher says so in environment variables, without communication. Where it does not, MPI is asked
for the ranks that share memory, once, when pfftjax is imported.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Mapping

from mpi4py import MPI

from .options import options
from .waiting import ALL_IMPORT, wait_for


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a process was started; None for what nobody has said.

    Attributes:
        ranks: processes that were started as one job.
        rank: number of this process among them.
        local_ranks: of the job, on this node.
        local_rank: number of this process among them.
        launcher: what started them.

    """

    ranks: int | None = None
    rank: int | None = None
    local_ranks: int | None = None
    local_rank: int | None = None
    launcher: str | None = None


# Each launcher has variables for the first four fields of `Launch`, in their order, with
# alternatives; "-" for none. The first launcher whose ranks are there counts, as mpirun itself may
# have been started by srun, one task a node. A later one adds what that leaves out, and is the one
# to name, where it counts the same ranks: srun, jsrun and flux also set what MPI looks for.
_VARIABLES = {
    "Open MPI's mpirun": "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_SIZE "
    "OMPI_COMM_WORLD_LOCAL_RANK",
    # Hydra, of MPICH and Intel MPI, and PALS.
    "an mpirun of MPICH's kind": "PMI_SIZE PMI_RANK "
    "MPI_LOCALNRANKS|PMI_LOCAL_SIZE|PALS_LOCAL_SIZE "
    "MPI_LOCALRANKID|PMI_LOCAL_RANK|PALS_LOCAL_RANKID",
    "an mpirun of MVAPICH": "MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_SIZE "
    "MV2_COMM_WORLD_LOCAL_RANK",
    "jsrun": "JSM_NAMESPACE_SIZE JSM_NAMESPACE_RANK JSM_NAMESPACE_LOCAL_SIZE "
    "JSM_NAMESPACE_LOCAL_RANK",
    "flux": "FLUX_JOB_SIZE FLUX_TASK_RANK - FLUX_TASK_LOCAL_ID",
    # A batch script sees SLURM_NTASKS without having been started as many times.
    "srun": "SLURM_STEP_NUM_TASKS SLURM_PROCID - SLURM_LOCALID",
}


def _number(environment: Mapping[str, str], names: str) -> int | None:
    texts = (environment.get(name, "") for name in names.split("|"))
    return next((int(text) for text in texts if text.isdigit()), None)


def _tasks_on_node(environment: Mapping[str, str]) -> int | None:
    """From Slurm's list of tasks for each node of the step, such as "4(x2),3"."""
    node = _number(environment, "SLURM_NODEID")
    if node is None:
        return None
    for entry in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if found is None:
            return None
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return None


def _said_by(launcher: str, environment: Mapping[str, str]) -> Launch:
    """The start of this process, as one launcher's variables describe it."""
    names = _VARIABLES[launcher].split()
    ranks, rank, local_ranks, local_rank = (_number(environment, name) for name in names)
    if launcher == "srun":
        local_ranks = _tasks_on_node(environment)
    elif launcher == "flux" and _number(environment, "FLUX_JOB_NNODES") == 1:
        local_ranks = ranks
    return Launch(ranks, rank, local_ranks, local_rank, launcher)


def read(environment: Mapping[str, str]) -> Launch:
    """The launch that these variables describe.

    >>> read({"PMI_SIZE": "8", "PMI_RANK": "3", "MPI_LOCALNRANKS": "4"})
    Launch(ranks=8, rank=3, local_ranks=4, local_rank=None, launcher="an mpirun of MPICH's kind")
    >>> srun = {"SLURM_STEP_NUM_TASKS": "11", "SLURM_PROCID": "9", "SLURM_NODEID": "2"}
    >>> read({**srun, "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})
    Launch(ranks=11, rank=9, local_ranks=3, local_rank=1, launcher='srun')
    >>> read({})
    Launch(ranks=None, rank=None, local_ranks=None, local_rank=None, launcher=None)
    """
    said = (_said_by(launcher, environment) for launcher in _VARIABLES)
    launch, *others = [one for one in said if one.ranks is not None] or [Launch()]
    for other in others:
        if launch.rank is not None and (launch.ranks, launch.rank) == (other.ranks, other.rank):
            known = {k: v for k, v in dataclasses.asdict(launch).items() if v is not None}
            launch = Launch(**{**dataclasses.asdict(other), **known, "launcher": other.launcher})
    return launch


def asked_of_mpi(launch: Launch) -> Launch:
    """Ask MPI for the place on the node where the launcher does not say it. Collective."""
    if not MPI.Is_initialized():
        return launch  # an error soon, which says what to do (ffi.py)
    world = MPI.COMM_WORLD
    if world.size == 1:
        return dataclasses.replace(launch, local_ranks=1, local_rank=0)
    is_of_world = launch.ranks == world.size
    is_known = is_of_world and None not in (launch.local_ranks, launch.local_rank)
    if is_known or options.lazy_world:  # then not every rank comes here
        return launch
    # Every rank comes here, but one that does not import pfftjax.
    everybody = world.Ibarrier()
    wait_for(everybody.Test, world.rank, world.size, ALL_IMPORT)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    place = {"local_ranks": node.size, "local_rank": node.rank}
    node.Free()
    return dataclasses.replace(launch, **place)


def _is_child_of_rank(variable: str) -> bool:
    """Whether a process that started this one, with the same variables, has loaded an MPI.

    Then that is the rank, and this one a program that it runs beside.
    """
    pid = os.getppid()
    try:
        while pid > 1:
            process = pathlib.Path(f"/proc/{pid}")
            entries = (process / "environ").read_bytes().split(b"\0")
            names = [entry.partition(b"=")[0] for entry in entries]
            if variable.encode() not in names:
                return False
            if b"libmpi" in (process / "maps").read_bytes():
                return True
            status = (process / "stat").read_bytes()
            pid = int(status.rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return False


def warn_alone(
    environment: Mapping[str, str],
    size: int,
    mpi: str,
    is_child: Callable[[str], bool] = _is_child_of_rank,
) -> str | None:
    """A warning where a launcher started several processes, and each is a job of its own.

    Args:
        environment: the variables of this process.
        size: size of its MPI_COMM_WORLD.
        mpi: what it runs on, as that names itself.
        is_child: (name of a variable) -> whether this process was started by a rank, which
            hands its variables on.

    Returns:
        The text, on the first process; None on the others, and where all is well.

    >>> alone = {"PMI_SIZE": "8", "PMI_RANK": "0"}
    >>> warn_alone(alone, 1, "Open MPI v5.0.11", lambda _: False)[:66]
    "an mpirun of MPICH's kind started 8 processes, but each of them is"
    >>> warn_alone({**alone, "PMI_RANK": "1"}, 1, "Open MPI v5.0.11") is None
    True

    """
    launch = read(environment)
    if size > 1 or launch.launcher is None or launch.ranks == 1 or launch.rank != 0:
        return None
    if is_child(_VARIABLES[launch.launcher].split()[0]):
        return None
    return (
        f"{launch.launcher} started {launch.ranks} processes, but each of them is a job of its "
        f"own, with one rank: pfftjax runs on {mpi!r} here, which does not know this launcher. "
        "Start the program with the mpirun of that MPI, or install mpi4py and pfftjax for the MPI "
        "of the launcher (srun: try --mpi=pmix or --mpi=pmi2); `python -m pfftjax doctor` "
        "says more. Where independent processes are meant, ignore this warning"
    )


# Asked when this is first imported, as every rank does.
here = asked_of_mpi(read(os.environ))

"""What the launcher has told this process, in environment variables: without communication."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a process was started; None for what nobody has said.

    Attributes:
        ranks: processes that were started as one job.
        rank: number of this process among them.
        local_ranks: of the job, on this node.
        local_rank: number of this process among them.

    """

    ranks: int | None = None
    rank: int | None = None
    local_ranks: int | None = None
    local_rank: int | None = None


# mpirun of Open MPI; that of MPICH and its kin; srun. The first that is there counts: mpirun
# itself may have been started by srun, as one task a node.
_VARIABLES = (
    (
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    # Not SLURM_NTASKS, which a batch script sees without having been started as many times.
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "", "SLURM_LOCALID"),
)
# Of launchers that say PMI_RANK: of PALS, and of MVAPICH.
_OTHER_LOCAL_RANKS = ("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MV2_COMM_WORLD_LOCAL_RANK")


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else None


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


# What started the processes, for each of _VARIABLES.
_NAMES = ("Open MPI's mpirun", "an mpirun of MPICH's kind", "srun")


def _is_child_of_rank(variable: str) -> bool:
    """Whether a process that started this one, with the same variables, has loaded an MPI.

    Then that is the rank, and this one a program that it runs beside.
    """
    pid = os.getppid()
    try:
        while pid > 1:
            process = pathlib.Path(f"/proc/{pid}")
            names = [entry.partition(b"=")[0] for entry in _entries(process / "environ")]
            if variable.encode() not in names:
                return False
            if b"libmpi" in (process / "maps").read_bytes():
                return True
            status = (process / "stat").read_bytes()
            pid = int(status.rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return False


def _entries(environ: pathlib.Path) -> list[bytes]:
    return environ.read_bytes().split(b"\0")


def warn_alone(
    environment: Mapping[str, str],
    size: int,
    mpi: str,
    is_child: Callable[[str], bool] = _is_child_of_rank,
) -> str | None:
    """What to warn of where a launcher started several processes, and each is a job of its own.

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
    if size > 1:
        return None
    for names, launcher in zip(_VARIABLES, _NAMES, strict=True):
        ranks, rank = (_number(environment, name) for name in names[:2])
        if ranks is None:
            continue
        if ranks == 1 or rank != 0 or is_child(names[0]):
            return None
        return (
            f"{launcher} started {ranks} processes, but each of them is a job of its own, with "
            f"one rank: pfftjax runs on {mpi!r} here, which does not know this launcher. Start "
            "the program with the mpirun of that MPI, or install mpi4py and pfftjax for the MPI "
            "of the launcher (srun: try --mpi=pmix or --mpi=pmi2); `python -m pfftjax doctor` "
            "says more. Where independent processes are meant, ignore this warning"
        )
    return None


def read(environment: Mapping[str, str]) -> Launch:
    """The launch that these variables describe.

    >>> read({"PMI_SIZE": "8", "PMI_RANK": "3", "MPI_LOCALNRANKS": "4"})
    Launch(ranks=8, rank=3, local_ranks=4, local_rank=None)
    >>> srun = {"SLURM_STEP_NUM_TASKS": "11", "SLURM_PROCID": "9", "SLURM_NODEID": "2"}
    >>> read({**srun, "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})
    Launch(ranks=11, rank=9, local_ranks=3, local_rank=1)
    >>> read({})
    Launch(ranks=None, rank=None, local_ranks=None, local_rank=None)
    """
    for names in _VARIABLES:
        ranks, rank, local_ranks, local_rank = (_number(environment, name) for name in names)
        if ranks is not None:
            others = (_number(environment, name) for name in _OTHER_LOCAL_RANKS)
            local_rank = next((n for n in (local_rank, *others) if n is not None), None)
            # Under Slurm an mpirun hands its own task's number on to all that it starts.
            srun = [_number(environment, name) for name in _VARIABLES[-1][:2]]
            if local_rank is None and srun == [ranks, rank]:
                local_rank = _number(environment, "SLURM_LOCALID")
            on_node = local_ranks or _number(environment, "PMI_LOCAL_SIZE")  # of PALS
            tasks = on_node or _tasks_on_node(environment)
            return Launch(ranks, rank, tasks, local_rank)
    return Launch()

"""What the launcher has told this process, in environment variables: without communication."""

import dataclasses
import re
from collections.abc import Mapping


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

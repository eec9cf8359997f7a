"""What is wrong or slow about a job, and what to do about it: from what was seen of its ranks."""

import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence

from pfftjax._runtime.device import TOO_LATE
from pfftjax._runtime.machine import ranges

from .exchange_times import ExchangeTime
from .info import Info
from .network import Network


@dataclasses.dataclass(frozen=True)
class Observed:
    """Facts about a rank that `info` cannot know without running anything.

    Attributes:
        wrong: operations with wrong results.
        xla_threads: threads of XLA's pool.
        reads_neighbour: whether it can read the memory of the next rank of its node.
        unknown_variables: ``PFFTJAX_*`` in the environment that mean nothing.
        yields: whether MPI has been told to give up the core while it waits.
        ucx_remembers_memory: whether UCX keeps a list of what memory is on which device.
        network: what it has between its GPU and other nodes.

    """

    wrong: tuple[str, ...] = ()
    xla_threads: int | None = None
    reads_neighbour: bool | None = None
    unknown_variables: tuple[str, ...] = ()
    yields: bool = False
    ucx_remembers_memory: bool = False
    network: Network = dataclasses.field(default_factory=Network)


@dataclasses.dataclass(frozen=True)
class Job:
    """All ranks of a job, and what they have measured together.

    Attributes:
        ranks: of each rank, in order, its `Info` and what was seen there.
        small: time of an exchange of a few bytes.
        large: time of an exchange of some MiB.
        mpirun_implementation: kind of MPI of the mpirun on PATH, where it has been asked.
        has_compilation_cache: whether JAX keeps compiled programs.

    """

    ranks: Sequence[tuple[Info, Observed]]
    small: ExchangeTime
    large: ExchangeTime
    mpirun_implementation: str | None = None
    has_compilation_cache: bool = True


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to mend: what it is, and how.

    Attributes:
        text: what was found.
        remedy: what to set or do.
        wrong: the job gives wrong results, or may, and the doctor ends with status 1; otherwise
            results are slow in coming.

    """

    text: str
    remedy: str
    wrong: bool = False

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}"


# Fields of `Info` that should be the same on all ranks.
_ALIKE = (
    "versions",
    "mpi_library",
    "simd",
    "options",
    "x64",
    "huge_pages",
    "ptrace_scope",
    "platforms",
    "mpi_takes_cuda_pointers",
    "gpu_transport",
)


def differences(infos: Sequence[Info]) -> list[str]:
    """The settings that differ between ranks, a line each, with the ranks that have each value."""
    lines = []
    for name in _ALIKE:
        ranks = collections.defaultdict(list)
        for info in infos:
            ranks[_text(getattr(info, name))].append(info.rank)
        if len(ranks) > 1:
            parts = [f"{text} on {_ranks(where)}" for text, where in ranks.items()]
            lines.append(f"{name}: {'; '.join(parts)}")
    return lines


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    return str(value)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(tuple(ranks))}"


def findings(job: Job) -> list[Finding]:
    """Everything that is wrong with a job, and then what makes it slow."""
    found = [*_results(job), *_started(job), *_alike(job)]
    hosts = collections.defaultdict(list)
    for info, observed in job.ranks:
        hosts[info.host].append((info, observed))
    # Nodes in the same state say so once.
    texts = {}
    for host, ranks in hosts.items():
        found_here = (*_cores(ranks), *_memory(ranks), *_gpus(ranks), *_network(ranks, len(hosts)))
        for finding in found_here:
            texts.setdefault(finding, []).append(host)
    for finding, names in texts.items():
        where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more nodes"
        found.append(dataclasses.replace(finding, text=f"{finding.text} on {where}"))
    return [*found, *_speed(job, len(hosts))]


def _results(job: Job) -> Iterator[Finding]:
    wrong = collections.defaultdict(list)
    for info, observed in job.ranks:
        for name in observed.wrong:
            wrong[name].append(info.rank)
    for name, ranks in wrong.items():
        yield Finding(
            f"{name} gives a wrong result on {_ranks(ranks)}",
            "build pfftjax again with this MPI's mpicc and this jaxlib, and report it if that "
            "does not help",
            wrong=True,
        )


def _started(job: Job) -> Iterator[Finding]:
    info = job.ranks[0][0]
    if info.launched_ranks is not None and info.launched_ranks > info.size:
        yield Finding(
            f"the launcher has started {info.launched_ranks} processes, but they are jobs of "
            f"{info.size} each",
            f"start them with the mpirun of the MPI that mpi4py runs on, {info.mpi_library!r}, or "
            "install mpi4py and pfftjax for the MPI of this launcher (srun: try --mpi=pmix or "
            "--mpi=pmi2)",
            wrong=True,
        )
    kinds = {job.mpirun_implementation, info.mpi_implementation}
    if len(kinds) > 1 and None not in kinds:
        yield Finding(
            f"the mpirun on PATH is one of {job.mpirun_implementation}, and mpi4py runs on "
            f"{info.mpi_implementation}",
            "it would start as many jobs of one rank; put the mpirun of that MPI first on PATH, "
            "or install mpi4py and pfftjax for the other one",
        )


def _alike(job: Job) -> Iterator[Finding]:
    for line in differences([info for info, _ in job.ranks]):
        name = line.split(":")[0]
        remedy = {
            "simd": "set PFFTJAX_SIMD to what all ranks have (avx2 or neon, or baseline) where "
            "they should give the same bits",
            "options": "export PFFTJAX_* to all ranks (Open MPI: mpirun -x NAME)",
            "x64": "export JAX_ENABLE_X64 to all ranks (Open MPI: mpirun -x JAX_ENABLE_X64)",
        }.get(name, "use the same installation, and nodes of one kind, for all ranks")
        yield Finding(f"ranks differ in {line}", remedy, wrong=name == "x64")
    without = [info.rank for info, _ in job.ranks if not info.gpus]
    if 0 < len(without) < len(job.ranks):
        yield Finding(
            f"JAX has GPUs, but not on {_ranks(without)}",
            "set JAX_PLATFORMS=cpu on all ranks, or mend CUDA there",
            wrong=True,
        )
    unknown = sorted({name for _, seen in job.ranks for name in seen.unknown_variables})
    if unknown:
        yield Finding(
            f"{', '.join(unknown)} in the environment means nothing to pfftjax",
            "`pfftjax options` lists what does",
        )


def _cores(ranks: Sequence[tuple[Info, Observed]]) -> Iterator[Finding]:
    """Findings about the cores that the ranks of one node have."""
    info = ranks[0][0]
    count = len(ranks)
    shared = tuple(sorted({core for other, _ in ranks for core in other.cores}))
    all_cores = info.node_cores or len(shared)
    if count > all_cores:
        remedy = f"start at most {all_cores} ranks on each node"
        if not all(observed.yields for _, observed in ranks):
            is_openmpi = info.mpi_implementation == "openmpi"
            how = "mpirun --oversubscribe" if is_openmpi else "MPIR_CVAR_POLLS_BEFORE_YIELD=0"
            remedy += f", or at least let them yield: {how}"
        yield Finding(f"{count} ranks run on {all_cores} cores", remedy)
    elif len(shared) < count:
        yield Finding(
            f"{count} ranks share {_cores_text(shared)}, of {all_cores}",
            "give each its own: mpirun --bind-to core (MPICH: -bind-to core), srun "
            "--cpu-bind=cores; or ask the batch system for more cores",
        )
    elif all_cores >= 2 * count and all(len(other.cores) == 1 for other, _ in ranks):
        each = all_cores // count
        yield Finding(
            f"each of {count} ranks may use one core only, of {all_cores}",
            f"more ranks, or {each} cores for each, which XLA's threads then use: mpirun --map-by "
            f"slot:PE={each} (MPICH: -bind-to core:{each}), srun --cpus-per-task={each}",
        )
    elif not info.gpus and (threads := sum(_threads(*rank) for rank in ranks)) > len(shared):
        yield Finding(
            f"{count} ranks have {threads} threads in all for {_cores_text(shared)}",
            "give each rank n cores of its own: mpirun --map-by slot:PE=n (MPICH: "
            "-bind-to core:n), srun --cpus-per-task=n --cpu-bind=cores",
        )
    crowded = [
        (other, observed.xla_threads)
        for other, observed in ranks
        if observed.xla_threads is not None and observed.xla_threads > len(other.cores)
    ]
    if crowded:
        other, threads = crowded[0]
        yield Finding(
            f"XLA computes with {threads} threads on {_cores_text(other.cores)} of a rank",
            "unset NPROC, unless several of your threads communicate, and let the launcher bind "
            "ranks, before Python starts",
        )


def _threads(info: Info, observed: Observed) -> int:
    """So many threads of a rank compute at a time, as far as cores let them."""
    if observed.xla_threads is None:
        return len(info.cores)
    return min(observed.xla_threads, len(info.cores))


def _cores_text(cores: tuple[int, ...]) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {ranges(cores)}"


def _memory(ranks: Sequence[tuple[Info, Observed]]) -> Iterator[Finding]:
    info = ranks[0][0]
    if info.huge_pages == "never":
        yield Finding(
            "transparent huge pages are switched off",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root",
        )
    if not info.xpmem and any(observed.reads_neighbour is False for _, observed in ranks):
        scope = info.ptrace_scope
        remedy = (
            "run the container with --cap-add=SYS_PTRACE, and all ranks of a node in one"
            if scope in (None, 0)
            else f"sysctl kernel.yama.ptrace_scope=0, as root (it is {scope})"
        )
        yield Finding(
            "ranks cannot read each other's memory (CMA), so that large messages are copied twice",
            f"{remedy}; or load the module xpmem",
        )


def _gpus(ranks: Sequence[tuple[Info, Observed]]) -> Iterator[Finding]:
    info = ranks[0][0]
    if any(other.gpus for other, _ in ranks):
        if info.platforms == ("cpu",):
            yield Finding(
                "JAX has GPUs, and this pfftjax communicates arrays on CPUs only",
                "build it where nvcc is found, or compute on CPUs: JAX_PLATFORMS=cpu",
            )
        if (info.gpu_transport or "").startswith("staging"):
            yield Finding(
                f"arrays go from GPU to GPU through the memory of the host: {info.gpu_transport}",
                "mend what keeps the first of these away; between nodes that is NCCL",
            )
        elif info.gpu_transport is None and info.mpi_takes_cuda_pointers is False:
            yield Finding(
                "JAX has GPUs, and the MPI is not CUDA-aware",
                "use one that is (Open MPI: configure --with-cuda; Cray MPICH: "
                "MPICH_GPU_SUPPORT_ENABLED=1), or NCCL; else arrays will go through the memory of "
                "the host",
            )
        if info.mpi_takes_cuda_pointers and any(seen.ucx_remembers_memory for _, seen in ranks):
            yield Finding(
                "UCX, where the MPI uses it, may take a GPU's memory whose allocation it has not "
                "seen for the host's",
                "UCX_MEMTYPE_CACHE=n",
            )
        yield from _binding(info)
    # Each rank was given a device and cannot see the others'.
    visible = [other.visible_gpus for other, _ in ranks]
    if len(ranks) > 1 and all(text and "," not in text for text in visible):
        yield Finding(
            f"CUDA_VISIBLE_DEVICES shows one GPU to each of {len(ranks)} ranks",
            "srun --gpu-bind=none in place of --gpus-per-task=1, so that GPUs can reach each "
            "other directly; pfftjax then gives each rank its own",
        )


# The first NCCL in which that was seen.
_LL128_VERSION = (2, 27)


def _network(ranks: Sequence[tuple[Info, Observed]], nodes: int) -> Iterator[Finding]:
    """What GPUs and the networks of particular machines are known for."""
    info, observed = ranks[0]
    seen, transport = observed.network, info.gpu_transport or ""
    if not any(other.gpus for other, _ in ranks):
        return
    by_nccl = re.match(r"nccl \(NCCL (\d+)\.(\d+)", transport)
    cray = "CRAY MPICH" in info.mpi_library
    supports_gpus = seen.variables.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
    if by_nccl and seen.slingshot and nodes > 1 and not seen.nccl_plugin:
        yield Finding(
            "NCCL has loaded no plugin for Slingshot (aws-ofi-nccl), and goes from node to node "
            "by TCP",
            "load the site's module for it, or put the folder of its libnccl-net.so on "
            'LD_LIBRARY_PATH; NCCL_NET="AWS Libfabric" makes it an error if that is not found, or '
            "too old for this NCCL",
        )
    if (
        by_nccl
        and seen.slingshot
        and seen.architecture == "aarch64"
        and tuple(map(int, by_nccl.groups())) >= _LL128_VERSION
        and seen.variables.get("NCCL_LL128_C2C") != "0"
        and _takes_ll128(seen.variables.get("NCCL_PROTO", ""))
    ):
        yield Finding(
            f"{by_nccl[0].removeprefix('nccl (')} may deliver wrong numbers between nodes of "
            "GH200 with Slingshot, by its protocol LL128 (NVIDIA/nccl#2001)",
            "NCCL_LL128_C2C=0 on all ranks",
            wrong=True,
        )
    if by_nccl and cray and supports_gpus:
        yield Finding(
            "NCCL and Cray MPICH are both at work on GPUs, and may wait for each other for ever",
            "MPICH_GPU_SUPPORT_ENABLED=0: pfftjax hands the MPI nothing but memory of the host",
        )
    if cray and supports_gpus and not seen.gtl:
        yield Finding(
            "MPICH_GPU_SUPPORT_ENABLED=1 without the library for it (libmpi_gtl)",
            "build mpi4py with MPICC='cc -target-accel=nvidia80 -shared' (GH200: nvidia90), or "
            "set MPICH_GPU_SUPPORT_ENABLED=0",
        )
    allocator = seen.variables.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower()
    if transport.startswith("mpi") and allocator in ("cuda_async", "vmm"):
        yield Finding(
            f"the MPI is given pointers to memory of JAX's allocator {allocator}, which other "
            "processes cannot open",
            "unset XLA_PYTHON_CLIENT_ALLOCATOR, or take PFFTJAX_GPU_TRANSPORT=nccl",
        )
    if cray and (seen.driver or 0) >= 580 and re.search(r"version [0-8]\.", info.mpi_library):
        yield Finding(
            f"NVIDIA's driver {seen.driver} slows the messages between hosts of an older Cray "
            "MPICH",
            "compare the speed of MPI alone, above, with that of nodes without GPUs, and load a "
            "newer cray-mpich",
        )


def _takes_ll128(protocols: str) -> bool:
    """By NCCL_PROTO, a list of names, or of all but these."""
    named = "LL128" in protocols.lstrip("^").upper().split(",")
    return not protocols or named != protocols.startswith("^")


def _binding(info: Info) -> Iterator[Finding]:
    chosen = info.gpu_binding
    if chosen.sharing is not None and chosen.sharing > 1:
        memory = chosen.memory_fraction
        of_it = f", with {memory} of its memory each" if memory is not None else ""
        yield Finding(
            f"{chosen.sharing} ranks share a GPU{of_it}",
            "start as many ranks on a node as it has GPUs",
        )
    elif chosen.sharing == 1 and "shared by ranks" in (info.gpu_device or ""):
        yield Finding(
            "ranks share a GPU, which each of them took for its own",
            "show each rank another one in CUDA_VISIBLE_DEVICES, or all of them; or set "
            "XLA_CLIENT_MEM_FRACTION to 0.75 over the number of ranks that share it",
        )
    if chosen.reason == TOO_LATE and info.local_ranks != 1:
        yield Finding(
            "JAX had chosen GPUs before pfftjax could give each rank its own",
            "import pfftjax before the first array is made",
        )


# Usual is 0.6 of the speed of raw MPI, which goes between two buffers that have their pages.
_SLOW_LARGE = 0.3


def _speed(job: Job, hosts: int) -> Iterator[Finding]:
    size = len(job.ranks)
    crowded = any(len(job.ranks) > (info.node_cores or size) for info, _ in job.ranks)
    if size > 1 and job.large.raw < _SLOW_LARGE * job.large.jitted:
        yield Finding(
            f"a large exchange inside a program runs at {job.large.raw / job.large.jitted:.2f} of "
            "the speed of MPI alone",
            "run this again while nothing else runs on the node; if it stays, report it with "
            "this output",
        )
    if hosts == 1 and not crowded and job.small.raw > 200e-6 + 5e-6 * size:
        yield Finding(
            f"a small exchange within the node takes {job.small.raw * 1e6:.0f} us by MPI alone",
            "look for other programs on these cores (top), and see that MPI uses shared memory "
            "(Open MPI: --mca pml ob1 --mca btl self,sm)",
        )


def hints(job: Job) -> list[str]:
    """Advice that may help a job in which nothing is wrong or slow."""
    if job.has_compilation_cache:
        return []
    return [
        "programs are compiled in each run: JAX_COMPILATION_CACHE_DIR=<a folder that all nodes "
        "share> keeps them"
    ]

"""What the doctor finds, in jobs that are made up."""

import dataclasses

import pytest

import pfftjax
from pfftjax._runtime.device import TOO_LATE, Binding
from pfftjax._runtime.options import Options
from pfftjax.diagnostics.exchange_times import ExchangeTime
from pfftjax.diagnostics.findings import Job, Observed, findings, hints
from pfftjax.diagnostics.network import Network, network

HEALTHY = dataclasses.replace(
    pfftjax.info(),
    mpi_family="openmpi",
    mpi_implementation="openmpi",
    size=2,
    host="node1",
    local_ranks=2,
    node_cores=4,
    simd="avx2",
    options=Options(),
    huge_pages="madvise",
    ptrace_scope=0,
    xpmem=False,
    gpus=(),
    visible_gpus=None,
    gpu_binding=Binding(reason="JAX has no plugin for CUDA"),
    platforms=("cpu",),
    mpi_takes_cuda_pointers=False,
)
SEEN = Observed(xla_threads=2, reads_neighbour=True)


def job(each=lambda rank: {}, seen=lambda rank: {}, ranks=2, **rest):
    """A healthy job but for what is given."""

    def place(rank):
        cores = (2 * rank, 2 * rank + 1)
        return {"rank": rank, "size": ranks, "launched_ranks": ranks, "cores": cores}

    everyone = [
        (
            dataclasses.replace(HEALTHY, **{**place(rank), **each(rank)}),
            dataclasses.replace(SEEN, **seen(rank)),
        )
        for rank in range(ranks)
    ]
    small, large = ExchangeTime(16, 3e-6, 1e-6), ExchangeTime(1 << 24, 3e-3, 2e-3)
    return Job(everyone, **{"small": small, "large": large, **rest})


def one(job):
    """The only finding."""
    (finding,) = findings(job)
    return finding


def test_nothing():
    assert findings(job()) == []
    assert findings(job(ranks=1)) == []
    assert hints(job()) == []


def test_a_compilation_cache_is_a_hint():
    (hint,) = hints(job(has_compilation_cache=False))
    assert "JAX_COMPILATION_CACHE_DIR" in hint


def test_a_wrong_result():
    finding = one(job(seen=lambda rank: {"wrong": ("alltoall",) if rank == 1 else ()}))
    assert str(finding).startswith("alltoall gives a wrong result on rank 1: build pfftjax again")
    assert finding.wrong


def test_processes_of_another_mpi():
    finding = one(
        job(
            lambda _: {"launched_ranks": 4, "cores": (0,), "node_cores": 1},
            ranks=1,
            seen=lambda _: {"xla_threads": 1},
        )
    )
    assert "the launcher has started 4 processes, but they are jobs of 1 each" in str(finding)
    assert "the mpirun of the MPI that mpi4py runs on" in finding.remedy
    assert finding.wrong


def test_another_mpirun_on_the_path():
    finding = one(job(ranks=1, mpirun_implementation="mpich"))
    assert "mpirun on PATH is one of mpich, and mpi4py runs on openmpi" in str(finding)
    assert findings(job(ranks=1, mpirun_implementation="openmpi")) == []
    # An MPI that does not say what it is cannot be compared.
    unknown = job(lambda _: {"mpi_implementation": None}, ranks=1, mpirun_implementation="mpich")
    assert findings(unknown) == []


def test_what_differs():
    def each(rank):
        return {"simd": "avx512" if rank == 3 else "avx2", "node_cores": 4}

    finding = one(job(each, ranks=4))
    assert "ranks differ in simd: avx2 on ranks 0-2; avx512 on rank 3" in finding.text
    assert "PFFTJAX_SIMD" in finding.remedy
    finding = one(job(lambda rank: {"x64": rank == 0}))
    assert finding.wrong
    assert "JAX_ENABLE_X64" in finding.remedy
    finding = one(job(lambda rank: {"options": Options(debug=rank == 0)}))
    assert "options: PFFTJAX_DEBUG=1 on rank 0; defaults on rank 1" in finding.text
    finding = one(job(lambda rank: {"platforms": ("CUDA", "cpu") if rank else ("cpu",)}))
    assert finding.text.startswith("ranks differ in platforms: ('cpu',) on rank 0; ")


def test_a_variable_with_a_wrong_name():
    finding = one(job(seen=lambda _: {"unknown_variables": ("PFFTJAX_CHEKC",)}))
    assert "PFFTJAX_CHEKC in the environment means nothing" in finding.text


@pytest.mark.parametrize(
    ("implementation", "yields", "remedy"),
    [
        ("openmpi", False, "--oversubscribe"),
        ("mpich", False, "MPIR_CVAR_POLLS_BEFORE_YIELD=0"),
        ("mpich", True, "start at most 2 ranks on each node"),
    ],
)
def test_more_ranks_than_cores(implementation, yields, remedy):
    finding = one(
        job(
            lambda _: {
                "mpi_implementation": implementation,
                "node_cores": 2,
                "cores": (0, 1),
            },
            lambda _: {"yields": yields, "xla_threads": 2},
            ranks=3,
        )
    )
    assert finding.text == "3 ranks run on 2 cores on node1"
    assert finding.remedy.endswith(remedy)


def test_ranks_on_one_core():
    finding = one(job(lambda _: {"cores": (2,)}, lambda _: {"xla_threads": 1}))
    assert finding.text == "2 ranks share core 2, of 4 on node1"
    assert "--bind-to core" in finding.remedy


def test_one_core_a_rank_where_there_are_more():
    finding = one(job(lambda rank: {"cores": (rank,)}, lambda _: {"xla_threads": 1}))
    assert finding.text == "each of 2 ranks may use one core only, of 4 on node1"
    assert "PE=2" in finding.remedy
    assert (
        findings(
            job(lambda rank: {"cores": (rank,), "node_cores": 2}, lambda _: {"xla_threads": 1})
        )
        == []
    )


def test_more_threads_than_cores():
    finding = one(job(seen=lambda _: {"xla_threads": 16}))
    assert finding.text == "XLA computes with 16 threads on cores 0-1 of a rank on node1"


@pytest.mark.parametrize("cores", [(0, 1), (0, 1, 2, 3)])
def test_ranks_that_are_not_bound(cores):
    """MPICH's mpirun binds nothing by itself."""
    finding = one(job(lambda _: {"cores": cores}, lambda _: {"xla_threads": len(cores)}))
    assert finding.text.startswith(f"2 ranks have {2 * len(cores)} threads in all for cores 0-")
    assert "-bind-to core" in finding.remedy
    assert not finding.wrong
    # With NPROC=1, or where GPUs compute, ranks do not get into each other's way.
    assert findings(job(lambda _: {"cores": cores}, lambda _: {"xla_threads": 1})) == []
    gpus = {"gpus": ("NVIDIA H100",), "gpu_binding": Binding(device=0, reason="the launcher")}
    on_gpus = job(lambda _: {"cores": cores, **gpus})
    assert not any("threads in all" in found.text for found in findings(on_gpus))


def test_huge_pages():
    finding = one(job(lambda _: {"huge_pages": "never"}))
    assert "echo madvise" in finding.remedy


@pytest.mark.parametrize(
    ("scope", "remedy"), [(0, "SYS_PTRACE"), (None, "SYS_PTRACE"), (1, "ptrace_scope=0")]
)
def test_memory_of_other_ranks(scope, remedy):
    def seen(_):
        return {"reads_neighbour": False}

    finding = one(job(lambda _: {"ptrace_scope": scope}, seen))
    assert remedy in finding.remedy
    assert findings(job(lambda _: {"xpmem": True}, seen)) == []


def test_gpus():
    first, second = findings(job(lambda _: {"gpus": ("cuda:0",)}))
    assert "JAX_PLATFORMS=cpu" in first.remedy
    assert "not CUDA-aware" in second.text
    # Unknown is not a no.
    assert not findings(
        job(
            lambda _: {
                "gpus": ("cuda:0",),
                "platforms": ("CUDA", "cpu"),
                "mpi_takes_cuda_pointers": None,
            }
        )
    )


@pytest.mark.parametrize(
    ("transport", "texts"),
    [
        ("nccl (NCCL 2.27.3 on XLA's stream)", []),
        ("staging, and not nccl: there is none", ["through the memory of the host: staging"]),
    ],
)
def test_transports_between_gpus(transport, texts):
    gpus = {"gpus": ("cuda:0",), "platforms": ("CUDA", "cpu"), "gpu_transport": transport}
    found = findings(job(lambda _: gpus))
    assert [text in finding.text for text, finding in zip(texts, found, strict=True)] == [True] * (
        len(texts)
    )


def test_gpus_and_ranks():
    on_cuda = {"gpus": ("cuda:0",), "platforms": ("CUDA", "cpu"), "mpi_takes_cuda_pointers": None}
    shared = Binding(0, 1, sharing=2, memory_fraction=0.375)
    finding = one(job(lambda _: {**on_cuda, "gpu_binding": shared}))
    assert finding.text.startswith("2 ranks share a GPU, with 0.375 of its memory each on node1")
    assert findings(job(lambda rank: {**on_cuda, "gpu_binding": Binding(rank, 2, 1)})) == []
    finding = one(job(lambda _: {**on_cuda, "gpu_binding": Binding(reason=TOO_LATE)}))
    assert "import pfftjax before" in finding.remedy
    aware = {**on_cuda, "mpi_takes_cuda_pointers": True}
    finding = one(job(lambda _: aware, lambda _: {"ucx_remembers_memory": True}))
    assert finding.remedy == "UCX_MEMTYPE_CACHE=n"


def test_gpus_on_some_ranks_only():
    finding = findings(job(lambda rank: {"gpus": ("cuda:0",)[: rank % 2]}, ranks=3))[0]
    assert finding.text == "JAX has GPUs, but not on ranks 0,2"
    assert finding.wrong


def test_a_gpu_that_was_taken_for_one_of_its_own():
    """CUDA_VISIBLE_DEVICES=0 on all ranks of a node with more."""
    seen = {"gpus": ("cuda:0",), "platforms": ("CUDA", "cpu"), "mpi_takes_cuda_pointers": None}
    bound = {**seen, "gpu_binding": Binding(0, 1, sharing=1)}
    finding = one(job(lambda _: {**bound, "gpu_device": "GPU-0, shared by ranks 0, 1"}))
    assert finding.text == "ranks share a GPU, which each of them took for its own on node1"
    assert "XLA_CLIENT_MEM_FRACTION" in finding.remedy
    assert findings(job(lambda rank: {**bound, "gpu_device": f"GPU-{rank}"})) == []


def test_hidden_gpus():
    finding = one(job(lambda rank: {"visible_gpus": str(rank)}))
    assert "one GPU to each of 2 ranks" in finding.text
    assert "--gpu-bind=none" in finding.remedy
    for visible in ("0,1", None, ""):
        assert findings(job(lambda _, visible=visible: {"visible_gpus": visible})) == []


def test_nodes_in_the_same_state_say_so_once():
    finding = one(job(lambda rank: {"host": f"node{rank // 2}", "huge_pages": "never"}, ranks=6))
    assert finding.text == "transparent huge pages are switched off on node0 and 2 more nodes"


def test_slow_exchanges():
    finding = one(job(large=ExchangeTime(1 << 24, 20e-3, 2e-3)))
    assert "runs at 0.10 of the speed of MPI alone" in finding.text
    slow = ExchangeTime(16, 2e-3, 1e-3)
    assert "takes 1000 us by MPI alone" in one(job(small=slow)).text
    # Between nodes there is no telling, and where ranks wait for a core it is said already.
    assert findings(job(lambda rank: {"host": f"node{rank}"}, small=slow)) == []
    crowded = job(
        lambda _: {"node_cores": 1, "cores": (0,)}, lambda _: {"xla_threads": 1}, small=slow
    )
    assert "ranks run on" in one(crowded).text


def on_gpus(transport, ranks=2, library="CRAY MPICH version 8.1.30", **seen):
    """A job of one rank a node, on GPUs of a machine with Slingshot, where all is as it should."""
    there = {"slingshot": True, "nccl_plugin": True, "gtl": True, "architecture": "aarch64"}
    variables = {"NCCL_LL128_C2C": "0", **seen.pop("variables", {})}
    of_network = Network(**{**there, "variables": variables, **seen})
    return job(
        lambda rank: {
            "host": f"node{rank}",
            "local_ranks": 1,
            "mpi_implementation": "mpich",
            "mpi_library": library,
            "gpus": ("cuda:0",),
            "platforms": ("CUDA", "cpu"),
            "gpu_transport": transport,
        },
        lambda _: {"network": of_network},
        ranks=ranks,
    )


NCCL = "nccl (NCCL 2.27.5 on XLA's stream)"


@pytest.mark.parametrize(
    ("transport", "seen", "text", "remedy"),
    [
        (NCCL, {"nccl_plugin": False}, "goes from node to node by TCP", "AWS Libfabric"),
        (NCCL, {"variables": {"NCCL_LL128_C2C": "1"}}, "NCCL 2.27 may deliver wrong", "C2C=0"),
        (
            NCCL,
            {"variables": {"MPICH_GPU_SUPPORT_ENABLED": "1"}},
            "NCCL and Cray MPICH are both at work on GPUs",
            "MPICH_GPU_SUPPORT_ENABLED=0",
        ),
        (
            "staged by nobody",
            {"variables": {"MPICH_GPU_SUPPORT_ENABLED": "1"}, "gtl": False},
            "MPICH_GPU_SUPPORT_ENABLED=1 without the library",
            "-target-accel=nvidia80",
        ),
        (
            "mpi (MPI on device pointers)",
            {"variables": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}},
            "pointers to memory of JAX's allocator cuda_async",
            "unset XLA_PYTHON_CLIENT_ALLOCATOR",
        ),
        (NCCL, {"driver": 580}, "NVIDIA's driver 580 slows the messages", "newer cray-mpich"),
    ],
)
def test_traps_of_machines_with_gpus(transport, seen, text, remedy):
    finding = one(on_gpus(transport, **seen))
    assert text in finding.text
    assert remedy in finding.remedy
    assert finding.wrong == ("wrong" in text)


@pytest.mark.parametrize(
    "healthy",
    [
        on_gpus(NCCL),
        on_gpus(NCCL, driver=570),
        on_gpus(NCCL, driver=590, library="CRAY MPICH version 9.0.0"),
        on_gpus(NCCL, ranks=1, nccl_plugin=False),  # within one node
        on_gpus(NCCL, slingshot=False, nccl_plugin=False),
        on_gpus(NCCL, architecture="x86_64", variables={"NCCL_LL128_C2C": ""}),
        on_gpus(NCCL.replace("27", "26"), variables={"NCCL_LL128_C2C": ""}),
        on_gpus(NCCL, variables={"NCCL_LL128_C2C": "", "NCCL_PROTO": "^LL128"}),
        on_gpus(NCCL, variables={"NCCL_LL128_C2C": "", "NCCL_PROTO": "LL,Simple"}),
        on_gpus(NCCL, variables={"XLA_PYTHON_CLIENT_ALLOCATOR": "vmm"}),
        on_gpus("mpi (MPI on device pointers)", variables={"MPICH_GPU_SUPPORT_ENABLED": "1"}),
    ],
)
def test_machines_with_gpus_that_are_right(healthy):
    assert findings(healthy) == []


def test_protocols_of_which_one_is_wrong():
    for protocols in ("LL128", "^LL", "Simple,LL128"):
        variables = {"NCCL_LL128_C2C": "", "NCCL_PROTO": protocols}
        assert "LL128" in one(on_gpus(NCCL, variables=variables)).text


def test_a_node_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_NET", "AWS Libfabric")
    assert network(tmp_path).slingshot is network(tmp_path).nccl_plugin is False
    for name, text in {
        "proc/self/maps": "7f00 r-xp /lib/libnccl-net.so\n7f01 r-xp /x/libmpi_gtl_cuda.so.0",
        "sys/module/nvidia/version": "580.65.06\n",
        "sys/class/net/hsn0/address": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    seen = network(tmp_path)
    assert (seen.slingshot, seen.nccl_plugin, seen.gtl, seen.driver) == (True, True, True, 580)
    assert seen.variables["NCCL_NET"] == "AWS Libfabric"

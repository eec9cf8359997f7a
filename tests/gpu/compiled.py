"""What XLA's compiler for GPUs makes of our programs, on a machine without a GPU: `make cuda`.

JAX's plugin for CUDA compiles for a GPU that is only described, without a driver or a library of
NVIDIA's. What comes out is what would run there, in the order in which it would be enqueued.
"""

import dataclasses
import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies

import pfftjax
from pfftjax import ExchangeMethod, PencilFFT, ProcessGrid, pm
from pfftjax import collectives as pc
from tests import gpu_programs
from tests.distributed import grids
from tests.helpers import SIZE
from tests.pm.universe import cosmology

# XLA compiles for minutes on a busy machine.
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1500)]

# The fields are those of xla/stream_executor/device_description.proto; the figures are those of
# NVIDIA's data sheets.
DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {optin}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 }}
device_description_str: "{name}"
"""
_HOPPER = {"major": 9, "shared": 233472, "optin": 232448, "cores": 132, "fpus": 128}
_AMPERE = {"major": 8, "shared": 167936, "optin": 166912, "cores": 108, "fpus": 64}
DEVICES = {
    "H200": {
        **_HOPPER,
        "bandwidth": 4_800_000_000_000,
        "cache": 50 << 20,
        "clock": 1.98,
        "memory": 141_000_000_000,
    },
    "A100": {
        **_AMPERE,
        "bandwidth": 1_555_000_000_000,
        "cache": 40 << 20,
        "clock": 1.41,
        "memory": 40_000_000_000,
    },
}


class Operation(NamedTuple):
    """A line of a compiled program."""

    kind: str  # of operation; of a call of ours, its target
    bytes: int  # of its largest result


class Compiled(NamedTuple):
    """A program for a GPU."""

    computations: dict[str, list[Operation]]  # entry, and bodies of loops and branches
    temporaries: int  # bytes
    calls: list[str]  # of ours, in the order of the program that was compiled

    def all(self) -> list[Operation]:
        """The operations of all computations, in the order of each."""
        return [line for lines in self.computations.values() for line in lines]


@functools.cache
def _sharding(device: str) -> Any:
    description = DESCRIPTION.format(name=f"NVIDIA {device}", **DEVICES[device])
    topology = topologies.get_topology_desc(
        topology_name=device, platform="cuda", target_config=description, topology="1x1x1"
    )
    mesh = jax.sharding.Mesh(topology.devices, ("device",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


_BITS = {"pred": 8, "c64": 64, "c128": 128, "bf16": 16}


def _bytes(shapes: str) -> int:
    sizes = [0]
    for dtype, dims in re.findall(r"\b(pred|bf16|[a-z]\d+)\[([\d,]*)\]", shapes):
        count = 1
        for n in filter(None, dims.split(",")):
            count *= int(n)
        bits = _BITS.get(dtype) or int(dtype[1:])
        sizes.append(count * bits // 8)
    return max(sizes)


def compiled(function: Any, *operands: Any, device: str = "H200", **options: Any) -> Compiled:
    """A function, as it would run on a GPU; operands are arrays, or their shapes."""
    place = _sharding(device)
    # Not the arrays themselves: they are in another memory.
    operands = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), operands)
    jitted = jax.jit(function, in_shardings=place, out_shardings=place, **options)
    lowered = jitted.trace(*operands).lower(lowering_platforms=("cuda",))
    program = lowered.compile()
    computations: dict[str, list[Operation]] = {}
    # Only the calls of fusions, comparators and the like are operations of a stream.
    for block in re.split(r"\n\n+(?=%|ENTRY)", program.as_text()):
        head, _, body = block.partition("{\n")
        match = re.match(r"(ENTRY )?%(\S+) \(", head)
        if not match or "fused_" in match[2] or "wrapped_" in match[2]:
            continue
        lines = []
        for line in body.splitlines():
            found = re.match(r"\s+(?:ROOT )?%\S+ = (.*?) ([a-z][\w-]*)\(", line)
            if found:
                target = re.search(r'custom_call_target="(\w+)"', line)
                lines.append(Operation(target[1] if target else found[2], _bytes(found[1])))
        computations["ENTRY" if match[1] else match[2]] = lines
    return Compiled(
        computations,
        program.memory_analysis().temp_size_in_bytes,
        re.findall(r"custom_call @(pfftjax_\w+)", lowered.as_text()),
    )


def in_order(kinds: list[str]) -> list[str]:
    """Those of our calls that are ordered: all but the one that communicates with nobody."""
    return [kind for kind in kinds if kind.startswith("pfftjax_") and "coordinate" not in kind]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["collectives", "transforms", "transforms of real numbers"])
def test_calls_stay_in_order(name, device):
    """All of them, and none twice."""
    if name == "collectives":
        function, operands = gpu_programs.collectives()
        operands = (operands,)
    else:
        function, operands = gpu_programs.transforms("real" in name)
    program = compiled(function, *operands, device=device)
    entry = [line.kind for line in program.computations["ENTRY"]]
    assert in_order(entry) == in_order(program.calls)


def test_slices_of_operands_and_updates_by_results():
    """Which XLA would compute together with a call, and cannot where there are tokens."""

    def program(xs):
        def body(total, x):
            y = pc.alltoall(x)
            return total + y.sum(), y

        return jax.lax.scan(body, 0.0, xs), pc.allgather(xs[1])

    found = compiled(program, jax.ShapeDtypeStruct((5, SIZE, 64), jnp.float32))
    calls = [line.kind for line in found.all() if "pfftjax" in line.kind]
    assert sorted(calls) == ["pfftjax_allgather", "pfftjax_alltoall"]


@pytest.mark.parametrize("name", ["initial_conditions", "simulation", "statistics", "nufft"])
def test_other_programs(name):
    function, operands = getattr(gpu_programs, name)()
    found = compiled(function, *operands)
    assert set(found.calls) == {line.kind for line in found.all() if "pfftjax" in line.kind}


@pytest.mark.parametrize("real", [False, True])
def test_a_transform_is_no_more_than_it_must_be(real):
    """cuFFT and our redistributions, no copies, and one array beside operand and result: two
    where blocks differ, as those of a half spectrum do.
    """
    n = 128
    for grid in grids():
        plan = PencilFFT((n, n, n), grid, real=real)
        x = jax.ShapeDtypeStruct(plan.input.local_shape, jnp.float32 if real else jnp.complex64)
        program = compiled(plan.forward, x)
        kinds = [line.kind for line in program.computations["ENTRY"]]
        exchanges = sum(n > 1 for n in grid.dims)
        # Two axes that are whole on a rank are transformed together; an axis of the grid that is
        # not split, after the first, is turned by XLA.
        assert kinds.count("pfftjax_pencil_transpose") == exchanges
        assert kinds.count("fft") == (2 if grid.dims[1] == 1 else 3 - (exchanges == 0))
        assert kinds.count("fusion") == (grid.dims[0] == 1)
        assert kinds.count("copy") == 0
        if SIZE != 3:
            assert program.temporaries < (2.2 * 4 if real else 1.001 * 8) * n**3 // SIZE


def test_an_inverse_transform_is_conjugated_once_on_each_side():
    """XLA has no inverse FFT that does not scale: what is between two forward ones goes away."""
    for grid in grids():
        plan = PencilFFT((64, 64, 64), grid)
        y = jax.ShapeDtypeStruct(plan.output.local_shape, jnp.complex64)
        program = compiled(lambda y, plan=plan: plan.inverse(3.0 * y).real, y)
        kinds = [line.kind for line in program.computations["ENTRY"]]
        turned = grid.dims[0] == 1  # by XLA
        assert kinds.count("fusion") == 2 + turned


@pytest.mark.skipif(SIZE > 1, reason="ranks exchange between transforms")
def test_three_axes_of_one_gpu_are_transformed_together():
    """On the way back they are turned first. XLA's operation for a real result has a pass that
    scales, and its fusion before that one makes imaginary parts zero.
    """
    for real, kinds in (
        (False, ["fusion", "fft", "fusion"]),
        (True, ["fusion", "fft", "fusion", "fft"]),
    ):
        plan = PencilFFT((128, 128, 128), ProcessGrid(), real=real)
        y = jax.ShapeDtypeStruct(plan.output.local_shape, jnp.complex64)
        entry = compiled(plan.inverse, y).computations["ENTRY"]
        assert [line.kind for line in entry if line.kind in ("fft", "fusion", "copy")] == kinds


@pytest.mark.skipif(SIZE == 1, reason="nothing is exchanged")
@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_exchanges_are_under_way_while_others_are_transformed(direction):
    """In the order in which `pfftjax/pencils/_overlap.py` gives them to XLA."""
    plan = PencilFFT((64, 64, 64), ProcessGrid((None, 1)), method=ExchangeMethod.PIPELINED)
    ends = {"forward": plan.input, "inverse": plan.output}
    x = jax.ShapeDtypeStruct(ends[direction].local_shape, jnp.complex64)
    program = compiled(getattr(plan, direction), x)
    letters = {"fft": "f", "pfftjax_transpose_start": "s", "pfftjax_transpose_wait": "w"}
    order = "".join(letters.get(line.kind, "") for line in program.computations["ENTRY"])
    # A transform of planes has a part that is done for all chunks before or after.
    chunks = "fsfswf" + "fswf" * 2 + "wf"
    assert order == {"forward": "f" + chunks, "inverse": chunks + "f"}[direction]


def test_memory_of_a_simulation():
    """In float32, for each particle, beside the 36 bytes that hold it: the table of
    docs/gpu-details.md.
    """
    n, steps = 128, 10
    plan = PencilFFT((n, n, n), ProcessGrid((None, 1)), real=True)
    rows = n**3 // SIZE
    particles = pm.Particles(
        cell=jax.ShapeDtypeStruct((rows, 3), jnp.int32),
        offset=jax.ShapeDtypeStruct((rows, 3), jnp.float32),
        momentum=jax.ShapeDtypeStruct((rows, 3), jnp.float32),
        used=jax.ShapeDtypeStruct((), jnp.int32),
        total=n**3,
        mesh_shape=plan.shape,
    )

    def step(particles):
        return pm.step(particles, plan, 1000.0, cosmology(), 0.3, 0.31)

    def loss(offset, particles):
        start = dataclasses.replace(particles, offset=offset)
        factors = jnp.linspace(0.1, 1, steps + 1, dtype=jnp.float32)
        end = pm.simulate(start, plan, 1000.0, cosmology(), factors)
        return pfftjax.vdot(end.offset, end.momentum, plan.grid)

    forward = compiled(step, particles, donate_argnums=0).temporaries / rows
    gradient = compiled(jax.grad(loss), particles.offset, particles).temporaries / rows
    assert forward < (25 if SIZE == 1 else 53)
    assert gradient < (95 if SIZE == 1 else 245)

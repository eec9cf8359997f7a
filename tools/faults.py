"""What long runs on two nodes do when something fails: `make faults`; Linux, as root.

    python -m tools.faults                          every fault, into benchmarks/results
    python -m tools.faults --only "disk|mpirun"     those whose names have this, an expression

The nodes are namespaces (tools/nodes.py), two ranks on each. A small simulation that writes a
checkpoint after each step is disturbed at a step that is drawn by chance; its checkpoint must be
whole, and two jobs go on from it, on the same process grid and on another one. What came out
otherwise than docs/clusters.md promises is an error.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import h5py
import numpy as np

from tools import launcher, nodes
from tools.faults_program import OUTPUTS, SIZE

NODES, RANKS, GRID = 2, 4, "2x2"
# Where runs go on from a checkpoint: there, and on another number of ranks, one on each node.
OTHER_RANKS, OTHER_GRID = 2, "1x2"
STEPS, PAUSE = 24, 0.1
SECONDS_DOWN = 5.0
FULL = "No space left on device"
# The launcher's word for a rank that was killed, or the number of that signal; or the word of a
# rank on another node, which may be the first to notice: the launcher then names that one.
KILLED = r"(?i)killed|signal 9|signal: 9|exit code: 9$|socket closed"
# More than ranks wait for each other while they start on a busy machine.
TIMEOUT = 20
# The end of the job after a fault is to come in so many seconds; and a limit of any job.
SECONDS_TO_END, SECONDS_OF_JOB = 10.0, 240.0
# On another grid numbers are added up in another order, and gravity makes what that rounds grow:
# in cells, and in momenta.
ROUNDING = 1e-9
RESULTS = launcher.ROOT / "benchmarks" / "results"


class Job:
    """A run of the simulation on the nodes, whose output is kept line by line with its times."""

    def __init__(
        self,
        cluster: tuple[list[str], pathlib.Path],
        folder: pathlib.Path,
        *options: str,
        ranks: int = RANKS,
        grid: str = GRID,
        **settings: str,
    ) -> None:
        program = ["-m", "tools.faults_program", str(folder), "--grid", grid]
        program += ["--steps", str(STEPS), *options]
        environment = nodes.environment(**settings)
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)  # their names are passed on to the nodes
        try:
            command = nodes.command(ranks, *cluster, *program)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        self.folder = folder
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=launcher.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    @property
    def output(self) -> str:
        """All that the user has seen."""
        return "\n".join(line for _, line in list(self.lines))

    def steps(self) -> list[tuple[float, int]]:
        """The steps that are done, with their times."""
        found = ((at, re.match(r"step (\d+) of", line)) for at, line in list(self.lines))
        return [(at, int(match[1])) for at, match in found if match]

    def ranks(self) -> dict[int, int]:
        """The ranks that live, and the numbers of their processes outside of the nodes."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if str(self.folder).encode() not in (process / "cmdline").read_bytes().split(
                    b"\0"
                ):
                    continue
                text = (process / "environ").read_bytes()
                rank = re.search(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", text)
                if rank:
                    found[int(rank[1])] = int(process.name)
        return found

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Until `condition()`; an error with the output where it does not come."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not after {seconds:.0f} s:\n{self.output[-4000:]}")
            time.sleep(0.02)

    def wait_for_step(self, step: int) -> None:
        """Until so many steps are done; an error if the job ends before."""

        def is_there() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the job ended before step {step}:\n{self.output[-4000:]}")
            return bool(self.steps()) and self.steps()[-1][1] >= step

        self.wait_for(f"step {step}", is_there, SECONDS_OF_JOB)

    def end(self, seconds: float) -> tuple[int, float]:
        """The status of the launcher, and when it and all ranks had ended."""
        self.wait_for(
            "the end of all ranks and of the launcher",
            lambda: self.process.poll() is not None and not self.ranks(),
            seconds,
        )
        ended = time.monotonic()
        self._reader.join(timeout=5)
        return self.process.returncode, ended

    def stop(self) -> None:
        """Kill what is left."""
        for process in (self.process.pid, *self.ranks().values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


@dataclasses.dataclass
class Outcome:
    """What a fault did: the decisive line of the output, and how long the end took; or, where the
    run went on, how long no step was done. `launcher_waits`: it ended only when all nodes could be
    reached again.
    """

    step: int
    saw: str
    status: int
    seconds: float
    goes_on: bool = False
    launcher_waits: bool = False


@dataclasses.dataclass
class Trial:
    """A fault that is tried: the nodes, a folder for the run, a small disk, and a step."""

    cluster: tuple[list[str], pathlib.Path]
    folder: pathlib.Path
    disk: pathlib.Path
    step: int
    stack: contextlib.ExitStack

    def job(self, *options: str, **settings: str) -> Job:
        """The run, when it has come to the step."""
        job = Job(self.cluster, self.folder, *options, "--pause", str(PAUSE), **settings)
        self.stack.callback(job.stop)
        job.wait_for_step(self.step)
        return job

    def ended(
        self, job: Job, since: float, *texts: str, within: float = SECONDS_TO_END
    ) -> Outcome:
        """How the job ended: soon, not with status 0, and saying all of `texts`."""
        status, at = job.end(within + SECONDS_OF_JOB / 4)
        lines = job.output.splitlines()
        found = [next((line for line in lines if re.search(text, line)), "") for text in texts]
        if status == 0:
            raise RuntimeError(f"the job ended with status 0:\n{job.output[-4000:]}")
        if not all(found):
            raise RuntimeError(f"the output has not all of {texts}:\n{job.output[-4000:]}")
        if at - since > within:
            raise RuntimeError(f"the job took {at - since:.1f} s to end:\n{job.output[-4000:]}")
        said = [line for when, line in job.lines if when > since and not line.startswith("step")]
        return Outcome(self.step, _plain((found or said or ["nothing"])[0]), status, at - since)


def _plain(line: str) -> str:
    """A line without what differs from run to run: processes, folders, names of files to be."""
    line = re.sub(r"time = [^,]*\d{4}\b|\.tmp-\w+", "...", line)
    line = re.sub(r"/tmp/\S*/", "", line.strip())
    line = re.sub(r"\s*\|\s*", " ", line)
    return re.sub(r"\b(pid|PID|process) \d+", r"\1 ...", line)


# Faults ---------------------------------------------------------------------------------------


def link_is_down_for_seconds(trial: Trial) -> Outcome:
    """The run stands still and goes on."""
    job = trial.job()
    nodes.set_link(NODES, up=False)
    since = time.monotonic()
    try:
        time.sleep(SECONDS_DOWN)
        done = job.steps()[-1][1]
    finally:
        nodes.set_link(NODES, up=True)
    time.sleep(0.1)
    status, _ = job.end(SECONDS_OF_JOB)
    if status != 0:
        raise RuntimeError(f"the job ended with status {status}:\n{job.output[-4000:]}")
    after = next((at for at, step in job.steps() if at > since + SECONDS_DOWN), None)
    if after is None:
        raise RuntimeError(f"no step came after step {done}:\n{job.output[-4000:]}")
    others = [line for line in job.output.splitlines() if not line.startswith(("step", "the run"))]
    return Outcome(trial.step, _plain(" ".join(others)) or "nothing", status, after - since, True)


def link_is_down_for_good(trial: Trial) -> Outcome:
    """A wait of TIMEOUT seconds ends all ranks, also on the node that nobody reaches; the launcher
    may wait for that node, until the link is back.
    """
    job = trial.job(PFFTJAX_TIMEOUT=str(TIMEOUT))
    nodes.set_link(NODES, up=False)
    since, within = time.monotonic(), TIMEOUT + SECONDS_TO_END
    try:
        job.wait_for("the end of all ranks", lambda: not job.ranks(), within)
        seconds = time.monotonic() - since
        time.sleep(SECONDS_TO_END / 2)
        waits = job.process.poll() is None
    finally:
        nodes.set_link(NODES, up=True, wait_by=trial.cluster)
    outcome = trial.ended(job, time.monotonic(), "PFFTJAX_TIMEOUT", within=60)
    return dataclasses.replace(outcome, seconds=seconds, launcher_waits=waits)


def rank_is_killed(trial: Trial) -> Outcome:
    """SIGKILL on the second node."""
    job = trial.job()
    since = time.monotonic()
    os.kill(job.ranks()[RANKS - 1], signal.SIGKILL)
    return trial.ended(job, since, KILLED)


def rank_is_killed_while_it_writes(trial: Trial) -> Outcome:
    """SIGKILL while the new checkpoint is there under a name that is not yet its own."""
    job = trial.job()
    victim = job.ranks()[0]
    job.wait_for(
        "a checkpoint that is being written",
        lambda: any(trial.folder.glob("run.h5.tmp-*")),
        SECONDS_OF_JOB,
    )
    since = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return trial.ended(job, since, KILLED)


def rank_is_terminated(trial: Trial) -> Outcome:
    """SIGTERM to a rank."""
    job = trial.job()
    since = time.monotonic()
    os.kill(job.ranks()[RANKS - 1], signal.SIGTERM)
    return trial.ended(job, since, r"(?i)terminated|signal 15|signal: 15")


def launcher_is_terminated(trial: Trial) -> Outcome:
    """SIGTERM to mpirun, as a batch system sends it."""
    job = trial.job()
    since = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    return trial.ended(job, since)  # Open MPI's passes on nothing that ranks say after it


def disk_of_checkpoints_is_full(trial: Trial) -> Outcome:
    """Nothing more can be written where the checkpoint is."""
    job = trial.job("--checkpoints", str(trial.disk))
    since = time.monotonic()
    fill(trial.disk)
    outcome = trial.ended(job, since, "failed with OSError", FULL, r"run\.h5")
    shutil.copy(trial.disk / "run.h5", trial.folder)
    return outcome


def disk_of_outputs_is_full(trial: Trial) -> Outcome:
    """Nothing can be written where the outputs are: the first one is an error."""
    fill(trial.disk)
    job = trial.job("--outputs", str(trial.disk))
    first = f"a{OUTPUTS[0]:.2f}.h5"
    job.wait_for(
        "the first output",
        lambda: bool(re.search(r"No space left|Error", job.output)),
        SECONDS_OF_JOB,
    )
    outcome = trial.ended(job, time.monotonic(), "failed with OSError", FULL, first)
    return dataclasses.replace(outcome, step=job.steps()[-1][1])


FAULTS: dict[str, Callable[[Trial], Outcome]] = {
    f"a link is down for {SECONDS_DOWN:.0f} s": link_is_down_for_seconds,
    f"a link is down for good, PFFTJAX_TIMEOUT={TIMEOUT}": link_is_down_for_good,
    "SIGKILL to a rank": rank_is_killed,
    "SIGKILL to a rank that writes the checkpoint": rank_is_killed_while_it_writes,
    "SIGTERM to a rank": rank_is_terminated,
    "SIGTERM to mpirun": launcher_is_terminated,
    "a full disk for the checkpoint": disk_of_checkpoints_is_full,
    "a full disk for the outputs": disk_of_outputs_is_full,
}


# What is left ---------------------------------------------------------------------------------


def fill(disk: pathlib.Path) -> None:
    """Leave no room."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def small_disk(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 4 MiB, which nodes that are started later share."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def tables_of(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Positions in cells and momenta of all particles of a file, in the order of their names."""
    with h5py.File(path) as file:
        cell, offset, momentum = (np.asarray(file[n]) for n in ("cell", "offset", "momentum"))
    home = np.ravel_multi_index(tuple((cell % SIZE).T), (SIZE,) * 3)
    order = np.argsort(home, kind="stable")
    if cell.shape != (SIZE**3, 3) or len(np.unique(home)) != SIZE**3:
        raise RuntimeError(f"{path} has not all particles: {cell.shape}")
    if not (np.isfinite(offset).all() and np.isfinite(momentum).all()):
        raise RuntimeError(f"{path} has numbers that are not finite")
    return {"cell": cell[order], "offset": offset[order], "momentum": momentum[order]}


def checked_checkpoint(path: pathlib.Path, step: int) -> int:
    """How many stages a checkpoint has done, which is whole and not older than the fault."""
    tables_of(path)
    with h5py.File(path) as file:
        done = int(np.asarray(file.attrs["stages"]))
    if done < step - 1:
        raise RuntimeError(f"the checkpoint has {done} steps, though {step} were done")
    return done


def difference(one: pathlib.Path, other: pathlib.Path) -> float:
    """The largest difference of positions, in cells, and of momenta, of their size; 0 where all
    bits are the same.
    """
    a, b = tables_of(one), tables_of(other)
    if all(a[name].tobytes() == b[name].tobytes() for name in a):
        return 0.0
    moved = np.abs((a["cell"] - b["cell"]) + (a["offset"] - b["offset"])).max()
    size = np.abs(a["momentum"]).max()
    # Two numbers of one value and other bits, as zeros of both signs, are a difference too.
    return max(moved, np.abs(a["momentum"] - b["momentum"]).max() / size, np.finfo(float).tiny)


def restarted(trial: Trial) -> list[pathlib.Path]:
    """Go on from copies of the checkpoint, on both grids at once; the folders with the outputs."""
    jobs = []
    for ranks, grid in ((RANKS, GRID), (OTHER_RANKS, OTHER_GRID)):
        copy = trial.folder.with_name(f"{trial.folder.name}-{grid}")
        copy.mkdir()
        shutil.copy(trial.folder / "run.h5", copy)
        jobs.append(Job(trial.cluster, copy, ranks=ranks, grid=grid))
        trial.stack.callback(jobs[-1].stop)
    for job in jobs:
        status, _ = job.end(SECONDS_OF_JOB)
        if status != 0 or not re.search("^the run is complete", job.output, re.MULTILINE):
            raise RuntimeError(f"a restart ended with status {status}:\n{job.output[-4000:]}")
    return [job.folder for job in jobs]


def tried(name: str, trial: Trial, undisturbed: pathlib.Path | None) -> dict[str, object]:
    """What a fault did, and what restarts gave if there is an undisturbed run to compare with."""
    outcome = FAULTS[name](trial)
    with contextlib.suppress(FileNotFoundError):
        (trial.disk / "ballast").unlink()
    done = checked_checkpoint(trial.folder / "run.h5", outcome.step)
    last = f"a{OUTPUTS[-1]:.2f}.h5"
    same, *others = None, None
    if undisturbed is not None:
        folders = [trial.folder] if outcome.goes_on else restarted(trial)
        same, *others = (difference(folder / last, undisturbed / last) for folder in folders)
    if same:
        raise RuntimeError(f"on the same grid the run differs by {same:.1e}: other bits")
    if others and others[0] is not None and not others[0] < ROUNDING:
        raise RuntimeError(f"on another grid the run differs by {others[0]:.1e}: no rounding")
    return {
        "fault": name,
        "step": outcome.step,
        "saw": outcome.saw,
        "status": outcome.status,
        "goes_on": outcome.goes_on,
        "launcher_waits": outcome.launcher_waits,
        "seconds": round(outcome.seconds, 1),
        "steps_in_checkpoint": done,
        "same_grid_differs_by": same,
        "other_grid_differs_by": others[0] if others else None,
    }


def keep(row: dict[str, object]) -> None:
    """Write what a fault did into the results, in place of what it did before."""
    path = RESULTS / f"faults-{launcher.family()}.json"
    before = json.loads(path.read_text())["faults"] if path.exists() else []
    rows = {found["fault"]: found for found in (*before, row)}
    kept = {"faults": [rows[name] for name in FAULTS if name in rows]}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> int:
    """Try every fault; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="an expression that is in their names")
    parser.add_argument("--seed", type=int, default=None, help="draws the steps")
    parser.add_argument("--without-restarts", action="store_true", help="only disturb runs")
    arguments = parser.parse_args()
    seed = arguments.seed
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    print(f"--seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the nodes end too
    draw = random.Random(seed)
    failed, rows = collections.Counter[str](), []
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = os.environ.get("JAX_COMPILATION_CACHE_DIR") or scratch / "programs"
        os.environ |= launcher.kept_programs(pathlib.Path(programs))
        os.environ |= {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
        disk = stack.enter_context(small_disk(scratch / "disk"))
        cluster = stack.enter_context(nodes.nodes(NODES, ""))
        undisturbed = None
        if not arguments.without_restarts:
            undisturbed = scratch / "undisturbed"
            undisturbed.mkdir()
            whole = Job(cluster, undisturbed)
            stack.callback(whole.stop)
            if whole.end(SECONDS_OF_JOB)[0] != 0:
                sys.exit(f"the undisturbed run failed:\n{whole.output[-4000:]}")
        for number, name in enumerate(FAULTS):
            step = draw.randrange(3, int(STEPS * 0.5))
            if not re.search(arguments.only, name):
                continue
            folder = scratch / f"fault{number}"
            folder.mkdir()
            try:
                with contextlib.ExitStack() as own:
                    trial = Trial(cluster, folder, disk, step, own)
                    rows.append(tried(name, trial, undisturbed))
            except RuntimeError as error:
                failed[name] += 1
                print(f"{name}: {error}", flush=True)
            else:
                print(json.dumps(rows[-1], indent=1), flush=True)
                keep({**rows[-1], "of_steps": STEPS, "seed": seed})
    print(f"{len(rows)} faults did what they should; {len(failed)} did not: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

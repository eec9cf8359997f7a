"""A cluster with Slurm made of this machine, and jobs on it: `make slurm`; Debian, as root.

    python -m tools.slurm                     all that is checked
    python -m tools.slurm -- srun -n 4 hostname      anything else there

Installs Debian's packages where they are missing. Two nodes are namespaces (tools/nodes.py), each
with a slurmd and two cores, which are the same for both. What is submitted is
examples/slurm/cpu.sh, with a site's own lines in place of those marked "SITE".
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from tools import launcher, nodes

# Slurm loads PMIx from where Debian's package for developers has it.
PACKAGES = ("slurm-wlm", "munge", "libpmix-dev", "iproute2")
CORES = 2
RANKS = 2 * CORES
# The simulation takes about so long: the second of its three jobs runs into a limit of a minute.
SECONDS = 110.0
CONFIGURATION = """
ClusterName=pfftjax
SlurmctldHost={host}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
PartitionName=cpu Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def install() -> None:
    """Install what is missing."""
    programs = ("slurmctld", "slurmd", "munged", "ip")
    if (
        not all(map(shutil.which, programs))
        or not pathlib.Path("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so").exists()
    ):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=quiet)
        subprocess.run(
            ["apt-get", "install", "-qq", "--no-install-recommends", *PACKAGES],
            check=True,
            env=quiet,
        )


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Until `condition()`; an error that says `what` did not come after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.5)


def said_by(*command: str) -> str:
    """What a command writes; its errors are ours."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[None]:
    """Start one; SLURM_CONF in this environment leads Slurm's commands to it."""
    with contextlib.ExitStack() as stack:
        addresses, ssh = stack.enter_context(nodes.nodes(2, ""))
        names = [f"node{number}" for number in range(1, len(addresses) + 1)]
        lines = [
            f"NodeName={name} NodeAddr={address} CPUs={CORES} Sockets=1 CoresPerSocket={CORES} "
            "ThreadsPerCore=1 State=UNKNOWN"
            for name, address in zip(names, addresses, strict=True)
        ]
        key, configuration = folder / "munge.key", folder / "slurm.conf"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "state").mkdir()
        text = CONFIGURATION.format(
            host=os.uname().nodename,
            address=nodes.NETWORK.format(254),
            folder=folder,
            nodes="\n".join(lines),
            names=",".join(names),
        )
        configuration.write_text(text)
        os.environ["SLURM_CONF"] = str(configuration)
        # The nodes share /tmp, but not this, where PMIx has files of one name for each of them.
        os.environ["SLURM_PMIX_TMPDIR"] = "/dev/shm"
        munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
        munge += [
            f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("socket", "pid-file")
        ]
        munge += [f"--{what}={folder}/munge.{what[:4]}" for what in ("log-file", "seed-file")]
        daemons = [munge, ["slurmctld", "-D", "-c"]]
        daemons += [
            [str(ssh), address, f"SLURM_CONF={configuration} slurmd -D -N {name}"]
            for name, address in zip(names, addresses, strict=True)
        ]
        log = stack.enter_context(open(folder / "daemons.log", "w"))
        for command in daemons:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            if command is munge:
                wait_for("munged", (folder / "munge.socket").exists, 10)
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        wait_for(
            "two idle nodes",
            lambda: subprocess.run(idle, capture_output=True, text=True).stdout.strip() == "2",
            60,
        )
        yield


def site(pmi: str, folder: pathlib.Path, program: str, script: str) -> str:
    """A script of examples/slurm with this site's lines; each of them must be in it, once."""
    home = pathlib.Path(sys.executable).parent
    changes = {
        r"#SBATCH --ntasks-per-node=128 .*": f"#SBATCH --ntasks-per-node={CORES}",
        r"module load .*": "",
        r"source .*": f"source {home}/activate",
        r"export JAX_COMPILATION_CACHE_DIR=.*": f"export JAX_COMPILATION_CACHE_DIR={folder}/cache",
        r"--mpi=pmix": pmi,
        r"--mesh 1024 --finer 1 --box 1000": program,
        r"--checkpoint \S+": f"--checkpoint {folder}/run.h5",
    }
    for old, new in changes.items():
        script, count = re.subn(rf"^(\s*|.*\s|.*\()?{old}", rf"\g<1>{new}", script, flags=re.M)
        if count != 1:
            raise RuntimeError(f"{old!r} is {count} times in the script, not once")
    return script


class Job:
    """A batch job, and what it has written."""

    def __init__(self, script: pathlib.Path, *options: str) -> None:
        self.log = script.with_suffix(".log")
        given = ["--parsable", f"--output={self.log}", "--open-mode=append", "--requeue"]
        self.number = said_by("sbatch", *given, *options, str(script)).strip()

    def state(self) -> str:
        """The state, in Slurm's words."""
        found = re.search(r"JobState=(\w+)", said_by("scontrol", "show", "job", self.number))
        assert found is not None
        return found[1]

    def ends_in(self, state: str, seconds: float) -> None:
        """Wait until it has ended, in that state."""
        going = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        wait_for(f"the end of job {self.number}", lambda: self.state() not in going, seconds)
        if self.state() != state:
            raise RuntimeError(f"{self.state()} for {state}:\n{self.log.read_text()[-3000:]}")


def check_places(options: list[str]) -> None:
    """Each rank has a core, knows how many share its node, and the grid spans both nodes."""
    script = (
        "import pfftjax; i = pfftjax.info(); g = pfftjax.ProcessGrid(); "
        "print(i.rank, i.size, i.host, i.local_ranks, *i.cores, *g.dims, sep='|')"
    )
    ranks = ["srun", "--nodes=2", f"--ntasks={RANKS}", *options]
    # The second time Slurm's own words are hidden, and MPI is asked.
    unset = [f"--unset={name}" for name in ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")]
    for told in ([], ["env", *unset]):
        lines = said_by(*ranks, *told, sys.executable, "-c", script).split()
        found = sorted(tuple(line.split("|")) for line in lines)
        cores = {(host, core) for _, _, host, _, core, *_ in found}
        if len(found) != RANKS or len(cores) != RANKS:
            raise RuntimeError(f"ranks share a core, or have several: {found}")
        for _, size, _, local, _, *dims in found:
            if (size, local, dims) != (str(RANKS), str(CORES), ["2", "2"]):
                raise RuntimeError(f"wrong numbers of ranks, or another grid: {found}")
    print(f"places: {RANKS} ranks on 2 nodes, {CORES} on each, a core each", flush=True)


def check_restarts(pmi: str, folder: pathlib.Path, options: list[str]) -> None:
    """A job that is cancelled, and one that runs into its time limit, go on to the same bits."""
    example = (launcher.ROOT / "examples" / "slurm" / "cpu.sh").read_text()
    simulation = [sys.executable, "examples/nbody_pm.py", "--mesh", "96", "--finer", "1"]

    def program(steps: int, out: str) -> list[str]:
        return ["--steps", str(steps), "--save-fields", "--out", str(folder / out)]

    ranks = ["srun", "--nodes=2", f"--ntasks={RANKS}", *options]
    said = said_by(*ranks, *simulation, *program(40, "short"))
    a_step = float(re.search(r"one step +(\d+) ms", said)[1]) / 1e3  # type: ignore[index]
    steps = int(SECONDS / max(a_step, 1e-3))
    print(f"restarts: {steps} steps of {1e3 * a_step:.0f} ms each", flush=True)
    said_by(*ranks, *simulation, *program(steps, "whole"))

    script, kept = folder / "cpu.sh", folder / "run.h5"
    wanted = f"--mesh 96 --finer 1 {' '.join(program(steps, 'parts'))}"
    script.write_text(site(pmi, folder, wanted, example))
    job = Job(script)
    wait_for("a start", lambda: job.log.exists() and "4 ranks as" in job.log.read_text(), 240)
    time.sleep(20)  # programs are compiled, and some steps are done
    said_by("scancel", "--signal=USR1", job.number)
    wait_for("a checkpoint", kept.exists, 60)
    said_by("scancel", job.number)
    job.ends_in("CANCELLED", 60)
    first = kept.stat().st_mtime
    print("restarts: a job that was cancelled has left a checkpoint", flush=True)

    job = Job(script, "--time=1", "--signal=USR1@5")
    job.ends_in("TIMEOUT", 300)
    if kept.stat().st_mtime <= first:
        raise RuntimeError(f"no checkpoint before the time limit:\n{job.log.read_text()[-3000:]}")
    print("restarts: one that ran into its time limit has left a later one", flush=True)
    # What waits may be given more time, and what has ended may not.
    said_by("scontrol", "requeuehold", job.number)
    wait_for("a job that waits", lambda: job.state() == "PENDING", 60)
    said_by("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    said_by("scontrol", "release", job.number)
    job.ends_in("COMPLETED", 1200)
    whole, parts = (np.load(folder / out / "fields.npz") for out in ("whole", "parts"))
    for name in whole.files:
        if whole[name].tobytes() != parts[name].tobytes():
            raise RuntimeError(f"{name} has other bits after three jobs than after one")
    print("restarts: requeued, it has the same bits as a run in one piece", flush=True)


def main() -> int:
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="*", help="after --: what to run there")
    arguments = parser.parse_args()
    install()
    pmi = f"--mpi={'pmix' if launcher.family() == 'openmpi' else 'pmi2'}"
    # Files of jobs are in memory that each node has for itself.
    os.environ |= launcher.environment(PYTHONPATH=str(launcher.ROOT), TMPDIR="/dev/shm")
    for name in ("JAX_ENABLE_X64", "OMPI_MCA_btl_sm_backing_directory"):
        del os.environ[name]
    os.chdir(launcher.ROOT)
    with tempfile.TemporaryDirectory() as name, cluster(pathlib.Path(name)):
        if arguments.program:
            return subprocess.run(arguments.program, check=False).returncode
        options = [pmi, "--cpu-bind=cores"]
        start = time.monotonic()
        check_places(options)
        check_restarts(pmi, pathlib.Path(name), options)
        print(f"Slurm: all is right, after {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

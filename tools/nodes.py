"""Several nodes made of this one, and jobs whose ranks they share: `make nodes`; Linux, as root.

    python -m tools.nodes                                  the tests of what nodes exchange
    python -m tools.nodes --ranks 3 --rate 1gbit -- -m benchmarks.methods    anything else

A node is what namespaces make it: a host name, a network, processes and shared memory of its own,
and files that it shares with the others. Ranks of different nodes reach each other by TCP only,
over a bridge, at `--rate` each way. Each rank of a program that is named here is bound to a core,
which ranks of several nodes may share; with `--unbound`, and in the tests, it may use all.

A link is to lose nothing, like those of clusters, so its queue holds what TCP has on its way over
some 16 connections, and what it dropped all the same is told at the end. TCP is told to fill it
(Reno). BBR, which a machine may use by itself, leaves a link half empty for a tenth of a second
where one of two connections pauses. What a shorter queue drops last is sent again after 200 ms.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time

from tools import launcher

BRIDGE = "pfftjax0"
NETWORK = "10.199.0.{}"
LINK = "PFFTJAX_TEST_LINK"  # Gbit/s, in the environment of ranks
QUEUE = "64m"  # of a link, in bytes
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
# Binds a rank to a core, and runs the rest of the command. Launchers would count the cores of each
# node alone, and give the first ranks of all nodes the same one.
_ON_A_CORE = """
import os, sys
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[rank % len(cores)]})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
# These tests send data between nodes and within one: by every method, by messages and collectives.
TESTS = (
    "tests/pencils",
    "tests/collectives/test_values.py",
    "tests/collectives/test_sendrecv.py",
    "tests/fft/test_values.py",
    "tests/fft/test_tuning.py",
    "tests/pm/test_exchange.py",
)


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()}")


def _start(name: str) -> tuple[subprocess.Popen[str], str]:
    """A process in namespaces of its own, which keeps them; and its number outside of them."""
    steps = (
        *(f"hostname {name}", "mount -t tmpfs tmpfs /dev/shm", f"echo reno > {CONGESTION}"),
        *("echo up", "exec sleep infinity"),
    )
    spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"]
    holder = subprocess.Popen(
        ["unshare", *spaces, "--kill-child", "sh", "-c", " && ".join(steps)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "up\n":
        raise RuntimeError(f"unshare ended with status {holder.wait()}; it needs root")
    children = pathlib.Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    return holder, children.read_text().split()[0]


@contextlib.contextmanager
def nodes(count: int, rate: str):
    """Start nodes; yields their addresses and the path of what stands in for ssh."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "delete", BRIDGE)
        _run("ip", "address", "add", NETWORK.format(254) + "/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        addresses, cases = [], []
        for number in range(1, count + 1):
            holder, pid = _start(f"node{number}")
            stack.callback(holder.wait)
            stack.callback(holder.kill)
            port, address = f"{BRIDGE}p{number}", NETWORK.format(number)
            peer = ["peer", "name", "eth0", "netns", pid]
            _run("ip", "link", "add", port, "type", "veth", *peer)
            # By itself it goes with the node's network, which connections may keep for a while.
            stack.callback(_run, "ip", "link", "delete", port)
            _run("ip", "link", "set", port, "master", BRIDGE, "up")
            if rate:
                shape = ["tbf", "rate", rate, "burst", "256k", "limit", QUEUE]
                _run("tc", "qdisc", "add", "dev", port, "root", *shape)
            within = ["nsenter", "--target", pid, "--net"]
            _run(*within, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            _run(*within, "ip", "link", "set", "lo", "up")
            _run(*within, "ip", "link", "set", "eth0", "up")
            addresses.append(address)
            cases.append(f"{address}) pid={pid} ;;")
        ssh = folder / "ssh"
        ssh.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            f'case "$1" in {" ".join(cases)} esac\n'
            "shift\n"
            "exec nsenter --target $pid --net --uts --ipc --mount --pid"
            ' env TMPDIR=/dev/shm sh -c "$*"\n'
        )
        ssh.chmod(0o755)
        yield addresses, ssh


def environment(**extra: str) -> dict[str, str]:
    """That of jobs on nodes, whose ranks share memory where each node has its own."""
    ours = launcher.environment(PYTHONPATH=str(launcher.ROOT), **extra)
    del ours["OMPI_MCA_btl_sm_backing_directory"]
    return ours


def _python(
    addresses: list[str], ssh: pathlib.Path, node: int, program: str, *arguments: str
) -> list[str]:
    """The command that runs a program of Python's on a node, counted from 1."""
    remote = shlex.join([sys.executable, "-c", program, *arguments])
    return [str(ssh), addresses[node - 1], remote]


_REACH = """
import socket, sys, time
end = time.monotonic() + 30
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1).close()
        break
    except OSError:
        if time.monotonic() > end:
            raise
        time.sleep(0.1)
"""


def set_link(
    node: int, *, up: bool, wait_by: tuple[list[str], pathlib.Path] | None = None
) -> None:
    """Take the link of a node down at the bridge, counted from 1, or up again: the node keeps its
    addresses and routes, as one whose cable is out. With what `nodes` yields in `wait_by`, wait
    until it reaches the bridge again.
    """
    _run("ip", "link", "set", f"{BRIDGE}p{node}", "up" if up else "down")
    if wait_by is not None:
        here = NETWORK.format(254)
        with socket.create_server((here, 0)) as server:
            _run(*_python(*wait_by, node, _REACH, here, str(server.getsockname()[1])))


def command(
    ranks: int, addresses: list[str], ssh: pathlib.Path, *arguments: str, bind: bool = False
) -> list[str]:
    """The command that runs `python arguments` on so many ranks, in blocks on the nodes."""
    mpirun, *options = launcher.command(ranks, *arguments)
    if bind:
        after_python = options.index(sys.executable) + 1
        options[after_python:after_python] = ["-c", _ON_A_CORE]
    parts = [
        ranks * (i + 1) // len(addresses) - ranks * i // len(addresses)
        for i in range(len(addresses))
    ]
    hosts = ",".join(f"{address}:{n}" for address, n in zip(addresses, parts, strict=True) if n)
    if launcher.family() == "mpich":
        by_ssh = ["-launcher", "ssh", "-launcher-exec", str(ssh)]
        return [mpirun, *by_ssh, "-localhost", NETWORK.format(254), "-hosts", hosts, *options]
    here = NETWORK.format(0) + "/24"
    names = [name for name in os.environ if name.startswith(("JAX_", "PFFTJAX_", "XLA_"))]
    return [
        *(mpirun, "--prtemca", "plm_ssh_agent", str(ssh), "--host", hosts),
        *("--prtemca", "prte_if_include", here, "--mca", "btl_tcp_if_include", here),
        *(part for name in ("PATH", *names) for part in ("-x", name)),
        *options,
    ]


_RECEIVE = """
import socket, time
server = socket.create_server(("", 5999))
print("up", flush=True)
connection, _ = server.accept()
start, count = time.monotonic(), 0
while data := connection.recv(1 << 20):
    count += len(data)
print(8e-9 * count / (time.monotonic() - start))
"""
_SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5999))
end = time.monotonic() + 1
while time.monotonic() < end:
    connection.sendall(bytes(1 << 18))
"""


def link_rate(addresses: list[str], ssh: pathlib.Path) -> float:
    """Gbit/s that one connection from the first node to the second carries: the best of three."""
    return max(_rate_once(addresses, ssh) for _ in range(3))


def dropped(count: int) -> int:
    """So many packets the links of the nodes have dropped."""
    total = 0
    for number in range(1, count + 1):
        show = ["tc", "-s", "qdisc", "show", "dev", f"{BRIDGE}p{number}"]
        said = subprocess.run(show, capture_output=True, text=True, check=True).stdout
        total += sum(map(int, re.findall(r"dropped (\d+)", said)))
    return total


def _rate_once(addresses: list[str], ssh: pathlib.Path) -> float:
    receive = _python(addresses, ssh, 2, _RECEIVE)
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        _run(*_python(addresses, ssh, 1, _SEND, addresses[1]))
        return float(receiver.stdout.read())


def main() -> int:
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", default="", help="of a node's network, as tc has it: 1gbit")
    parser.add_argument("--unbound", action="store_true", help="ranks may use all cores")
    parser.add_argument("program", nargs="*", help="after --: what Python is to run")
    arguments = parser.parse_args()
    bind = bool(arguments.program) and not arguments.unbound
    program = arguments.program or ["-m", "pytest", "--with-mpi", "-q", *TESTS]
    fast = {} if arguments.program else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    settings = environment(**fast)
    os.environ |= settings
    with nodes(arguments.nodes, arguments.rate) as (addresses, ssh):
        if arguments.nodes > 1:
            rate = link_rate(addresses, ssh)
            print(f"a link carries {rate:.2f} Gbit/s", flush=True)
            settings[LINK] = os.environ[LINK] = str(rate)  # for what measures
        start = time.monotonic()
        status = subprocess.run(
            command(arguments.ranks, addresses, ssh, *program, bind=bind),
            env=settings,
            check=False,
        ).returncode
        if lost := dropped(arguments.nodes):
            print(f"the links have dropped {lost} packets, which TCP has sent again")
    print(
        f"{arguments.ranks} ranks on {arguments.nodes} nodes: status {status}, "
        f"{time.monotonic() - start:.0f} s"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())

"""A rank that is a copy of a server (fork_server.py) is as a process of its own."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.jobs.job import as_a_copy
from tools import launcher

pytestmark = pytest.mark.timeout(60)

IS_A_COPY = "import sys; print('jax' in sys.modules, flush=True)\n"


def _start(program, *arguments, **options):
    options = {"env": launcher.environment(), "cwd": launcher.ROOT, **options}
    return subprocess.Popen(
        [sys.executable, *as_a_copy(), *program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def _output(*program, **options):
    process = _start(program, **options)
    output, errors = process.communicate("what it reads", timeout=50)
    assert process.returncode == 0, errors
    return output.split("\n", 1)


def test_what_a_program_sees(tmp_path):
    """Arguments, input, folder, open files, cores, environment and settings of JAX."""
    read, write = os.pipe()
    script = (
        "import jax, os\n"
        "print(sys.argv, sys.stdin.read(), os.getcwd())\n"
        "print(os.environ['WHAT'], 'HOME' in os.environ, __name__, sys.path[0] == '')\n"
        f"os.write({write}, b'written'); print(jax.numpy.ones(1).dtype)\n"
        "print(os.sched_getaffinity(0), jax.config.jax_compilation_cache_dir)\n"
    )
    cores = {min(os.sched_getaffinity(0))}
    settings = {"WHAT": "this", "JAX_ENABLE_X64": "0", "JAX_COMPILATION_CACHE_DIR": "/nowhere"}
    environment = launcher.environment(**settings)
    environment.pop("HOME", None)
    is_copy, output = _output(
        *("-c", IS_A_COPY + script, "a", "b c"),
        env=environment,
        cwd=tmp_path,
        pass_fds=[write],
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert is_copy == "True"
    assert output.split("\n")[:4] == [
        f"['-c', 'a', 'b c'] what it reads {tmp_path}",
        "this False __main__ True",
        "float32",
        f"{cores} /nowhere",
    ]
    assert os.read(read, 10) == b"written"
    for end in (read, write):
        os.close(end)


def test_a_program_in_a_file(tmp_path):
    (tmp_path / "beside.py").write_text("NUMBER = 3\n")
    text = (
        "import beside\nprint(sys.argv, beside.NUMBER, __file__)\nraise SystemExit(beside.NUMBER)"
    )
    (tmp_path / "program.py").write_text(IS_A_COPY + text)
    process = _start(["program.py"], "x", cwd=tmp_path)
    output, _ = process.communicate(timeout=50)
    assert output.split("\n")[:2] == ["True", "['program.py', 'x'] 3 program.py"]
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("setting", "value"),
    [("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false"), ("JAX_OF_NO_NAME", "1")],
)
def test_what_jax_cannot_be_told_later_starts_as_ever(setting, value):
    script = IS_A_COPY + "import os\nprint(os.environ[sys.argv[1]])\n"
    environment = launcher.environment(**{setting: value})
    assert _output("-c", script, setting, env=environment) == ["False", f"{value}\n"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_it_ends_by_the_signal_that_ends_its_copy(number):
    process = _start(["-c", IS_A_COPY + f"import os; os.kill(os.getpid(), {int(number)})"])
    assert process.communicate(timeout=50)[0] == "True\n"
    assert process.returncode == -number


def _wait_until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("leaves", ["at once", "with something to read", "later"])
def test_a_copy_ends_with_who_asked_for_it(leaves, tmp_path):
    """Whenever it leaves: what it has not read is an error to the other side, and not an end."""
    script = "import os, time; open('pid', 'w').write(f'{os.getpid()} '); time.sleep(1000)"
    wanted = {
        "arguments": ["-c", script],
        "environment": launcher.environment(),
        "folder": str(tmp_path),
        "cores": sorted(os.sched_getaffinity(0)),
        "files": [0, 1, 2],
        "ignored": [],
    }
    text = json.dumps(wanted).encode()
    file = tmp_path / "pid"

    def has_begun():
        return file.exists() and file.read_text().endswith(" ")

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        asks.connect("\0" + as_a_copy()[-1])
        socket.send_fds(asks, [len(text).to_bytes(8, "little")], [0, 1, 2])
        asks.sendall(text)
        if leaves == "later":
            assert asks.recv(1) == b"+"
        if leaves != "at once":
            assert _wait_until(has_begun)
    if leaves == "at once" and not _wait_until(has_begun, 3):
        return  # it has ended before
    assert _wait_until(lambda: not os.path.exists(f"/proc/{file.read_text().strip()}"))


@pytest.mark.parametrize("is_ignored", [False, True])
def test_interrupts_are_ignored_where_they_were(is_ignored):
    """As they are in what a shell starts in the background."""
    how = signal.SIG_IGN if is_ignored else signal.SIG_DFL
    begin = functools.partial(signal.signal, signal.SIGINT, how)
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('goes on')\n"
    process = _start(["-c", script], preexec_fn=begin)
    output, errors = process.communicate(timeout=50)
    assert output == ("goes on\n" if is_ignored else "")
    assert ("KeyboardInterrupt" in errors) == (not is_ignored)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_reaches_its_copy(number):
    """Also the one that nobody can hand on."""
    process = _start(["-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"])
    copy = int(process.stdout.readline())
    assert copy != process.pid
    process.send_signal(number)
    assert process.wait(timeout=10) == -number
    assert _wait_until(lambda: not os.path.exists(f"/proc/{copy}"))

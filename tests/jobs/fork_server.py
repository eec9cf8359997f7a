"""Ranks of small jobs, each a copy of one process that has imported JAX.

The tests start some 600 ranks, and to import JAX takes each more than a second of the processor.
A server that has imported it forks itself instead, whenever a launcher starts

    python -I -S fork_server.py NAME ARGUMENTS

in place of `python ARGUMENTS`, which begin with `-c` or with a file. The copy gets the
environment, the folder, the cores and all open files of the process that the launcher has started.
That process stays and stands for the copy: it hands on signals, and ends as the copy does; if it
is killed, so is the copy. Nothing of pfftjax, and no MPI, is imported before the copy is made.
Where no server answers, or where the environment is one that JAX cannot be told of after it was
imported, the program starts as ever.
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import types

_STARTS, _REFUSES = b"+", b"-"
# What JAX, its libraries and the system read once, when a process starts or imports them.
_READ_AT_THE_START = (
    *("JAX_", "JAXTYPING_", "XLA_", "TF_", "PYTHON", "NPY_", "NUMPY_"),
    *("LD_PRELOAD", "LD_AUDIT", "MALLOC_", "GLIBC_TUNABLES"),
)
_HANDED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_MOST_FILES = 253  # that the system lets one message hold


def _address(name):
    """A name that no file system holds, and that is gone with the server."""
    return "\0" + name


def _stand_for_a_copy(name, arguments):
    """Ask the server `name` for a copy that runs `arguments`, and end as it does."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    open_files = [int(number) for number in os.listdir("/proc/self/fd")]
    files = [
        number
        for number in open_files
        if number != server.fileno() and os.path.exists(f"/proc/self/fd/{number}")
    ]
    wanted = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "files": files,
        "ignored": [which for which in _HANDED_ON if signal.getsignal(which) == signal.SIG_IGN],
    }
    text = json.dumps(wanted).encode()
    signals, wakes = os.pipe()
    for end in (signals, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    before = {which: signal.signal(which, lambda *_: None) for which in _HANDED_ON}
    answer = _REFUSES
    with contextlib.suppress(OSError):
        server.connect(_address(name))
        socket.send_fds(server, [len(text).to_bytes(8, "little")], files)
        server.sendall(text)
        answer = server.recv(1)
    if answer != _STARTS:
        for which, handler in before.items():
            signal.signal(which, handler)
        with contextlib.suppress(BlockingIOError):
            for number in os.read(signals, 64):  # what has come meanwhile
                os.kill(os.getpid(), number)
        os.execv(sys.executable, [sys.executable, *arguments])
    while True:
        ready, _, _ = select.select([server, signals], [], [])
        with contextlib.suppress(OSError):  # it has ended, and its status comes next
            if signals in ready:
                server.sendall(os.read(signals, 64))
        if server in ready:
            status = b""
            with contextlib.suppress(OSError):
                status = server.recv(4, socket.MSG_WAITALL)
            if len(status) < 4:
                os.write(2, b"fork_server.py: nobody says how the copy has ended\n")
                os._exit(1)
            _end_as(int.from_bytes(status, "little"))


def _end_as(status):
    """End with a status that the system gave for another process."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # it is blocked
    os._exit(os.WEXITSTATUS(status))


def _serve(name):
    """Import JAX and fork for whoever asks, until the standard input ends.

    Only the copies return from here, each with the arguments that it was asked for.
    """
    at_first = dict(os.environ)
    gc.disable()  # a copy that looks for garbage among what was imported would write to it
    import jax.extend
    import jax.numpy
    import jaxtyping  # noqa: F401
    import numpy as np

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those between ended
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(_address(name))
    listener.listen(64)
    print("ready", flush=True)
    by_import = {key: value for key, value in os.environ.items() if key not in at_first}
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        client, _ = listener.accept()
        if os.fork() > 0:  # another process waits for the copy
            client.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            size, files, _, _ = socket.recv_fds(client, 8, _MOST_FILES)
            with client.makefile("rb") as stream:
                wanted = json.loads(stream.read(int.from_bytes(size, "little")))
            settings = _settings_of_jax(at_first, wanted["environment"])
            if settings is None or len(files) != len(wanted["files"]):
                client.sendall(_REFUSES)
                os._exit(0)
        except (OSError, ValueError):  # who asked has gone
            os._exit(0)
        process = os.fork()
        if process > 0:
            for file in files:
                os.close(file)
            _watch(process, client)
        client.close()
        wanted["environment"] = by_import | wanted["environment"]
        _become(wanted, files)
        for setting, value in settings.items():
            jax.config.update(setting, value)
        np.random.seed()
        gc.enable()
        return wanted["arguments"]


def _watch(process, client):
    """Tell who stands for `process` how it ends, and end it with them, whenever they go."""
    try:
        client.sendall(_STARTS)
        ends = os.pidfd_open(process)
        while ends not in select.select([ends, client], [], [])[0]:
            for number in client.recv(64) or [signal.SIGKILL]:
                os.kill(process, number)
    except OSError:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        client.sendall(status.to_bytes(4, "little"))
    os._exit(0)


def _settings_of_jax(before, now):
    """What to tell JAX, imported in the environment `before`, so that it is as if imported in
    `now`: values by their names. None if that is not possible.
    """
    import jax

    names = {name for name in {*before, *now} if name.startswith(_READ_AT_THE_START)}
    settings = {}
    for name in names:
        if before.get(name) == now.get(name):
            continue
        if not (name.startswith("JAX_") and name in now and name.lower() in jax.config.values):
            return None
        is_now = jax.config.values[name.lower()]
        if isinstance(is_now, bool):
            known = {"1": True, "true": True, "0": False, "false": False}
            if now[name].lower() not in known:
                return None
            settings[name.lower()] = known[now[name].lower()]
        elif isinstance(is_now, (int, float)):
            settings[name.lower()] = type(is_now)(now[name])
        else:
            settings[name.lower()] = now[name]
    return settings


def _become(wanted, files):
    """Be as the process that asked: its open files, signals, environment, folder and cores."""
    above = 1 + max(files + wanted["files"])
    # The numbers that are wanted may be those of other files here.
    spares = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in {0, 1, 2, *files}:
        os.close(file)
    for spare, number in zip(spares, wanted["files"], strict=True):
        os.dup2(spare, number)
        os.close(spare)
    for which in _HANDED_ON:  # the server may have been started in the background
        as_ever = signal.default_int_handler if which == signal.SIGINT else signal.SIG_DFL
        signal.signal(which, signal.SIG_IGN if which in wanted["ignored"] else as_ever)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    os.sched_setaffinity(0, wanted["cores"])


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        _stand_for_a_copy(sys.argv[1], sys.argv[2:])
    begin, *rest = _serve(sys.argv[2])
    main = types.ModuleType("__main__")
    if begin == "-c":
        program, *rest = rest
        sys.path[0], file = "", "<string>"
    else:
        with open(begin, "rb") as source:
            program = source.read()
        sys.path[0] = os.path.dirname(os.path.abspath(begin))
        main.__file__ = file = begin
    sys.argv = [begin, *rest]
    sys.modules["__main__"] = main
    exec(compile(program, file, "exec", dont_inherit=True), main.__dict__)

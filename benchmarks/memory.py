"""The most memory that a process has while it runs a function: without MPI, for peers too."""

import pathlib
import threading

import jax


def pss():
    """MB that this process has now; of what it shares, its part."""
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("Pss:")) * 1024 / 1e6


def peak_pss(f):
    """MB that this process has at most while it runs f."""
    seen = []
    ended = threading.Event()

    def sample():
        while not ended.is_set():
            seen.append(pss())
            ended.wait(0.005)

    sampler = threading.Thread(target=sample)
    sampler.start()
    jax.block_until_ready(f())
    ended.set()
    sampler.join()
    return max(seen)

"""What a GPU does in transforms, in a step and in a gradient through two steps, kernel by kernel:

    python -m benchmarks.gpu_profile [--small] [--n 256] [--json FILE]

Microseconds by JAX's own profiler, of one run of each program after two that warm up.
"""

import argparse
import collections
import gzip
import json
import pathlib
import tempfile

import jax

jax.config.update("jax_enable_x64", False)

import pfftjax  # noqa: E402
from benchmarks.gpu import block, mesh, particles_at_start, simulated, stepping  # noqa: E402


def traced(program):
    """The events of one run of it: dictionaries as Perfetto has them."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            jax.block_until_ready(program())
        (file,) = pathlib.Path(folder).rglob("perfetto_trace.json.gz")
        with gzip.open(file) as text:
            return json.load(text)["traceEvents"]


def kernels(events):
    """(name, calls, microseconds) of what ran on the device, the longest first; and from the first
    to the last of it."""
    processes = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("ph") == "M" and event["name"] == "process_name"
    }
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("ph") == "M"
        and event["name"] == "thread_name"
        and event["args"]["name"].startswith("Stream")
    }
    found, ends = collections.defaultdict(list), []
    for event in events:
        place = event.get("pid"), event.get("tid")
        if event.get("ph") != "X" or "GPU" not in processes.get(place[0], ""):
            continue
        if place in threads:
            found[event["name"]].append(event["dur"])
            ends += [event["ts"], event["ts"] + event["dur"]]
    table = [(name, len(each), round(sum(each), 1)) for name, each in found.items()]
    return sorted(table, key=lambda row: -row[2]), max(ends, default=0) - min(ends, default=0)


def profile(name, program):
    """Show and return the kernels of one run."""
    for _ in range(2):
        jax.block_until_ready(program())
    table, span = kernels(traced(program))
    busy = sum(row[2] for row in table)
    print(f"{name}: {busy:.0f} us of kernels in {span:.0f} us", flush=True)
    for kernel, calls, microseconds in table[:25]:
        print(f"  {microseconds:9.1f} {calls:4d}  {kernel[:80]}", flush=True)
    return {"program": name, "us": busy, "span_us": span, "kernels": table}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    n = 16 if arguments.small else arguments.n
    profiles = []
    for real in (False, True):
        plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid((None, 1)), real=real)
        x = block(plan).real if real else block(plan)
        kind = "real" if real else "complex"
        forward, inverse = jax.jit(plan.forward), jax.jit(plan.inverse)
        y = forward(x)
        profiles.append(profile(f"forward, {kind}", lambda f=forward, x=x: f(x)))
        profiles.append(profile(f"inverse, {kind}", lambda f=inverse, y=y: f(y)))
    profiles.append(profile("step", stepping(particles_at_start(mesh(n)), n)))
    particles, _, backward = simulated(n, 2)
    slope = profile("gradient of two steps", lambda: backward(particles.offset, particles))
    profiles.append(slope)
    if arguments.json:
        head = {"device": jax.local_devices()[0].device_kind, "n": n}
        arguments.json.write_text(json.dumps({**head, "profiles": profiles}, indent=1) + "\n")


if __name__ == "__main__":
    main()

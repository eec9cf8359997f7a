"""The kernels that pack and unpack on a GPU, beside a copy of the same bytes:

    python -m benchmarks.gpu_kernels [--mib 1024] [--json benchmarks/results/h100/kernels.json]

Each case moves an array of so many MiB as boxes between ranks would move it, or turns it, on one
GPU and without MPI. GB/s are bytes of the array over time; a copy by cudaMemcpyAsync of the same
bytes is the measure, of which a case should reach BAR. What a kernel leaves is compared with
NumPy.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pfftjax._runtime.ffi import native
from tools.gpu_runtime import ON_DEVICE, DeviceArray, Runtime, boxes

BAR = 0.8
Views = list[tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Case:
    """`views` of a source and a target of these shapes; `traffic`: bytes that a kernel reads and
    writes, over those of a copy."""

    name: str
    dtype: str
    source: tuple[int, ...]
    target: tuple[int, ...]
    views: Callable[[np.ndarray, np.ndarray], Views]
    adds: bool = False
    traffic: float = 1.0


def _packed(source: np.ndarray, target: np.ndarray, ranks: int) -> Views:
    """Parts of axis 1 after each other: what goes to each rank, in one piece."""
    pairs, end = [], 0
    for part in np.array_split(source, ranks, axis=1):
        pairs.append((part, target[end : end + part.size].reshape(part.shape)))
        end += part.size
    return pairs


def cases(mib: int) -> Iterator[Case]:
    """All that is timed, on arrays of about so many MiB."""

    def side(dtype: str) -> int:
        return int((mib * 2**20 / np.dtype(dtype).itemsize) ** (1 / 3) + 1e-6)

    n = side("complex64")
    yield Case("one box", "complex64", (n,) * 3, (n,) * 3, lambda a, b: [(a, b)])
    for ranks in (4, 64):
        yield Case(
            f"pack for {ranks} ranks",
            "complex64",
            (n,) * 3,
            (n**3,),
            lambda a, b, ranks=ranks: _packed(a, b, ranks),
        )
    yield Case(
        "unpack from 4 ranks",
        "complex64",
        (n**3,),
        (n,) * 3,
        lambda a, b: [(piece, part) for part, piece in _packed(b, a, 4)],
    )
    for dtype in ("complex64", "float32"):
        odd = side(dtype) - 1 | 1
        yield Case(
            f"pack for 4 ranks, {odd} columns",
            dtype,
            (odd,) * 3,
            (odd**3,),
            lambda a, b: _packed(a, b, 4),
        )
    for dtype in ("float32", "complex64", "complex128"):
        n = side(dtype)
        for order in ((0, 2, 1), (2, 1, 0)):
            yield Case(
                f"axes {order}",
                dtype,
                (n,) * 3,
                (n,) * 3,
                lambda a, b, order=order: [(a.transpose(order), b)],
            )
    n = side("complex64")
    yield Case(
        "axes (2, 1, 0) of boxes for 4 ranks",
        "complex64",
        (n,) * 3,
        (n**3,),
        lambda a, b: _packed(a.transpose(2, 1, 0), b, 4),
    )
    for dtype in ("float32", "complex128"):
        n = side(dtype)
        yield Case(
            "one box, added",
            dtype,
            (n,) * 3,
            (n + 2,) * 3,
            lambda a, b: [(a, b[1:-1, 1:-1, 1:-1])],
            adds=True,
            traffic=1.5,
        )


def seconds(runtime: Runtime, stream: Any, enqueue: Callable[[], None], budget: float) -> float:
    """Seconds of one of many calls on the stream, one after the other: the best of three times."""
    enqueue()
    runtime.synchronize(stream)
    count, best = 1, float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(count):
            enqueue()
        runtime.synchronize(stream)
        spent = time.perf_counter() - start
        if spent >= budget:
            break
        count = max(2 * count, int(count * 1.2 * budget / max(spent, 1e-6)))
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(count):
            enqueue()
        runtime.synchronize(stream)
        best = min(best, (time.perf_counter() - start) / count)
    return best


def measure(runtime: Runtime, stream: Any, case: Case, budget: float) -> dict[str, Any]:
    """GB/s of a case and of a copy of as many bytes, after the result was compared."""
    source = runtime.pinned(case.source, case.dtype)
    target = runtime.pinned(case.target, case.dtype)
    source[...] = np.resize(np.arange(1021), source.shape)
    target[...] = 1
    views = case.views(source, target)
    moved = sum(a.nbytes for a, _ in views)
    with (
        DeviceArray(runtime, source, stream) as from_,
        DeviceArray(runtime, target, stream) as to,
    ):
        copies = boxes(from_, to, views)
        function = "add_boxes" if case.adds else "copy_boxes"
        unit = native.elements.index(case.dtype) if case.adds else source.itemsize
        arguments = copies, len(copies), unit, stream
        runtime.call(function, *arguments)
        result = to.get(runtime.pinned(case.target, case.dtype))
        for a, b in views:
            b[...] = a + b if case.adds else a
        np.testing.assert_array_equal(result, target)
        kernel = seconds(runtime, stream, lambda: runtime.call(function, *arguments), budget)
        plain = to.memory, from_.memory, moved, ON_DEVICE, stream
        copy = seconds(runtime, stream, lambda: runtime.call("copy", *plain), budget)
    runtime.call("free_pinned", source.ctypes.data)
    runtime.call("free_pinned", target.ctypes.data)
    runtime.call("free_pinned", result.ctypes.data)
    return {
        "case": case.name,
        "dtype": case.dtype,
        "mib": moved / 2**20,
        "gb_per_s": moved / kernel / 1e9,
        "copy_gb_per_s": moved / copy / 1e9,
        "of_copy": case.traffic * copy / kernel,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="how long each measurement takes"
    )
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    runtime = Runtime()
    stream = runtime.made("make_stream")
    results = []
    for case in cases(arguments.mib):
        result = measure(runtime, stream, case, arguments.seconds)
        results.append(result)
        verdict = "" if result["of_copy"] >= BAR else f"  below {BAR}"
        print(
            f"{case.name:40} {case.dtype:10} {result['gb_per_s']:7.0f} GB/s, "
            f"{result['of_copy']:.2f} of a copy{verdict}",
            flush=True,
        )
    if arguments.json:
        head = {"runtime": runtime.name, "device": runtime.identity(), "bar": BAR}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({**head, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The CUDA module on a device, beside NumPy: kernels, streams, events, memory between processes.

By hand without a device: PFFTJAX_FAKE_DEVICE=... (tools/fake_device).
"""

import ctypes
import itertools

import jax.numpy as jnp  # bfloat16 for NumPy
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax._runtime.ffi import native
from tools import gpu_runtime as device
from tools.gpu_runtime import DeviceArray, Runtime

pytestmark = pytest.mark.gpu
COMM = MPI.COMM_WORLD


@pytest.fixture(scope="module")
def runtime():
    if not device.path_of_runtime().exists():
        pytest.skip(f"this pfftjax was built without CUDA: no {device.path_of_runtime()}")
    runtime = Runtime()
    try:
        runtime.identity()
    except RuntimeError as error:
        pytest.skip(f"no GPU: {error}")
    return runtime


@pytest.fixture(scope="module")
def stream(runtime):
    stream = runtime.made("make_stream")
    yield stream
    runtime.call("free_stream", stream)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def filled(runtime, shape, dtype, rng):
    """Any bytes but those of infinities and NaN."""
    array = runtime.pinned(shape, dtype)
    drawn = rng.integers(-100, 100, shape)
    array[...] = drawn % 2 if np.dtype(dtype) == bool else drawn
    if np.dtype(dtype).kind in "fcV":
        array /= 3
    return array


def assert_moved(runtime, stream, source, target, views, element=None):
    """One call of copy_boxes, or add_boxes, does what NumPy does."""
    with (
        DeviceArray(runtime, source, stream) as from_,
        DeviceArray(runtime, target, stream) as to,
    ):
        copies = device.boxes(from_, to, views)
        if element is None:
            runtime.call("copy_boxes", copies, len(copies), source.itemsize, stream)
        else:
            runtime.call("add_boxes", copies, len(copies), element, stream)
        result = to.get(runtime.pinned(target.shape, target.dtype))
    for a, b in views:
        if element is None:
            b[...] = a
        elif source.dtype == bool:
            b |= a
        else:
            b += a
    np.testing.assert_array_equal(result.view(np.uint8), target.view(np.uint8))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex64", "complex128"])
def test_copies(runtime, stream, rng, dtype):
    source = filled(runtime, (37, 66, 131), dtype, rng)
    target = filled(runtime, (140, 140, 140), dtype, rng)
    for order in itertools.permutations(range(3)):
        views = [
            (source[:33, :32, :129], target.transpose(order)[1:34, 3:35, 2:131]),
            (source[33:, 5:9, ::2], target.transpose(order)[36:40, :4, 4:70]),
            (source[:0], target[:0, :66, :131]),
        ]
        assert_moved(runtime, stream, source, target, views)


def test_more_boxes_than_a_launch_takes(runtime, stream, rng):
    source = filled(runtime, (100, 33, 17), "float32", rng)
    target = filled(runtime, (33, 17, 100), "float32", rng)
    views = [(source[i], target[:, :, 99 - i]) for i in range(100)]
    assert_moved(runtime, stream, source, target, views)


def test_more_than_2_to_the_31_elements(runtime, stream):
    source = runtime.pinned((2, (1 << 30) + 3), "uint8")
    target = runtime.pinned((2, (1 << 30) + 8), "uint8")
    source[...] = np.resize(np.arange(251, dtype=np.uint8), source.shape[1])
    target[...] = 1
    assert_moved(runtime, stream, source, target, [(source, target[:, 1:-4])])


@pytest.mark.parametrize("element", range(len(native.elements)), ids=native.elements)
def test_additions_one_after_the_other(runtime, stream, rng, element):
    name = native.elements[element]
    dtype = jnp.bfloat16 if name == "bfloat16" else name
    source = filled(runtime, (5, 31, 18), dtype, rng)
    target = filled(runtime, (33, 31), dtype, rng)
    # Rounded after each: another order would be another sum.
    views = [(source[i].T, target[i % 2 : 18 + i % 2]) for i in range(5)]
    assert_moved(runtime, stream, source, target, views, element)


def test_streams_wait_for_events(runtime, stream, rng):
    other = runtime.made("make_stream")
    event = runtime.made("make_event")
    assert runtime.asked("is_done", event)
    array = filled(runtime, (1 << 20,), "float64", rng)
    with DeviceArray(runtime, array, stream) as x:
        back = runtime.pinned(array.shape, array.dtype)
        half = array.nbytes // 2
        runtime.call("clear", x.memory, half, stream)
        runtime.call("record", event, stream)
        runtime.call("wait", other, event)
        arguments = back.ctypes.data, x.memory, array.nbytes, device.TO_HOST, other
        runtime.call("copy", *arguments)
        runtime.synchronize(other)
        assert runtime.asked("is_done", event)
    array[: array.size // 2] = 0
    np.testing.assert_array_equal(back, array)
    runtime.call("free_event", event)
    runtime.call("free_stream", other)


def test_memory_of_the_program_can_be_pinned(runtime, stream):
    host = np.arange(1 << 18)
    runtime.call("pin", host.ctypes.data, host.nbytes)
    with DeviceArray(runtime, host, stream) as x:
        back = runtime.pinned(host.shape, host.dtype)
        np.testing.assert_array_equal(x.get(back), host)
    runtime.call("unpin", host.ctypes.data)


def test_errors_have_words(runtime, stream):
    with pytest.raises(RuntimeError, match="in allocate"):
        runtime.made("allocate", 1 << 60)
    # And are not found again by who asks next.
    runtime.synchronize(stream)
    assert len(runtime.identity()) > 3


def test_memory_and_events_of_another_process(runtime, stream, rng):
    if COMM.size == 1:
        pytest.skip("needs two ranks")
    array = runtime.pinned((1000,), "int64")
    array[...] = np.arange(1000) + COMM.rank
    handles = device.Handle(), device.Handle()
    with DeviceArray(runtime, array, stream) as x:
        event = ctypes.c_void_p()
        runtime.call("make_shared_event", ctypes.byref(event), ctypes.byref(handles[0]))
        runtime.call("export_memory", x.memory, ctypes.byref(handles[1]))
        runtime.call("record", event, stream)
        exported = COMM.allgather(tuple(handle.raw for handle in handles))
        left = (COMM.rank - 1) % COMM.size
        opened, memory = ctypes.c_void_p(), ctypes.c_void_p()
        theirs = [device.Handle.from_buffer_copy(raw) for raw in exported[left]]
        runtime.call("open_event", ctypes.byref(theirs[0]), ctypes.byref(opened))
        runtime.call("open_memory", ctypes.byref(theirs[1]), ctypes.byref(memory))
        runtime.call("wait", stream, opened)
        back = runtime.pinned(array.shape, array.dtype)
        arguments = back.ctypes.data, memory, array.nbytes, device.TO_HOST, stream
        runtime.call("copy", *arguments)
        runtime.synchronize(stream)
        np.testing.assert_array_equal(back, np.arange(1000) + left)
        runtime.call("close_memory", memory)
        COMM.Barrier()
        for handle in (event, opened):
            runtime.call("free_event", handle)

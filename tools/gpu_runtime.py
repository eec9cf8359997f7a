"""The table of cpp/gpu/device.h from Python: the module for GPUs by itself, without JAX.

With PFFTJAX_FAKE_DEVICE it is the runtime without a GPU, to try what uses it.
"""

import ctypes
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pfftjax._runtime.ffi import native

TO_HOST, TO_DEVICE, ON_DEVICE = range(3)

_Pointer, _Int, _Long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
Handle = ctypes.c_char * 64


class Box(ctypes.Structure):
    _fields_ = (
        ("dims", _Int),
        ("extent", _Long * native.most_dimensions),
        ("stride", _Long * native.most_dimensions),
        ("offset", _Long),
    )


class BoxCopy(ctypes.Structure):
    _fields_ = (("source", _Pointer), ("from_", Box), ("target", _Pointer), ("to", Box))


def _function(*arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(_Int, *arguments)


_out = ctypes.POINTER


class DeviceApi(ctypes.Structure):
    _fields_ = (
        ("version", _Int),
        ("name", ctypes.c_char_p),
        ("platform", ctypes.c_char_p),
        ("nccl", ctypes.c_char_p),
        ("nccl_file", ctypes.c_char_p),
        ("is_host_memory", ctypes.c_bool),
        ("make_stream", _function(_out(_Pointer))),
        ("free_stream", _function(_Pointer)),
        ("make_event", _function(_out(_Pointer))),
        ("free_event", _function(_Pointer)),
        ("record", _function(_Pointer, _Pointer)),
        ("is_done", _function(_Pointer, _out(_Int))),
        ("is_idle", _function(_Pointer, _out(_Int))),
        ("wait", _function(_Pointer, _Pointer)),
        ("allocate", _function(_out(_Pointer), _Long)),
        ("free", _function(_Pointer)),
        ("allocate_pinned", _function(_out(_Pointer), _Long)),
        ("free_pinned", _function(_Pointer)),
        ("pin", _function(_Pointer, _Long)),
        ("unpin", _function(_Pointer)),
        ("copy", _function(_Pointer, _Pointer, _Long, ctypes.c_int32, _Pointer)),
        ("clear", _function(_Pointer, _Long, _Pointer)),
        ("copy_boxes", _function(_out(BoxCopy), _Int, _Long, _Pointer)),
        ("add_boxes", _function(_out(BoxCopy), _Int, ctypes.c_int32, _Pointer)),
        ("particle_scratch", ctypes.CFUNCTYPE(_Long, _Pointer)),
        ("run_particles", _function(_Pointer, _Pointer)),
        ("make_shared_event", _function(_out(_Pointer), _out(Handle))),
        ("open_event", _function(_out(Handle), _out(_Pointer))),
        ("export_memory", _function(_Pointer, _out(Handle))),
        ("open_memory", _function(_out(Handle), _out(_Pointer))),
        ("close_memory", _function(_Pointer)),
        ("current_device", _function(_out(_Int))),
        ("use_device", _function(_Int)),
        ("identity", _function(_Int, ctypes.c_char_p, ctypes.c_size_t)),
        ("error_text", ctypes.CFUNCTYPE(ctypes.c_char_p, _Int)),
        ("push_range", ctypes.CFUNCTYPE(None, ctypes.c_char_p)),
        ("pop_range", ctypes.CFUNCTYPE(None)),
    )


def path_of_runtime() -> pathlib.Path:
    """Where it should be."""
    fake = os.environ.get("PFFTJAX_FAKE_DEVICE")
    if fake:
        return pathlib.Path(fake)
    folder = pathlib.Path(native.__file__).parent
    hip = folder / "_hip.so"
    return hip if hip.exists() else folder / "_cuda.so"


class Runtime:
    """The functions of the table; errors raise."""

    def __init__(self, path: pathlib.Path | None = None) -> None:
        self._library = ctypes.CDLL(str(path or path_of_runtime()))
        self._library.pfftjax_device_api.restype = ctypes.POINTER(DeviceApi)
        self.api = self._library.pfftjax_device_api().contents
        assert self.api.version == native.device_api_version
        self.name = self.api.name.decode()

    def call(self, function: str, *arguments: Any) -> None:
        """Call what returns a code."""
        code = getattr(self.api, function)(*arguments)
        if code != 0:
            text = self.api.error_text(code).decode()
            raise RuntimeError(f"{self.name} says {text!r} ({code}) in {function}")

    def made(self, function: str, *arguments: Any) -> Any:
        """What a function makes whose first argument says where it goes."""
        result = _Pointer()
        self.call(function, ctypes.byref(result), *arguments)
        return result.value

    def identity(self) -> str:
        """The identity of the current device, the same in every process that sees it."""
        device = _Int()
        self.call("current_device", ctypes.byref(device))
        text = ctypes.create_string_buffer(80)
        self.call("identity", device, text, len(text))
        return text.value.decode()

    def asked(self, function: str, handle: Any) -> bool:
        """The answer of is_idle and is_done."""
        answer = _Int()
        self.call(function, handle, ctypes.byref(answer))
        return bool(answer.value)

    def synchronize(self, stream: Any) -> None:
        """Wait until all has run."""
        while not self.asked("is_idle", stream):
            pass

    def pinned(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array of the host that the device can copy from and to; lives until the end."""
        count = math.prod(shape)
        nbytes = max(count * np.dtype(dtype).itemsize, 1)
        memory = self.made("allocate_pinned", nbytes)
        data = (ctypes.c_char * nbytes).from_address(memory)
        return np.frombuffer(data, dtype, count).reshape(shape)


class DeviceArray:
    """Memory of the device, laid out as an array of the host is."""

    def __init__(self, runtime: Runtime, like: np.ndarray, stream: Any) -> None:
        self._runtime, self.host, self._stream = runtime, like, stream
        self.memory = runtime.made("allocate", like.nbytes)

    def __enter__(self) -> "DeviceArray":
        self.put()
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.synchronize(self._stream)
        self._runtime.call("free", self.memory)

    def _copy(self, target: Any, source: Any, direction: int) -> None:
        arguments = target, source, self.host.nbytes, direction, self._stream
        self._runtime.call("copy", *arguments)
        self._runtime.synchronize(self._stream)

    def put(self) -> None:
        """From the host's array, which must be pinned."""
        self._copy(self.memory, self.host.ctypes.data, TO_DEVICE)

    def get(self, host: np.ndarray) -> np.ndarray:
        """Into an array of the host, which must be pinned."""
        self._copy(host.ctypes.data, self.memory, TO_HOST)
        return host

    def box(self, view: np.ndarray) -> Box:
        """What a view of the host's array is a view of."""
        box = Box(dims=view.ndim)
        box.extent[: view.ndim] = view.shape
        box.stride[: view.ndim] = [stride // view.itemsize for stride in view.strides]
        box.offset = (view.ctypes.data - self.host.ctypes.data) // view.itemsize
        return box


def boxes(
    source: DeviceArray, target: DeviceArray, views: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Any:
    """The copies that `to[...] = from` means for pairs of views of their host arrays."""
    copies = [
        BoxCopy(source.memory, source.box(a), target.memory, target.box(b)) for a, b in views
    ]
    return (BoxCopy * len(copies))(*copies)

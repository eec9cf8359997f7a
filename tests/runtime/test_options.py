"""The environment is checked when it is read."""

import dataclasses

import pytest

from pfftjax._runtime import options

pytestmark = pytest.mark.ranks(1, 2, 3)


def test_defaults():
    assert options.read({}) == options.Options()


def test_values():
    found = options.read(
        {
            "PFFTJAX_CHECK": "1",
            "PFFTJAX_DEBUG": "0",
            "PFFTJAX_TIMEOUT": "2.5",
            "PFFTJAX_MAX_CHUNK_BYTES": "64",
            "PFFTJAX_FIRST_CALL_CHECK": "0",
            "PFFTJAX_LAZY_WORLD": "1",
            "PFFTJAX_SHARED_MEMORY": "0",
            "PFFTJAX_KEEP_BYTES": "0",
            "PFFTJAX_SIMD": "avx2",
            "PFFTJAX_GPU_CHUNK_BYTES": "512",
            "PFFTJAX_GPU_TRANSPORT": "ipc",
            "PFFTJAX_NCCL": "/opt/libnccl.so.2",
            "PFFTJAX_GPU_ARENA_BYTES": "4096",
            "PFFTJAX_GPU_PROBE_BYTES": "2000",
            "PFFTJAX_GPU_CHUNKS": "6",
            "PFFTJAX_DETERMINISTIC": "1",
            "PFFTJAX_BIND_GPU": "0",
            "PFFTJAX_PROFILE": "1",
        }
    )
    on_gpus = (512, "ipc", "/opt/libnccl.so.2", 4096, 2000, 6, True, False, True)
    assert found == options.Options(64, True, False, 2.5, False, True, False, 0, "avx2", *on_gpus)
    assert options.read({"PFFTJAX_GPU_TRANSPORT": "auto"}) == options.Options()


def test_every_option_has_a_variable_that_is_documented():
    names = {field.name for field in dataclasses.fields(options.Options)}
    assert names == options.VARIABLES.keys()
    assert all(name in options.__doc__ for name in options.VARIABLES.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PFFTJAX_CHECK", "yes"),
        ("PFFTJAX_TIMEOUT", "soon"),
        ("PFFTJAX_TIMEOUT", "-1"),
        ("PFFTJAX_TIMEOUT", "nan"),
        ("PFFTJAX_MAX_CHUNK_BYTES", "0"),
        ("PFFTJAX_SIMD", "AVX"),
        ("PFFTJAX_GPU_CHUNK_BYTES", "0"),
        ("PFFTJAX_GPU_TRANSPORT", "nvlink"),
        ("PFFTJAX_GPU_ARENA_BYTES", "64"),
    ],
)
def test_nonsense_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        options.read({name: value})

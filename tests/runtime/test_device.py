"""Which GPU a rank takes: by a table, as there are none here."""

import os

import pytest

from pfftjax._runtime import device
from pfftjax._runtime.device import Binding, choose
from pfftjax._runtime.launcher import Launch

PER_TASK = {"CUDA_VISIBLE_DEVICES": "0"}
ALONE = Launch(local_rank=0, local_ranks=1)
FRACTION = {"XLA_CLIENT_MEM_FRACTION": "0.5"}


@pytest.mark.parametrize(
    ("environment", "local_rank", "local_ranks", "node_gpus", "expected"),
    [
        # A GPU for each rank.
        ({}, 0, 4, 4, Binding(0, 4, 1)),
        ({}, 3, 4, 4, Binding(3, 4, 1)),
        # Fewer ranks than GPUs, more, and numbers that do not divide.
        ({}, 1, 2, 4, Binding(1, 4, 1)),
        ({}, 6, 8, 4, Binding(2, 4, 2, 0.375)),
        ({}, 4, 5, 4, Binding(0, 4, 2, 0.375)),
        ({}, 3, 5, 4, Binding(3, 4, 1)),
        # A workstation with one.
        ({}, 2, 4, 1, Binding(0, 1, 4, 0.187)),
        (PER_TASK, 2, 4, 1, Binding(0, 1, 4, 0.187)),
        # The launcher gives each task a device of its own.
        (PER_TASK, 3, 4, 4, Binding(0, 1, 1)),
        (PER_TASK, 7, 8, 4, Binding(0, 1, 2, 0.375)),
        # Half of the node, counted from its first visible GPU.
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 1, 2, 4, Binding(1, 2, 1)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, 0, 2, 2, Binding(0, 1, 1)),
        # A slice of a GPU is a device of its own.
        ({"CUDA_VISIBLE_DEVICES": "MIG-8932f937"}, 1, 2, 1, Binding(0, 1, 1)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-8932f937"}, 6, 7, 4, Binding(0, 1, 1)),
        # The user's own choice of memory.
        (FRACTION, 0, 2, 1, Binding(0, 1, 2)),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}, 1, 2, 1, Binding(0, 1, 2)),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 1, 2, 1, Binding(0, 1, 2)),
        # Nobody says how many ranks there are.
        ({}, 5, None, 4, Binding(1, 4, None)),
        # Nothing to choose.
        ({}, 0, 1, 4, Binding(gpus=4, sharing=1, reason="there is no other rank on this node")),
        ({}, 0, 4, 0, Binding(gpus=0, reason="no GPU is visible")),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, 4, 4, Binding(gpus=0, reason="no GPU is visible")),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, 4, 4, Binding(gpus=0, reason="no GPU is visible")),
    ],
)
def test_choice(environment, local_rank, local_ranks, node_gpus, expected):
    assert choose(environment, local_rank, local_ranks, node_gpus) == expected


@pytest.fixture
def with_cuda(monkeypatch):
    """As on a node of 2 GPUs, with JAX installed for them and not started."""
    updates = {}
    monkeypatch.setattr(device, "has_cuda_plugin", lambda: True)
    monkeypatch.setattr(device, "backends_have_started", lambda: False)
    monkeypatch.setattr(device, "node_gpus", lambda: 2)
    monkeypatch.setattr(device.jax.config, "update", updates.__setitem__)
    values = {"jax_platforms": None, "jax_cuda_visible_devices": "all"}
    monkeypatch.setattr(type(device.jax.config), "values", property(lambda _: values))
    return updates, values


def test_binding(with_cuda):
    updates, _ = with_cuda
    environment = {}
    bound = device.bind(environment, Launch(local_rank=3, local_ranks=5))
    assert bound == Binding(1, 2, 2, 0.375)
    assert updates == {"jax_cuda_visible_devices": "1"}
    assert environment["XLA_CLIENT_MEM_FRACTION"] == "0.375"
    assert str(bound) == (
        "this rank takes number 1 of the 2 that it sees, which 2 ranks share, and 0.375 of "
        "its memory (XLA_CLIENT_MEM_FRACTION)"
    )


def test_nobody_says_which_rank_of_the_node_this_is(with_cuda):
    assert "the launcher does not say" in device.bind({}, Launch()).reason
    assert with_cuda[0] == {}


def test_a_user_s_choice_is_left_alone(with_cuda, monkeypatch):
    updates, values = with_cuda
    devices = {"JAX_CUDA_VISIBLE_DEVICES": "1"}
    assert device.bind(devices, ALONE).reason == "jax_cuda_visible_devices is 1"
    values["jax_cuda_visible_devices"] = "0,1"
    assert device.bind({}, ALONE).reason == "jax_cuda_visible_devices is 0,1"
    values["jax_cuda_visible_devices"] = "all"
    values["jax_platforms"] = "cpu"
    assert device.bind({}, ALONE).reason == "JAX_PLATFORMS=cpu"
    values["jax_platforms"] = "cuda,cpu"
    monkeypatch.setattr(device, "backends_have_started", lambda: True)
    assert device.bind({}, ALONE).reason == device.TOO_LATE
    monkeypatch.setattr(device, "has_cuda_plugin", lambda: False)
    assert str(device.bind({}, ALONE)) == "left to JAX: JAX has no plugin for CUDA"
    monkeypatch.setattr(device, "options", device.options.__class__(bind_gpu=False))
    assert device.bind({}, ALONE).reason == "PFFTJAX_BIND_GPU=0"
    assert updates == {}


def test_counting_gpus(monkeypatch, tmp_path):
    """By the driver's files, or by its tool; neither means none."""
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:41:00.0").mkdir()
    monkeypatch.setattr(device, "_DRIVER", tmp_path)
    assert device.node_gpus() == 2
    monkeypatch.setattr(device, "_DRIVER", tmp_path / "none")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-1)'\necho '  MIG 1g'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert device.node_gpus() == 1
    monkeypatch.setenv("PATH", "")
    assert device.node_gpus() == 0

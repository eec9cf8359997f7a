"""The kernels of a GPU without a GPU, under AddressSanitizer and UBSan."""

import subprocess

import pytest

from tools.launcher import ROOT

pytestmark = pytest.mark.timeout(120)
SOURCES = {
    "kernels": ("tests/cpp/kernels.cc", "cpp/gpu/box_plan.cc", "cpp/pencils/box.cc"),
    "particles": ("tests/cpp/particles.cc",),
    # As compilers before CUDA 13, and devices before sm_90, have them.
    "particles one by one": ("tests/cpp/particles.cc", "-DPFFTJAX_ADDS_ONE_BY_ONE"),
}


def build(name, program, *options):
    """Whether this compiler can."""
    # Compiling takes longer than running.
    command = ["g++", "-std=c++17", "-g", "-O0", *options, "-I", "cpp", "-I", "tests/cpp"]
    command += ["-I", "tools/fake_device", *SOURCES[name], "-o", program]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", SOURCES)
def test_kernels_on_emulated_threads(name, tmp_path):
    """Where there are no sanitizers, at least the data are right."""
    program = tmp_path / name
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    assert build(name, program, *sanitizers) or build(name, program)
    ended = subprocess.run([program], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert "all data right" in ended.stdout

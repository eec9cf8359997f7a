"""The default capacity: room for the fullest rank of nearly every universe."""

import numpy as np
import pytest

from pfftjax.pencils import Pencil
from pfftjax.pm._capacity import _modes, _power, default_capacity, fullest, variance
from tests.distributed import grids
from tests.helpers import SIZE, on_one_rank


@on_one_rank
@pytest.mark.parametrize("parts", [(2, 1, 1), (4, 2, 1), (4, 4, 4)])
def test_the_variance_of_blocks_of_gaussian_fields(parts):
    """Against the mean of many fields that are drawn on a fine mesh and averaged."""
    n, length = 32, 400.0
    k = 2 * np.pi / length * np.fft.fftfreq(n, 1 / n)
    k = np.sqrt(k[:, None, None] ** 2 + k[:, None] ** 2 + k**2)
    power = np.where(k > 0, _power(np.where(k > 0, k, 1.0)), 0.0)
    draw = np.random.default_rng(1)
    found = []
    for _ in range(60):
        modes = np.fft.fftn(draw.normal(size=(n, n, n)))
        field = np.fft.ifftn(modes * np.sqrt(power * n**3 / length**3)).real
        a, b, c = parts
        blocks = field.reshape(a, n // a, b, n // b, c, n // c).mean(axis=(1, 3, 5))
        found.append(np.mean(blocks**2))
    expected = variance(tuple(1 / p for p in parts), (length,) * 3)
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - expected) < 4 * error + 0.03 * expected


@on_one_rank
def test_modes_that_stand_for_many():
    """Every wave counts once, with both signs, and sums of the window are those of all."""
    for parts in (2, 7.5, 16, 100, 1000):
        mode, number = _modes(1 / parts)
        last = int(mode[-1] + (number[-1] / 2 - 1) / 2)
        assert np.sum(number) == 2 * last + 1
        assert last == np.ceil(4 * parts)
        every = np.arange(-last, last + 1)
        total = np.sum(np.sinc(every / parts) ** 2)
        assert abs(np.sum(number * np.sinc(mode / parts) ** 2) / total - 1) < 3e-3


@on_one_rank
def test_blocks_with_the_volume_of_spheres_of_8():
    """They vary about as much as the spheres, by sigma8 = 0.85."""
    side = (4 / 3 * np.pi) ** (1 / 3) * 8
    assert 0.75 < np.sqrt(variance((1 / 16,) * 3, (16 * side,) * 3)) < 0.9


@on_one_rank
def test_boxes_that_were_too_full():
    """The fullest ranks that were seen, as docs/design/particles.md says."""
    rows = (1 / 4, 1 / 4, 1.0)
    assert 2.65 < fullest(rows, (64.0,) * 3, 16) < 4
    assert 1.41 < fullest(rows, (200.0,) * 3, 16) < 1.8
    assert 1.3 < fullest((1 / 16, 1 / 16, 1.0), (500.0,) * 3, 256) < 1.8
    assert fullest((1 / 32, 1 / 32, 1.0), (3000.0,) * 3, 1024) < 1.12


@on_one_rank
def test_more_ranks_in_the_same_box_need_more():
    of_slabs = [fullest((1 / p, 1.0, 1.0), (1000.0,) * 3, p) for p in (1, 2, 8, 64, 1024)]
    assert of_slabs[0] == 1
    assert of_slabs == sorted(of_slabs)
    assert np.isfinite(of_slabs).all()


def test_rows_for_the_largest_block():
    """Uneven blocks: the mean is that of the largest one; never more than all."""
    for grid in grids():
        mesh = Pencil((7, 5, 4), grid)
        rows, columns = (-(-n // p) / n for n, p in zip((7, 5), grid.dims, strict=True))
        mean = 10**6 * rows * columns
        for sides in (None, (3000.0,) * 3, (0.0,) * 3):
            least = min(10**6, (1.1 if sides == (3000.0,) * 3 else 1.25) * mean)
            capacity = default_capacity(10**6, mesh, sides)
            assert least <= capacity <= min(10**6, 1.1 * least + 6 * mean ** (2 / 3) + 1)
        assert default_capacity(10**6, mesh, (50.0,) * 3) <= 10**6
        if SIZE > 1:
            small, large = (default_capacity(10**6, mesh, (x,) * 3) for x in (100.0, 3000.0))
            assert small > large or large == 10**6

"""Non-uniform transforms by several threads of a rank."""

import pytest

from .job import assert_succeeds

pytestmark = pytest.mark.timeout(300)

# Several columns of tiles along both split axes, and more points than a chunk of the sort.
SCRIPT = """
from pfftjax.nufft import PencilNUFFT
import hashlib
rng = np.random.default_rng(RANK)
x = 2 * np.pi * rng.beta(0.5, 2, (60_000, 3))
c = rng.standard_normal((60_000, 2))
for tolerance in (1e-3, 1e-9):
    plan = PencilNUFFT((20, 24, 18), pfftjax.ProcessGrid(), tolerance=tolerance)
    @jax.jit
    def both(x, c):
        at = plan.to_owners(x, capacity=120_000)
        modes = plan.type1(at, c)
        return at.order, modes, plan.type2(at, modes)
    marks = [hashlib.sha256(np.asarray(y).tobytes()).hexdigest() for y in both(x, c)]
    print(f"{tolerance} rank {RANK}: {marks}", flush=True)
x[[40_000, 50_000], [1, 0]] = np.nan
try:
    jax.block_until_ready(plan.at_owners(x).order)
except jax.errors.JaxRuntimeError as error:
    pc.recover()
    text = str(error)
    print(f"rank {RANK}:", text[text.index("grid: ") :].splitlines()[0], flush=True)
"""


def test_the_same_bits_on_any_number_of_threads():
    """And the same point is named where several are nowhere."""
    seen = []
    for threads in (1, 2, 5):
        ended = assert_succeeds(SCRIPT, ranks=1, NPROC=str(threads))
        lines = [line for line in ended.output.splitlines() if "rank" in line]
        assert "point 40000 has a position that is not finite" in lines[-1], ended.output
        assert len(lines) == 3
        seen.append(lines)
    assert seen[0] == seen[1] == seen[2]

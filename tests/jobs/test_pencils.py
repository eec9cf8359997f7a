"""Exchanges of arrays by several threads of a rank."""

import pytest

from .job import assert_succeeds

pytestmark = pytest.mark.timeout(300)

# In pieces that are small enough for each box to have many. What comes out of a halo's sum depends
# on the order of its terms.
SCRIPT = """
import hashlib
from pfftjax import ExchangeMethod, Pencil, ProcessGrid, halo_exchange, halo_reduce, transpose
shape = (31, 29, 26)
X = np.random.default_rng(0).standard_normal((2, *shape))
grid = ProcessGrid((SIZE, 1))
slabs, others = Pencil(shape, grid), Pencil(shape, grid, (1, 2), (1, 2, 0))
for method in (ExchangeMethod.SHARED, ExchangeMethod.MESSAGES, ExchangeMethod.ALLTOALL):
    there = jax.jit(lambda x: transpose(x, slabs, others, method=method))(slabs.local_block(X))
    np.testing.assert_array_equal(there, others.local_block(X))
    back = jax.jit(lambda y: transpose(y, others, slabs, method=method))(there)
    np.testing.assert_array_equal(back, slabs.local_block(X))
widths = ((2, 3), (0, 0))
padded = jax.jit(lambda x: halo_exchange(x, slabs, widths))(slabs.local_block(X))
start, count = slabs.range_of(0)
index = np.arange(start - 2, start + count + 3) % shape[0]
np.testing.assert_array_equal(padded, X[:, index])
total = jax.jit(lambda v: halo_reduce(v * 1.1, slabs, widths))(padded)
mark = hashlib.sha256(np.asarray(total).tobytes()).hexdigest()
print(f"rank {RANK}: {mark}", flush=True)
"""


def test_the_same_bits_on_any_number_of_threads():
    seen = []
    for threads in (1, 5):
        ended = assert_succeeds(SCRIPT, ranks=2, NPROC=str(threads), PFFTJAX_MAX_CHUNK_BYTES="256")
        seen.append(sorted(line for line in ended.output.splitlines() if "rank" in line))
        assert len(seen[-1]) == 2, ended.output
    assert seen[0] == seen[1]

"""What one job wrote, jobs of other numbers of ranks read."""

import pytest

from tests.jobs.job import assert_succeeds

pytest.importorskip("h5py")
pytestmark = pytest.mark.timeout(300)

BOTH = """
from pfftjax import pm
path, layout = sys.argv[1:]
plan = pfftjax.PencilFFT((7, 5, 6), pfftjax.ProcessGrid(), real=True)
x = np.random.default_rng(0).standard_normal((7, 5, 6))
k = np.fft.rfftn(x)
cell = np.stack(np.meshgrid(*map(np.arange, (7, 5, 6)), indexing="ij"), -1).astype(np.int32)
def flat(x):
    return jnp.asarray(x.reshape(-1, 3))
"""

WRITE = """
i0, n0 = plan.input.range_of(0)
i1, n1 = plan.input.range_of(1)
own = flat(cell[i0 : i0 + n0, i1 : i1 + n1])
particles = pm.Particles(own, own * 0.125, own * 2.0, jnp.int32(len(own)), x.size, (7, 5, 6))
pfftjax.io.save(path + "x.h5", {"q": plan.input.local_block(x)}, plan.input, layout=layout)
pfftjax.io.save(path + "k.h5", {"k": plan.output.local_block(k)}, plan.output, layout=layout)
pfftjax.io.save_particles(path + "p.h5", particles, plan.input, layout=layout)
"""

READ = """
got = pfftjax.io.load(path + "x.h5", "q", plan.input)
assert (np.asarray(got) == plan.input.local_block(x)).all()
got = pfftjax.io.load(path + "k.h5", "k", plan.output)
assert (np.asarray(got) == plan.output.local_block(k)).all()
p = pfftjax.io.load_particles(path + "p.h5", plan.input, capacity=x.size)
used = int(p.used)
assert (p.offset == p.cell * 0.125).all() and (p.momentum == p.cell * 2.0).all()
numbers = np.ravel_multi_index(np.asarray(p.cell)[:used].T, (7, 5, 6))
everybody = np.concatenate(MPI.COMM_WORLD.allgather(numbers))
assert (np.sort(everybody) == np.arange(x.size)).all()
print("done", flush=True)
"""


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_other_numbers_of_ranks(tmp_path, layout):
    arguments = [f"{tmp_path}/", layout]
    assert_succeeds(BOTH + WRITE, ranks=3, arguments=arguments)
    for ranks in (1, 2):
        ended = assert_succeeds(BOTH + READ, ranks=ranks, arguments=arguments)
        assert ended.output.count("done") == ranks

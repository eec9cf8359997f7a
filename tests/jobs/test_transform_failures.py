"""Ranks that do not make the same transform."""

import pytest

from tests.jobs.job import assert_ends_in_error, assert_succeeds

pytestmark = pytest.mark.timeout(240)

SETUP = """
import pfftjax
import pytest
grid = pfftjax.ProcessGrid((SIZE, 1))

def transform(shape, **options):
    plan = pfftjax.PencilFFT(shape, grid, **options)
    dtype = "float32" if plan.real else "complex64"
    return jax.jit(plan.forward), jnp.ones(plan.input.local_shape, dtype)
"""


def test_an_error_that_all_ranks_see_can_be_caught():
    assert_succeeds(
        SETUP
        + """
f, x = transform((8, 8, 8))
g, y = transform((8, 6, 8))
jax.block_until_ready((f(x), g(y)))
with pytest.raises(Exception, match=r"is in fft complex64.*, and this rank in fft"):
    jax.block_until_ready(f(x) if RANK == 0 else g(y))
pc.recover()
assert abs(jnp.sum(f(x)) - (512 if RANK == 0 else 0)) < 1e-3
""",
    )


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("(8, 8, 8 + RANK)", "real=True"),
        ("(8, 8, 8)", "norm=('backward', 'ortho')[RANK]"),
    ],
)
def test_plans_with_blocks_alike(shape, options):
    assert_ends_in_error(
        SETUP
        + f"""
f, x = transform({shape}, {options})
jax.block_until_ready(f(x))
""",
        "this program's collectives differ between ranks",
    )


def test_a_branch_with_another_size():
    """One rank wants a larger window, the other waits for what is in the old one."""
    assert_ends_in_error(
        SETUP
        + """
small, large = (pfftjax.PencilFFT(shape, grid) for shape in ((8, 8, 8), (128, 128, 64)))

@jax.jit
def either(is_small, x, y):
    return jax.lax.cond(
        is_small,
        lambda: jnp.abs(small.forward(x)).sum(),
        lambda: jnp.abs(large.forward(y)).sum(),
    )

x, y = (jnp.ones(plan.input.local_shape, "complex64") for plan in (small, large))
either(True, x, y).block_until_ready()
either(RANK == 0, x, y).block_until_ready()
""",
        r"is in fft complex64\[512\], and this rank in fft complex64\[1048576\]",
    )

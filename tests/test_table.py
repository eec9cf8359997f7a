"""docs/collectives/transformations.md says no more than what is tested."""

import inspect
import re

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.collectives import test_transforms as matrix
from tests.extra_cases import DIFFERENTIABLE, FORWARD
from tests.helpers import CASES, RANK, SIZE, assert_close
from tests.jobs import test_shard_map as shard_map
from tools.launcher import ROOT

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 3)]

PAGE = ROOT / "docs" / "collectives" / "transformations.md"
# No part of programs, or not functions.
WITHOUT_ROW = {
    "Pending",
    "communicator",
    "duplicate",
    "has_cuda_support",
    "has_sycl_support",
    "recover",
    "save_collectives",
}


def _tables(text):
    """The tables of a page: for each its rows, the header first, by their first cell."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        yield {row[0]: row[1:] for row in [header, *rows]}


def _page():
    """(cells, texts of the errors, functions of each column, cases of each operation)."""
    table, errors, functions, cases = _tables(PAGE.read_text())
    columns = table.pop("operation")
    cells = {
        (operation, column): cell
        for operation, row in table.items()
        for column, cell in zip(columns, row, strict=True)
    }
    del errors["operation"], functions["column"], cases["operation"]
    return (
        cells,
        {operation: text for operation, (text,) in errors.items()},
        {column: names.split(", ") for column, (names,) in functions.items()},
        {operation: names.split(", ") for operation, (names,) in cases.items()},
    )


CELLS, TEXTS, FUNCTIONS, CASES_OF = _page()


# The matrix has no derivatives of these, so that its other functions do the same without.
def _scan(s):
    def steps(f):
        return lambda x: jax.lax.scan(lambda c, _: (0.5 * f(c), None), x, None, length=3)[0]

    matrix.check(steps(s.case.apply), lambda: steps(s.case.model)(s.X)[RANK], s.x)


def _while(s):
    def loop(f):
        return lambda x: jax.lax.while_loop(
            lambda state: state[0] < 3, lambda state: (state[0] + 1, 0.5 * f(state[1])), (0, x)
        )[1]

    matrix.check(loop(s.case.apply), lambda: loop(s.case.model)(s.X)[RANK], s.x)
    XB, xb = s.batch()
    matrix.check(
        jax.vmap(loop(s.case.apply)), lambda: jax.vmap(loop(s.case.model))(XB)[:, RANK], xb
    )


def _cond(s):
    def choose(f):
        return lambda x, p: jax.lax.cond(p, lambda x: 2 * f(x), lambda x: x**2, x)

    for p in (True, False):
        matrix.check(choose(s.case.apply), lambda p=p: choose(s.case.model)(s.X, p)[RANK], s.x, p)


def _checkpoint(s):
    matrix.check(jax.checkpoint(s.case.apply), lambda: s.case.model(s.X)[RANK], s.x, eager=True)


def _value(s):
    matrix.check(s.case.apply, lambda: s.case.model(s.X)[RANK], s.x, eager=True)


def _custom_rules(s):
    """Inside a function whose derivative is given, and inside that derivative."""
    forward = jax.custom_vjp(s.case.apply)
    forward.defvjp(lambda x: (s.case.apply(x), ()), lambda _, c: (s.case.apply(c),))
    gradient = jax.grad(lambda x: jnp.vdot(forward(x), s.v))
    matrix.check(gradient, lambda: s.case.model(s.V)[RANK], s.x)
    other = jax.custom_jvp(s.case.apply)
    other.defjvp(lambda p, t: (s.case.apply(*p), s.case.apply(*t)))
    pushed = jax.jit(lambda x: jax.jvp(other, (x,), (s.v,)))(s.x)
    assert_close(pushed, (s.case.model(s.X)[RANK], s.case.model(s.V)[RANK]))


WITHOUT_DERIVATIVE = {
    "test_value_and_grad": _value,
    "test_scan": _scan,
    "test_while": _while,
    "test_cond": _cond,
    "test_checkpoint": _checkpoint,
    "test_inside_custom_vjp_and_custom_jvp": _custom_rules,
}


def _extra():
    """(function, case): each function of the matrix that the page names for the case, once."""
    for case in (*DIFFERENTIABLE, *FORWARD):
        claimed = {
            function
            for (operation, column), cell in CELLS.items()
            if case.name in CASES_OF[operation] and cell in ("yes", "none")
            for function in FUNCTIONS[column]
        }
        yield from ((function, case) for function in sorted(claimed - set(FUNCTIONS["shard_map"])))


EXTRA = list(_extra())


@pytest.mark.parametrize(("name", "case"), EXTRA, ids=[f"{n}-{c.name}" for n, c in EXTRA])
def test_extra(name, case):
    """As the matrix, whose functions these are, on three ranks."""
    if SIZE != 3:
        pytest.skip("on three ranks")
    s = matrix.Setup(case)
    if name in WITHOUT_DERIVATIVE and (case in FORWARD or "custom" in name):
        WITHOUT_DERIVATIVE[name](s)
        return
    function = getattr(matrix, name)
    marks = [m for m in function.pytestmark if m.name == "parametrize" and m.args[0] != "case"]
    for value in marks[0].args[1] if marks else [None]:
        function(s, *([value] if marks else []))


def _tested():
    """The tests there are, as function[case]."""
    for name, function in inspect.getmembers(matrix, inspect.isfunction):
        for mark in getattr(function, "pytestmark", []):
            if mark.name == "parametrize" and mark.args[1] is matrix.MATRIX:
                yield from (f"{name}[{case.name}]" for case in CASES)
    yield from (f"{name}[{case.name}]" for name, case in EXTRA)
    yield from (f"test_every_operation[{name}]" for name in shard_map.EVERY_OPERATION)


def test_every_yes_has_its_tests():
    if SIZE == 3:
        assert matrix.MATRIX is CASES
    tested = set(_tested())
    for (operation, column), cell in CELLS.items():
        assert cell in ("yes", "error", "constant", "none"), (operation, column, cell)
        if cell in ("yes", "none"):
            for function in FUNCTIONS[column]:
                for case in CASES_OF[operation]:
                    assert f"{function}[{case}]" in tested, (operation, column)


def test_every_operation_has_a_row():
    named = set(re.findall(r"`(\w+)`", " ".join(CASES_OF)))
    public = {name for name in vars(pc) if not name.startswith("_")}
    public = {name for name in public if callable(getattr(pc, name))}
    assert named == public - WITHOUT_ROW
    assert {operation for operation, _ in CELLS} == set(CASES_OF)
    assert {column for _, column in CELLS} == set(FUNCTIONS)


def _send(x):
    pc.send(x, RANK)
    return x


X = jnp.ones(SIZE)
# A user's reduction is never called here: nothing is sent.
OWN = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
REFUSED = {
    "`send`": [_send],
    "`sendrecv` from ANY_SOURCE": [lambda x: pc.sendrecv(x, x, MPI.ANY_SOURCE, RANK)],
    "any other reduction": [
        lambda x: pc.allreduce(x, MPI.PROD),
        lambda x: pc.allreduce(x, OWN),
        lambda x: pc.reduce(x, MPI.MAX, 0),
        lambda x: pc.reduce_scatter(x, MPI.MIN),
        lambda x: pc.scan(x, MPI.PROD),
        lambda x: pc.exscan(x, MPI.MAX),
    ],
}
DIFFERENTIATE = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,))[1],
    "vjp, grad": lambda f: jax.grad(lambda x: jnp.sum(f(x)))(X),
    "second derivative": lambda f: jax.hessian(lambda x: jnp.sum(f(x)))(X),
}


def test_every_error_is_raised():
    assert {key for key, cell in CELLS.items() if cell == "error"} == {
        (operation, column) for operation in REFUSED for column in DIFFERENTIATE
    }
    assert set(TEXTS) == set(REFUSED)
    for operation, calls in REFUSED.items():
        for call in calls:
            for derivative in DIFFERENTIATE.values():
                with pytest.raises(TypeError) as error:
                    derivative(call)
                assert TEXTS[operation] in str(error.value)


def test_what_is_received_is_a_constant():
    def f(x):
        pc.send(jax.lax.stop_gradient(x), RANK)
        return pc.recv(x, RANK)

    constant = {
        column for (o, column), cell in CELLS.items() if cell == "constant" and o == "`recv`"
    }
    assert constant == set(DIFFERENTIATE)
    for derivative in DIFFERENTIATE.values():
        assert not derivative(f).any()

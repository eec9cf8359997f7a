"""What a program does, read from its jaxpr."""

from collections import Counter

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

# The steps of a plan, and those of them that exchange something.
STEPS = (
    "fft_of_lines",
    "pencil_transpose",
    "permute",
    *(
        f"{what}_{where}"
        for what in ("fft", "gradient", "divergence")
        for where in ("across", "alone")
    ),
)
EXCHANGES = ("pencil_transpose", "fft_across", "gradient_across", "divergence_across")
# A gradient and a divergence between three arrays and one: how many of them travel.
TRAVELLING = {"fft_across": 1, "gradient_across": 2, "divergence_across": 2}


def equations(jaxpr):
    """All equations, those of inner programs too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def messages(function, *operands):
    """How often each operation communicates when the program runs, loops counted through."""
    return _messages(jax.make_jaxpr(function)(*operands).jaxpr)


def _messages(jaxpr):
    found = Counter()
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if equation.effects and not inner:
            found[equation.primitive.name] += 1
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for program in inner:
            for name, count in _messages(program).items():
                found[name] += times * count
    return found


def steps(function, *operands):
    """How often each step of a plan occurs."""
    jaxpr = jax.make_jaxpr(function)(*operands).jaxpr
    return Counter(e.primitive.name for e in equations(jaxpr) if e.primitive.name in STEPS)


def exchanges(function, *operands):
    """How many exchanges between pencils there are."""
    count = steps(function, *operands)
    return sum(count[name] * TRAVELLING.get(name, 1) for name in EXCHANGES)


def exchanged_bytes(function, *operands):
    """What this rank gives to exchanges between pencils."""
    total = 0
    for equation in equations(jax.make_jaxpr(function)(*operands).jaxpr):
        x = equation.invars[0].aval if equation.invars else None
        if equation.primitive.name == "pencil_transpose":
            total += x.size * x.dtype.itemsize
        elif equation.primitive.name in TRAVELLING:
            first = equation.params["of"].first
            last = x.shape[-1] if first is None else first.out_of
            itemsize = np.result_type(x.dtype, np.complex64).itemsize
            arrays = TRAVELLING[equation.primitive.name]
            total += arrays * int(np.prod(x.shape[:-1])) * last * itemsize
    return total

"""Derivatives of a total: gradients, Jacobians, Hessians."""

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import jax

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Comm

from ._function import Declaration, OverRanks
from ._ownership import Arguments, Function, Key, positions_of

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


def _derivative(
    transform: Function,
    name: str,
    function: Callable[_P, PyTree],
    argnums: int | Sequence[int],
    declaration: Declaration,
    *,
    of_gradient: Callable[[PyTree, PyTree], PyTree] | None = None,
    is_forward: bool = False,
) -> Callable[_P, PyTree]:
    """What `transform`, JAX's of this name, makes of `function` as one function of all ranks."""
    operation = f"pfftjax.{name}"

    def differentiated(*args: _P.args, **kwargs: _P.kwargs) -> PyTree:
        positions = positions_of(argnums, len(args), operation)
        arguments: dict[Key, PyTree] = {**dict(enumerate(args)), **kwargs}
        whole = OverRanks(function, positions, arguments, declaration, operation)
        if is_forward:
            whole.refuse_own()
        numbers = tuple(range(len(positions))) if isinstance(argnums, (tuple, list)) else 0
        result = transform(whole, argnums=numbers)(*whole.primals)
        if of_gradient is not None:
            value, gradients = result
            whole.check_gradients(gradients if isinstance(numbers, tuple) else (gradients,))
            result = of_gradient(value, gradients)
        whole.warn()
        return result

    # Not all callables have a name; JAX copies what there is, too.
    assigned = [name for name in functools.WRAPPER_ASSIGNMENTS if hasattr(function, name)]
    return functools.wraps(function, assigned=assigned, updated=())(differentiated)


def value_and_grad(
    fun: Callable[_P, _Result],
    argnums: int | Sequence[int] = 0,
    shared: Arguments = (),
    *,
    own: Arguments = (),
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    comm: Comm = None,
) -> Callable[_P, tuple[_Result, PyTree]]:
    r"""Value and gradient of a total that all ranks compute together.

    `jax.value_and_grad` with the one thing that it cannot know: which arguments are the same on
    every rank. P ranks compute one number, :math:`L(\theta, x_0, \dots, x_{P-1})`, rank i from its
    block :math:`x_i` and its copy :math:`\theta_i` of the parameters. The copies are equal,
    :math:`\theta_i = \theta`, and so the chain rule gives

    .. math:: \frac{dL}{d\theta} = \sum_i \frac{\partial L}{\partial \theta_i} .

    A rank by itself finds its own term only, which is what `jax.grad` returns on each. Here the
    terms of what `shared` names are added up, and every rank gets the sum. Of a block it gets
    :math:`\partial L / \partial x_i`, in which the work of all other ranks is contained already.

    Inside, every rank's copy of every value is a variable of its own, whose derivatives are exact
    (docs/theory/adjoints.md). `pfftjax.collectives.replicate` may be called there, once, twice or
    not at all: it changes nothing. Totals may go on into work that differs between ranks.

    Args:
        fun: function of any arguments that returns a scalar, the same on every rank: the
            `pfftjax.collectives.allreduce` of each rank's part. It is traced, as by `jax.jit`:
            Python's ``if`` cannot look at the arguments that are differentiated.
        argnums: positions of the arguments to differentiate, as in `jax.value_and_grad`.
        shared: which arguments are the same on every rank, pytrees included: a position, a name,
            several of these, or a dict from these to a tree of booleans, a prefix of the argument:
            ``shared={"model": {"theta": True, "field": False}}``. Other arguments than those of
            `argnums`, also those passed by keyword, may be named, and are compared.
        own: in the same form, which arguments are this rank's own. They are treated as all others
            are, but without a word.
        has_aux: `fun` returns a pair of the total and of anything, which is each rank's own.
        holomorphic: as in `jax.value_and_grad`.
        allow_int: as in `jax.value_and_grad`.
        comm: the ranks that compute the total, `MPI.COMM_WORLD` by default.

    Returns:
        A function of the arguments of `fun`. It returns the value, to the same bits on every rank,
        and the gradient in the shapes and dtypes of the arguments; with `has_aux`,
        ``((value, aux), gradient)``. It can be jitted, mapped and differentiated again, by these
        functions and by JAX's, and `fun` may be jitted. Inside `jax.shard_map` with
        ``check_vma=True``, where JAX knows what differs between ranks, it is `jax.value_and_grad`.

    Raises:
        jax.errors.JaxRuntimeError: when it runs, on every rank: shared arguments that differ, by
            more than rounding, or a value that does (a loss that was not summed). A jitted program
            compares on its first call; calls outside of jitted code, and ``PFFTJAX_CHECK=1``,
            always, the latter gradients too. What differs in its last digits is a warning.
        ValueError: names and trees that do not fit the arguments.
        TypeError: what JAX refuses to differentiate.
        NotImplementedError: `allreduce` or `replicate` in a `jax.custom_vjp` function, or in its
            rule; in reverse mode, in the operator of a linear solve.

    Warns:
        UndeclaredArgumentWarning: on more than one rank, once: an argument is differentiated that
            is neither named nor of the shape of a block of any `Pencil` (with batches in front),
            nor particles.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> from pfftjax.collectives import allreduce
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> def loss(x, theta):
        ...     return allreduce(jnp.sum((theta - x) ** 2) / 2)
        >>> x = jnp.array([1.0, 2.0]) + rank
        >>> value, (by_x, by_theta) = value_and_grad(loss, (0, 1), shared=1, own=0)(x, 0.0)
        >>> bool(by_theta == sum(-3.0 - 2 * i for i in range(size)))
        True
        >>> bool(jnp.all(by_x == x))
        True

    """
    transform = functools.partial(
        jax.value_and_grad, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
    )
    declaration = Declaration(shared, own, has_aux=has_aux, comm=comm)
    return _derivative(
        transform, "value_and_grad", fun, argnums, declaration, of_gradient=lambda *both: both
    )


def grad(
    fun: Callable[_P, PyTree],
    argnums: int | Sequence[int] = 0,
    shared: Arguments = (),
    *,
    own: Arguments = (),
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    comm: Comm = None,
) -> Callable[_P, PyTree]:
    """Gradient of a total that all ranks compute together.

    Its arguments are those of `value_and_grad`.

    Returns:
        A function of the arguments of `fun` that returns the gradient; with `has_aux`,
        ``(gradient, aux)``.

    Raises, and warns, as `value_and_grad`.

    Example:
        >>> from mpi4py import MPI
        >>> from pfftjax.collectives import allreduce
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> def total(theta):
        ...     return allreduce(rank * theta)
        >>> float(grad(total, shared="theta")(1.0)) == sum(range(size))
        True

    """
    transform = functools.partial(
        jax.value_and_grad, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
    )

    def gradient(value: PyTree, gradients: PyTree) -> PyTree:
        return (gradients, value[1]) if has_aux else gradients

    declaration = Declaration(shared, own, has_aux=has_aux, comm=comm)
    return _derivative(transform, "grad", fun, argnums, declaration, of_gradient=gradient)


def jacrev(
    fun: Callable[_P, PyTree],
    argnums: int | Sequence[int] = 0,
    shared: Arguments = (),
    *,
    own: Arguments = (),
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    comm: Comm = None,
) -> Callable[_P, PyTree]:
    """Jacobian of totals that all ranks compute together, one pass backwards for each of them.

    Its arguments are those of `value_and_grad`, but `fun` may return an array of any shape, or a
    pytree, the same on every rank (a power spectrum, say).

    Returns:
        A function that returns the Jacobian, in the shapes of `jax.jacrev`. Of an own block each
        rank gets its block of it.

    Raises, and warns, as `value_and_grad`.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> from pfftjax.collectives import allreduce
        >>> def powers(theta):
        ...     return allreduce(theta ** jnp.arange(3.0) / MPI.COMM_WORLD.size)
        >>> jnp.round(jacrev(powers, shared=0)(2.0), 4).tolist()
        [0.0, 1.0, 4.0]

    """
    transform = functools.partial(
        jax.jacrev, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
    )
    declaration = Declaration(shared, own, has_aux=has_aux, comm=comm)
    return _derivative(transform, "jacrev", fun, argnums, declaration)


def jacfwd(
    fun: Callable[_P, PyTree],
    argnums: int | Sequence[int] = 0,
    shared: Arguments = (),
    *,
    shared_result: PyTree = True,
    has_aux: bool = False,
    holomorphic: bool = False,
    comm: Comm = None,
) -> Callable[_P, PyTree]:
    """Jacobian with respect to shared arguments, one pass forwards for each of their elements.

    Its arguments are those of `value_and_grad`, but `fun` may return an array of any shape, or a
    pytree. `shared_result` says whether this is the same on every rank: False for each rank's own
    blocks, or a tree of booleans. All that is differentiated has to be named in `shared`: a unit
    vector of each rank's own block would be one on every rank at once.

    Returns:
        A function that returns the Jacobian, in the shapes of `jax.jacfwd`.

    Raises:
        ValueError: on more than one rank, an argument that is not shared.

    Others as `value_and_grad`.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> def field(theta):
        ...     return theta**2 * jnp.array([1.0, MPI.COMM_WORLD.rank])
        >>> slopes = jacfwd(field, shared=0, shared_result=False)(3.0)
        >>> slopes.tolist() == [6.0, 6.0 * MPI.COMM_WORLD.rank]
        True

    """
    transform = functools.partial(jax.jacfwd, has_aux=has_aux, holomorphic=holomorphic)
    declaration = Declaration(shared, (), shared_result, has_aux, comm)
    return _derivative(transform, "jacfwd", fun, argnums, declaration, is_forward=True)


def hessian(
    fun: Callable[_P, PyTree],
    argnums: int | Sequence[int] = 0,
    shared: Arguments = (),
    *,
    has_aux: bool = False,
    holomorphic: bool = False,
    comm: Comm = None,
) -> Callable[_P, PyTree]:
    """Hessian of a total with respect to shared arguments, as `jax.hessian`.

    Of fields it is too large to be written down; its products with a direction are
    ``pfftjax.jvp(pfftjax.grad(fun), (x,), (direction,), shared_result=False)[1]``.

    Its arguments are those of `value_and_grad`, but `fun` may return several totals, and all
    that is differentiated has to be named in `shared`.

    Returns:
        A function that returns the Hessian, in the shapes of `jax.hessian`.

    Raises:
        ValueError: on more than one rank, an argument that is not shared.

    Others as `value_and_grad`.

    Example:
        >>> from mpi4py import MPI
        >>> from pfftjax.collectives import allreduce
        >>> def loss(theta):
        ...     return allreduce(theta**3)
        >>> float(hessian(loss, shared=0)(2.0)) == 12.0 * MPI.COMM_WORLD.size
        True

    """
    transform = functools.partial(jax.hessian, has_aux=has_aux, holomorphic=holomorphic)
    declaration = Declaration(shared, has_aux=has_aux, comm=comm)
    return _derivative(transform, "hessian", fun, argnums, declaration, is_forward=True)

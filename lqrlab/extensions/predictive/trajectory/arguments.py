"""Arguments of a trajectory optimisation as arrays of one type, or a refusal that says why."""

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike

from lqrlab.compute.checks import traced
from lqrlab.control import matrix_checks
from lqrlab.simulation.limits import Limits, Pair


def as_pytree(f: Callable[[Array, Array], Array], n: int, m: int, dtype: np.dtype) -> Partial:
    """f as data of a compiled function, so that the fields of a method's instance are not constants of the program."""
    if not callable(f):
        raise TypeError(f"f: expected a function of x and u, but found {f!r}")
    if inspect.ismethod(f) and not jax.tree_util.all_leaves([f.__self__]):
        f = Partial(f.__func__, f.__self__)
    try:
        out = jax.eval_shape(f, *(jax.ShapeDtypeStruct((size,), dtype) for size in (n, m)))
    except Exception as error:
        why = f"fails on a state [{n}] and an input [{m}] with {type(error).__name__}: {error}"
        raise ValueError(f"f: {why}; write it with jax.numpy instead of numpy or math") from error
    if getattr(out, "shape", None) != (n,):
        raise ValueError(f"f: expected ẋ of shape ({n},), but found {out}")
    return f if isinstance(f, Partial) else Partial(f)


def as_arrays(
    x0: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None,
    dt: ArrayLike,
    goal: Pair | None,
    limits: Limits,
    us: ArrayLike | None,
) -> tuple[tuple[Array, ...], tuple[Array, Array] | None]:
    """x0, first guess, Q, R, Qf, goal, limits, dt, and limits of the states as arrays of one type; or a refusal."""
    given = [jnp.asarray(matrix_checks.real(*pair)) for pair in (("x0", x0), ("Q", Q), ("R", R))]
    dtype = matrix_checks.floating(*given)
    x0, Q, R = (a.astype(dtype) for a in given)
    matrix_checks.shapes({"Q": Q, "R": R}, {"Q": "nn", "R": "mm"})
    n, m = Q.shape[-1], R.shape[-1]
    _, _, Q, R, _ = matrix_checks.arguments(jnp.zeros((n, n), dtype), jnp.zeros((n, m), dtype), Q, R, None)
    step = matrix_checks.sample_time(dt, dtype)
    Qf = matrix_checks.terminal_weight(Qf, Q, jnp.zeros_like(Q))
    x_goal, u_goal = goal or (jnp.zeros(n), jnp.zeros(m))
    x0 = matrix_checks.trailing("x0", x0, (n,), dtype)
    x_goal = matrix_checks.trailing("goal", x_goal, (n,), dtype)
    u_goal = matrix_checks.trailing("goal's input", u_goal, (m,), dtype)
    if us is None:
        us = jnp.broadcast_to(u_goal[..., None, :], (*u_goal.shape[:-1], num_steps, m))
    us = matrix_checks.trailing("us", us, (num_steps, m), dtype)
    if others := set(limits.signals()) - {"u", "x"}:
        raise ValueError(f"limits: expected those of inputs and states, but found {', '.join(sorted(others))} too")
    ends = {name: tuple(a[..., 0, :] for a in pair) for name, pair in limits.checked(n, m, dtype, 1).signals().items()}
    low, high = ends.get("u", (jnp.full(m, -jnp.inf, dtype), jnp.full(m, jnp.inf, dtype)))
    inside: tuple[Array, Array] | None = ends.get("x")
    if inside is not None and not traced(x0, *inside):
        start, *edges = np.broadcast_arrays(x0, *inside)
        out = np.argwhere((start < edges[0]) | (start > edges[1]))
        if len(out):
            i = tuple(out[0])
            raise ValueError(
                f"x0: state {i[-1]} starts at {start[i]:g}, outside its limits from {edges[0][i]:g} to "
                f"{edges[1][i]:g}, and no input can change where it starts; move x0 or widen limits.x"
            )
    return (x0, us, Q, R, Qf, x_goal, u_goal, low, high, step), inside

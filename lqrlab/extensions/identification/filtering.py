"""Parameters of a plant that is disturbed: the likelihood of what an extended Kalman filter did not expect."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from lqrlab.compute.calculus import rk4
from lqrlab.control.estimation import measurement_update, time_update
from lqrlab.extensions.identification.fitted_plant import FittedPlant
from lqrlab.extensions.identification.log import Log
from lqrlab.extensions.identification.shooting import Segments

_PRIOR = 0.3  # standard deviation of each record's first state, relative to the states' scales


def filtered(first: FittedPlant, log: Log, iterations: int) -> FittedPlant:
    """The parameters, process and sensor noise that are likeliest, from a fit without process noise on.

    Unknown are the scaled parameters, the logarithms of the noises' standard deviations and the initial states. L-BFGS
    (SciPy) with exact gradients through the filter; the Hessian, from differences of them, gives the standard errors.

    Source: N. R. Kristensen, H. Madsen, S. B. Jørgensen, Parameter estimation in stochastic grey-box models, Automatica
    40(2), 2004.
    """
    whole = Segments.of(
        first.segments.plant, log, first.names, None, first.segments.substeps, np.zeros(len(first.noise), bool)
    )
    starts = first.x0[~first.segments.follows]
    k, n, p = len(first.z), starts.shape[1], len(first.noise)
    c = whole.coordinates
    v = np.concatenate([first.z, np.full(n, np.log(1e-2)), np.log(first.noise), (starts / whole.scale).ravel()])
    rest = len(v) - k
    floor = np.concatenate([np.full(n, np.log(1e-6)), np.log(1e-3 * first.noise), np.full(rest - n - p, -np.inf)])
    bounds = list(zip(np.append(c.low, floor), np.append(c.high, np.full(rest, np.inf))))
    centre = jnp.asarray(starts / whole.scale)

    def slope(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = _unlikely_slope(whole, jnp.asarray(v), centre)
        good = np.isfinite(value) and np.isfinite(g).all()
        return (float(value), np.asarray(g)) if good else (1e12, np.zeros(len(v)))

    found = scipy.optimize.minimize(
        slope, v, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 5 * iterations, "ftol": 1e-12}
    )
    v = found.x
    known = np.append(np.zeros(k, bool), v[k : k + n] <= floor[:n] + 1e-6)  # a noise that is not there is no unknown
    information = _information(slope, v, k, np.append(known, np.zeros(rest - n, bool)))
    x0 = v[k + n + p :].reshape(-1, n) * whole.scale
    return FittedPlant.of(
        whole,
        v[:k],
        information=information,
        noise=np.exp(v[k + n : k + n + p]),
        offsets=np.zeros(p),
        x0=x0,
        predicted=np.asarray(_filter(whole, jnp.asarray(v))[0])[whole.mask],
        starts=np.array([found.fun]),
        log=log,
        disturbed=True,
    )


def _information(
    slope: Callable[[np.ndarray], tuple[float, np.ndarray]], v: np.ndarray, k: int, known: np.ndarray
) -> Float[np.ndarray, "k k"]:
    """The Hessian of the first k unknowns, the others eliminated but for those that are known."""
    h = 1e-4
    H = np.stack([(slope(v + h * row)[1] - slope(v - h * row)[1]) / (2 * h) for row in np.eye(len(v))])
    H = (H + H.T) / 2
    free = (np.arange(len(v)) >= k) & ~known
    inner = np.linalg.pinv(H[np.ix_(free, free)], hermitian=True)
    return H[:k, :k] - H[:k, free] @ inner @ H[free, :k]


@jax.jit
def _filter(s: Segments, v: Float[Array, " f"]) -> tuple[Float[Array, "S L p"], Float[Array, "S L"]]:
    """Outputs that the filter expects in each record, and minus the log likelihood of those that came."""
    k, n, p = len(s.coordinates.names), s.scale.shape[0], len(s.which)
    plant, scale = s.coordinates.plant(s.plant, v[:k]), jnp.asarray(s.scale)
    Q, R = jnp.diag((jnp.exp(v[k : k + n]) * scale) ** 2), jnp.diag(jnp.exp(2 * v[k + n : k + n + p]))
    h = jnp.asarray(s.dt, scale.dtype) / s.substeps

    def ahead(x: Array, u: Array) -> Array:
        return rk4(lambda x: plant.dynamics(x, u), x, jnp.full_like(x, h), s.substeps)

    def one(x0: Array, us: Array, ys: Array, mask: Array) -> tuple[Array, Array]:
        def step(state: tuple[Array, Array], sample: tuple[Array, Array, Array]) -> tuple:
            (x, P), (u, y, there) = state, sample
            expected, C = s.seen(plant, x), jax.jacfwd(lambda x: s.seen(plant, x))(x)
            S, e = C @ P @ C.T + R, y - expected
            cost = 0.5 * (e @ jnp.linalg.solve(S, e) + jnp.linalg.slogdet(S)[1])
            x, P = measurement_update(x, P, C @ P, S, e)
            P = time_update(jax.jacfwd(ahead)(x, u), P, Q)
            return (ahead(x, u), P), (expected, jnp.where(there, cost, 0.0))

        begin = jnp.diag((_PRIOR * scale) ** 2)
        return jax.lax.scan(step, (x0 * scale, begin), (us, ys, mask))[1]

    starts = v[k + n + p :].reshape(-1, n)
    return jax.vmap(one)(starts, jnp.asarray(s.us), jnp.asarray(s.ys), jnp.asarray(s.mask))


@jax.jit
def _unlikely_slope(s: Segments, v: Float[Array, " f"], centre: Float[Array, "S n"]) -> tuple[Array, Array]:
    """Minus the log likelihood and its gradient; the first states are known as well as the first fit knew them."""

    def unlikely(v: Array) -> Array:
        starts = v[-centre.size :].reshape(centre.shape)
        return jnp.sum(_filter(s, v)[1]) + 0.5 * jnp.sum(((starts - centre) / _PRIOR) ** 2)

    return jax.value_and_grad(unlikely)(v)

"""The adaptive regulator of plants whose outputs alone are measured: it learns how they follow from those before."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.learning.adaptive.policy import AdaptivePolicy, Memory
from lqrlab.learning.adaptive.prior import Prior, Z, ridge
from lqrlab.simulation import Told
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant, check_plant

_CAUTION, _PROBE, _START = 0.12, (0.034, 1.5, 0.24), 2.2  # as they were learned where all states are measured
_DIFFERENCES = (0.1, 0.3, 0.5, 1.0)
"""Standard deviations of what the output and its first, second, third difference count for, beside extrapolation."""
_SIZES = (
    # factor on these, standard deviation of what an input counts for, differences in the mean, log prior odds
    (0.3, 0.03, 9, 0.0),
    (0.3, 0.3, 9, 0.0),
    (1.0, 0.1, 9, 0.0),
    (1.0, 1.0, 9, 0.0),
    (2.0, 0.5, 1, -1.0),
    (2.0, 3.0, 9, -1.0),
)


@pytree
@dataclasses.dataclass(frozen=True)
class OutputPrior(Prior):
    """Belief about the next outputs, given a window [y[t], …, y[t−lags+1], u[t−1], …, u[t−lags+1]].

    Before anything is seen each output goes on as the polynomial through its last values does; coefficients of its
    differences and of the inputs are normal around that, in several sizes. That the window shifts is known.

    Attributes:
        p, inputs, lags: numbers of outputs, of inputs, and of samples that are remembered.
    """

    p: int = dataclasses.field(metadata={"static": True})
    inputs: int = dataclasses.field(metadata={"static": True})
    lags: int = dataclasses.field(metadata={"static": True})

    def components(self, told: Told) -> tuple[Array, Array, Array, Array]:
        """As :meth:`Prior.components`: θ, covariances of the outputs' rows, log weights; no row is a position."""
        p, L, outputs = self.p, self.lags, self.p * self.lags
        last = _length(p, self.inputs, L)
        still = np.zeros((Z, N_MAX))
        still[np.arange(outputs - p), np.arange(p, outputs)] = 1.0
        sources = [*range(N_MAX, N_MAX + self.inputs), *range(outputs, last - self.inputs)]
        still[sources[: last - outputs], np.arange(outputs, last)] = 1.0
        difference = np.array([[(-1) ** i * math.comb(k, i) for i in range(L)] for k in range(L)], float)
        thetas, spreads = [], []
        for factor, size, order, _ in _SIZES:
            theta, spread = still.copy(), np.zeros((Z, Z))
            ahead = difference.T @ (np.arange(L) < order)
            doubt = difference.T @ np.diag((factor * np.array(_DIFFERENCES[:L])) ** 2) @ difference
            for j in range(p):
                at = np.arange(j, outputs, p)
                theta[at, j] = ahead
                spread[np.ix_(at, at)] = doubt
            driven = [*range(outputs, last), *range(N_MAX, N_MAX + self.inputs)]
            spread[driven, driven] = size**2
            thetas.append(theta)
            spreads.append(np.stack([spread, spread]))
        odds = [log_odds for *_, log_odds in _SIZES]
        return jnp.asarray(np.stack(thetas)), jnp.asarray(np.stack(spreads)), jnp.asarray(odds), jnp.zeros(N_MAX)


def _length(p: int, m: int, lags: int) -> int:
    """Entries of the window."""
    return p * lags + m * (lags - 1)


@pytree
@dataclasses.dataclass(frozen=True)
class AdaptiveOutputPolicy:
    """A regulator of plants that nobody has described to it and of which outputs alone are measured.

    A linear plant of n states is, in its last ⌈n/p⌉ outputs and inputs, a linear plant again, whose state is known, if
    each output sees as many of the states as the next (else ``order`` has to be larger): that one is learned and
    controlled as :class:`AdaptivePolicy` does. The sum of |y|² + |u|² is regulated, in units of the scales. It acts on
    outputs: :class:`lqrlab.simulation.Measured` puts it behind sensors.

    With noise it is weak: a third of the loops of the catalogue's small plants fail at a hundredth of the scales.

    Attributes:
        regulator: of the window.
        scale_y, scale_u: units of the signals ``[*batch, p]``, ``[*batch, m]``, those of inputs padded if need be.

    Source: G. C. Goodwin and K. S. Sin, Adaptive filtering, prediction and control (1984), chapter 2 (the window as a
    state); T. Doan, R. Litterman and C. Sims, Econometric Reviews 3 (1984) (a prior of such coefficients).
    """

    regulator: AdaptivePolicy
    scale_y: Float[Array, "*batch p"]
    scale_u: Float[Array, "*batch m"]

    @property
    def _sizes(self) -> tuple[int, int, int]:
        prior = self.regulator.prior
        assert isinstance(prior, OutputPrior)
        return prior.p, prior.inputs, prior.lags

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Memory, Float[Array, "*batch n"], Int[Array, "*batch"]]:
        """The belief, the window, and for how many steps outputs have been measured."""
        return self.regulator.init(batch_shape), jnp.zeros((*batch_shape, N_MAX)), jnp.zeros(batch_shape, int)

    def __call__(self, carry: tuple[Memory, Array, Array], x: Array) -> tuple[tuple[Memory, Array, Array], Array]:
        """Learn from outputs x ``[*batch, *extra, p]`` and answer with u ``[*batch, *extra, m]``."""
        (memory, window, seen), (p, m, lags) = carry, self._sizes
        if x.shape[-1:] != (p,):
            raise ValueError(f"x: expected {p} outputs, but found shape {x.shape}; simulation.Measured measures them")
        scaled = x.astype(float) / expand_batch(self.scale_y, x.ndim)
        measured = jnp.all(jnp.isfinite(scaled), axis=-1)
        scaled = jnp.where(measured[..., None], scaled, memory.expected[..., :p])
        first = (memory.t == 0)[..., None]
        # before the first sample, as if it had been at rest
        before = jnp.where(first, jnp.tile(scaled, lags - 1), window[..., : p * (lags - 1)])
        inputs = window[..., p * lags : _length(p, m, lags)]
        outputs = jnp.concatenate([scaled, before], axis=-1)
        # a window that is not all measured teaches nothing
        memory = dataclasses.replace(memory, measured=memory.measured & measured & (seen >= lags))
        rest = jnp.zeros((*scaled.shape[:-1], N_MAX - _length(p, m, lags)))
        memory, u = self.regulator(memory, jnp.concatenate([outputs, inputs, rest], axis=-1))
        shifted = jnp.concatenate([u, inputs], axis=-1)[..., : m * (lags - 1)]
        window = jnp.concatenate([outputs, shifted, rest], axis=-1)
        seen = jnp.where(measured, seen + 1, 0)
        u = jnp.concatenate([u, jnp.zeros((*u.shape[:-1], self.scale_u.shape[-1] - m))], axis=-1)
        return (memory, window, seen), (u * expand_batch(self.scale_u, u.ndim)).astype(x.dtype)


def adaptive_outputs(
    plants: Plant,
    *,
    order: int | None = None,
    noise: ArrayLike = 0.0,
    sensor_noise: ArrayLike = 0.0,
    limit: ArrayLike = np.inf,
    doublings: int = 2,
) -> AdaptiveOutputPolicy:
    """A regulator for plants of which the units of outputs and inputs and the number of states are told, nothing else.

    Args:
        plants: a plant or a batch, whose equations are not looked at. The outputs are those that it declares.
        order: number of states of the linear plant that is learned; the plant's own if left out.
        noise: least standard deviation of what disturbs the outputs in a step, in units of their scales.
        sensor_noise: the same of what is measured.
        limit: of the inputs, ± in units of their scale.
        doublings: 2 to this power steps of policy evaluation are made a step.

    Raises:
        ValueError: a plant with so many states for its outputs that the window would have more than twelve entries.

    >>> plant = systems.make("pendulum")
    >>> policy = simulation.Measured(learning.adaptive_outputs(plant), simulation.outputs(plant))
    >>> run = simulation.rollout(plant, policy, jnp.array([0.1, 0.0]), num_steps=300)
    >>> bool(abs(run.xs[-1]).max() < 1e-3)
    True
    """
    check_plant(plants)
    noise, sensor_noise = (_level(name, a, 0.0) for name, a in (("noise", noise), ("sensor_noise", sensor_noise)))
    limit, doublings = _level("limit", limit, np.finfo(float).tiny), checks.whole("doublings", doublings, 0)
    n = plants.n if order is None else checks.whole("order", order)
    C, lead = jnp.asarray(plants.output_matrix(), float), plants.batch_shape
    C = jnp.broadcast_to(C, (*lead, *C.shape[-2:]))
    scale_x, scale_u = (jnp.broadcast_to(jnp.asarray(s, float), (*lead, s.shape[-1])) for s in plants.scales)
    size = jnp.linalg.norm(C * scale_x[..., None, :], axis=-1)
    scale_y = jnp.where(size > 0, size, 1.0)
    told = Told.units(Coordinates.of(plants), plants.dt, noise=noise, sensor_noise=sensor_noise, limit=limit)
    return of_outputs(told, scale_y, scale_u, n, plants.m, doublings=doublings)


def _level(name: str, value: ArrayLike, low: float) -> np.ndarray:
    level = np.asarray(checks.real(name, value), float)
    if not (level >= low).all():
        wanted = "≥ 0" if low == 0 else "> 0"
        raise ValueError(f"{name}: expected numbers {wanted}, in units of the scales, but found {value!r}")
    return level


def of_outputs(
    told: Told, scale_y: Array, scale_u: Array, n: int, m: int, *, doublings: int = 2
) -> AdaptiveOutputPolicy:
    """The regulator of plants of n states and m inputs, with units of outputs and inputs as the policy has them."""
    p = scale_y.shape[-1]
    lags = max(-(-n // p), 1)
    if _length(p, m, lags) > N_MAX or lags > len(_DIFFERENCES):
        raise ValueError(
            f"plants: expected at most four states an output, and at most {N_MAX} remembered outputs and inputs, but "
            f"for {n} states, {p} outputs and {m} inputs there would be {_length(p, m, lags)}, of {lags} samples; "
            "measure more"
        )
    base = ridge(caution=_CAUTION)
    numbers = {f.name: getattr(base, f.name) for f in dataclasses.fields(Prior)}
    numbers |= {"probe": jnp.array(_PROBE), "start": jnp.array(_START)}
    lead = told.batch_shape
    masks = (
        jnp.broadcast_to((jnp.arange(size) < k).astype(float), (*lead, size)) for size, k in ((N_MAX, p), (M_MAX, m))
    )
    ones = jnp.ones((*lead, N_MAX)), jnp.ones((*lead, M_MAX))
    window = dataclasses.replace(told, coordinates=Coordinates(*ones, *masks))
    regulator = AdaptivePolicy(OutputPrior(**numbers, p=p, inputs=m, lags=lags), window, m, doublings)
    return AdaptiveOutputPolicy(regulator, scale_y, scale_u)

"""The adaptive regulator of plants whose outputs alone are measured: state and plant are estimated together."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown.adaptive_policy import greedy, improved, probe
from lqrlab.simulation import Told
from lqrlab.systems import Coordinates, Plant, check_plant

_CAUTION, _PROBE, _START = 0.12, (0.034, 1.5, 0.24), 2.2  # as they were learned where all states are measured
_RATES, _OWN, _DRIVEN = (0.03, 0.3), (0.03, 0.3), (0.03, 0.1, 0.3, 1.0)
"""Differences of the hypotheses: how far a rate of one moves its output in a sample, and standard deviations of what
states and inputs do to the highest rates."""
_BANK = np.array([*itertools.product(_RATES, _OWN, _DRIVEN)])
_HALF, _LOWER = 0.5, 0.3  # of what an input does to a rate, what it does below: half a step of it, and by itself
_MOST = 4  # states an output
_DIGITS = 64.0  # times the rounding of one: variance of the noise that is assumed at least
_LARGEST, _BROKEN = 1e8, 100.0  # of a variance; −log of what is left of the weight of a filter that breaks down


@pytree
@dataclasses.dataclass(frozen=True)
class OutputBelief:
    """Belief after the steps so far, about state and plant together, by each of K hypotheses at L noises.

    Attributes:
        mean, spread: of states, then of the numbers of A and of B that are not known ``[L, K, d]``, ``[L, K, d, d]``.
        odds: logarithms of the weights ``[L, K]``.
        P: costs to go of the designs ``[K, n, n]``.
        expected: the outputs that should be next, by the means, scaled ``[p]``.
        u: the last input, scaled ``[m]``.
        t: steps taken.
        calm: measurements since the last one that surprised.
    """

    mean: Float[Array, "*batch L K d"]
    spread: Float[Array, "*batch L K d d"]
    odds: Float[Array, "*batch L K"]
    P: Float[Array, "*batch K n n"]
    expected: Float[Array, "*batch p"]
    u: Float[Array, "*batch m"]
    t: Int[Array, "*batch"]
    calm: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Chain:
    """Models of p outputs and their first rates: each state moves by the next one's rate, the last ones by all states.

    With A = I + ``rate`` on the block above the diagonal, θ added to its last p rows, and any B, it is a form of every
    plant of n states whose outputs see equally many of them. What is estimated is [x; θ; B], its d entries.
    """

    p: int
    lags: int
    m: int

    @property
    def n(self) -> int:
        """States."""
        return self.p * self.lags

    @property
    def d(self) -> int:
        """States and unknown numbers."""
        return self.n + self.p * self.n + self.n * self.m

    def prior(self) -> Float[np.ndarray, "K d d"]:
        """Covariances before the first measurement, of each hypothesis; all means are zero."""
        p, n, m, L = self.p, self.n, self.m, self.lags
        spreads = []
        for rate, own, driven in _BANK:
            below = np.zeros((L, L))  # what an input does to the levels of a chain, from independent numbers
            below[L - 1, L - 1] = driven
            for i in reversed(range(L - 1)):
                below[i] = _HALF * rate * below[i + 1]
                below[i, i] += _LOWER * driven
            spread = np.diag(np.r_[np.ones(n), np.full(p * n, own**2), np.zeros(n * m)])
            spread[n + p * n :, n + p * n :] = np.kron(below @ below.T, np.eye(p * m))
            spreads.append(spread)
        return np.stack(spreads)

    def matrices(self, mean: Array, rate: ArrayLike) -> Float[Array, "z n"]:
        """[A B]ᵀ for these numbers."""
        n, p, driven = self.n, self.p, self.n + self.p * self.n
        A = (jnp.eye(n) + rate * jnp.eye(n, k=p)).at[n - p :].add(mean[n:driven].reshape(p, n))
        return jnp.concatenate([A, mean[driven:].reshape(n, self.m)], axis=1).T

    def ahead(self, mean: Array, spread: Array, rate: ArrayLike, variance: ArrayLike, u: Array) -> tuple[Array, Array]:
        """Mean and covariance a step later: the exact moments of normal x, θ and B, whose products move the state."""
        n, p, driven = self.n, self.p, self.n + self.p * self.n
        x, theta = mean[:n], self.matrices(mean, rate)
        slope = jnp.concatenate([theta[:n].T, jnp.zeros((n, self.d - n))], axis=1)
        slope = slope.at[n - p :, n:driven].set(jnp.kron(jnp.eye(p), x[None]))
        slope = slope.at[:, driven:].set(jnp.kron(jnp.eye(n), u[None]))
        between = spread[n:driven, :n].reshape(p, n, n)  # of θ and x
        own = spread[n:driven, n:driven].reshape(p, n, p, n)
        product = jnp.einsum("iajb,ab->ij", own, spread[:n, :n]) + jnp.einsum("iab,jba->ij", between, between)
        moved = slope @ spread
        state = (moved @ slope.T + variance * jnp.eye(n)).at[n - p :, n - p :].add(product)
        after = (jnp.concatenate([x, u]) @ theta).at[n - p :].add(jnp.trace(between, axis1=1, axis2=2))
        spread = spread.at[:n].set(moved).at[:, :n].set(moved.T).at[:n, :n].set(state)
        return mean.at[:n].set(after), spread

    def seen(self, mean: Array, spread: Array, variance: ArrayLike, y: Array) -> tuple[Array, Array, Array]:
        """Mean, covariance and log likelihood after outputs y, one after another."""
        found = jnp.zeros(())
        for j in range(self.p):
            expected, error = spread[j, j] + variance, y[j] - mean[j]
            gain = spread[:, j] / expected
            mean, spread = mean + gain * error, spread - gain[:, None] * spread[j][None]
            # Joseph's form: it stays a covariance, where the difference alone is lost in rounding
            spread = spread - spread[:, j][:, None] * gain[None] + variance * gain[:, None] * gain[None]
            found = found - (jnp.log(expected) + error**2 / expected) / 2
        return mean, (spread + spread.T) / 2, found

    def doubt(self, spread: Array, P: Array) -> Float[Array, "z z"]:
        """E[δ P δᵀ] for δ what is not known of [A B]ᵀ."""
        n, p, m, driven = self.n, self.p, self.m, self.n + self.p * self.n
        own = jnp.einsum("ij,iajb->ab", P[n - p :, n - p :], spread[n:driven, n:driven].reshape(p, n, p, n))
        both = jnp.einsum("ij,iajb->ab", P[n - p :], spread[n:driven, driven:].reshape(p, n, n, m))
        inputs = jnp.einsum("ij,iajb->ab", P, spread[driven:, driven:].reshape(n, m, n, m))
        return jnp.block([[own, both], [both.T, inputs]])


@pytree
@dataclasses.dataclass(frozen=True)
class AdaptiveOutputPolicy:
    """A regulator of plants that nobody has described to it and of which outputs alone are measured.

    Each hypothesis is a prior of the plant in the form of :class:`Chain`, with a filter of state and unknown numbers
    together: Kalman's, with the exact moments of their products. Each has its design, as :class:`AdaptivePolicy` makes
    it, for its mean; the input is the mean of theirs, weighed by how well each foretold the outputs, over tr P. The
    sum of |y|² + |u|² is regulated, in units of the scales. It acts on outputs: :class:`lqrlab.simulation.Measured`
    puts it behind sensors. A measurement that is missing is left out; what was learned well bridges it. One that a
    push or a faulty sensor explains better than the plant is left out too, which takes a step: after it, the state is
    as uncertain as at first, and what was learned of the plant stays. Unlike :class:`AdaptivePolicy` it knows of no
    plant that changes.

    With noise it is weak: a quarter of the loops of the catalogue's small plants fail at a hundredth of the scales.

    Attributes:
        told: noise and limits of the plants ``[*batch]``.
        scale_y, scale_u: units of the signals ``[*batch, p]``, ``[*batch, m]``, those of inputs padded if need be.
        chain: the form of the models.
        doublings: 2 to this power steps of policy evaluation are made a step.

    Source: L. Ljung, Asymptotic behavior of the extended Kalman filter as a parameter estimator for linear systems,
    IEEE TAC 24 (1979), with moments of second order; D. Lainiotis, IEEE TAC 16 (1971) (the bank of filters).
    """

    told: Told
    scale_y: Float[Array, "*batch p"]
    scale_u: Float[Array, "*batch m"]
    chain: Chain = dataclasses.field(metadata={"static": True})
    doublings: int = dataclasses.field(default=2, metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> OutputBelief:
        """The belief before the first measurement, for each loop."""
        spread, p = jnp.asarray(self.chain.prior()), self.chain.p
        _, odds = beliefs.levels(jnp.ones(()))
        levels, bank = len(odds), len(_BANK)
        P = _START * jnp.eye(self.chain.n)
        one = OutputBelief(
            jnp.zeros((levels, bank, self.chain.d)),
            jnp.broadcast_to(spread, (levels, *spread.shape)),
            jnp.broadcast_to(odds[:, None], (levels, bank)),
            jnp.broadcast_to(P, (bank, *P.shape)),
            jnp.zeros(p),
            jnp.zeros(self.chain.m),
            jnp.zeros((), int),
            jnp.zeros((), int),
        )
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (*batch_shape, *a.shape)), one)

    def __call__(self, carry: OutputBelief, x: Array) -> tuple[OutputBelief, Array]:
        """Learn from outputs x ``[*batch, *extra, p]`` and answer with u ``[*batch, *extra, m]``."""
        p, m = self.chain.p, self.chain.m
        if x.shape[-1:] != (p,):
            raise ValueError(f"x: expected {p} outputs, but found shape {x.shape}; simulation.Measured measures them")
        lead, num = x.shape[:-1], math.prod(x.shape[:-1])
        y = (x.astype(float) / expand_batch(self.scale_y, x.ndim)).reshape(num, p)
        told = [
            jnp.broadcast_to(expand_batch(a, len(lead), 0), lead).reshape(num)
            for a in (self.told.noise, self.told.sensor_noise, self.told.limit)
        ]
        flat = jax.tree.map(lambda a: a.reshape(num, *a.shape[len(lead) :]), carry)
        belief, u = jax.vmap(self._step)(flat, y, *told)
        belief = jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), belief)
        u = jnp.pad(u.reshape(*lead, m), [(0, 0)] * len(lead) + [(0, self.scale_u.shape[-1] - m)])
        return belief, (u * expand_batch(self.scale_u, u.ndim)).astype(x.dtype)

    def _step(
        self, belief: OutputBelief, y: Array, noise: Array, sensor_noise: Array, limit: Array
    ) -> tuple[OutputBelief, Array]:
        """One plant, one step, in scaled coordinates."""
        chain, rates = self.chain, jnp.asarray(_BANK[:, 0])
        floor = max(beliefs.FLOOR**2, _DIGITS * float(jnp.finfo(y.dtype).eps))
        disturbed, _ = beliefs.levels(floor + noise**2)
        measured, _ = beliefs.levels(floor + sensor_noise**2)
        predicted = jax.vmap(jax.vmap(chain.ahead, (0, 0, 0, None, None)), (0, 0, None, 0, None))
        ahead = predicted(belief.mean, belief.spread, rates, disturbed, belief.u)
        mean, spread = (jnp.where(belief.t > 0, new, old) for new, old in zip(ahead, (belief.mean, belief.spread)))
        corrected = jax.vmap(jax.vmap(chain.seen, (0, 0, None, None)), (0, 0, 0, None))
        *learned, found = corrected(mean, spread, measured, y)
        # a step that a push explains better teaches nothing, and where the state is now is as uncertain as at first
        pushed = spread.at[..., : chain.n, : chain.n].add(beliefs.OUTLIER**2 * jnp.eye(chain.n)[None, None])
        share = jax.nn.sigmoid(corrected(mean, pushed, measured, y)[2] - beliefs.RARE - found)
        share = jnp.sum(jax.nn.softmax(belief.odds.ravel()) * jnp.nan_to_num(share).ravel())
        there = jnp.all(jnp.isfinite(y))
        surprised = there & (share > 0.5)
        odd = surprised & (belief.calm >= beliefs.CALM)
        spread, known = jnp.where(odd, pushed, spread), there & ~odd
        # the two steps after a push are taken as they come; before, a surprise is the model's
        calm = jnp.where(odd, beliefs.CALM - 2, jnp.where(surprised, 0, belief.calm + there.astype(int)))
        mean, spread = (jnp.where(known, new, old) for new, old in zip(learned, (mean, spread)))
        # a filter that overflows, or whose covariance is none any more, begins again
        sizes = jnp.diagonal(spread, axis1=-2, axis2=-1)
        sound = jnp.all(jnp.isfinite(mean) & (sizes > 0) & (sizes < _LARGEST), axis=-1)
        sound = sound & jnp.all(jnp.isfinite(spread), axis=(-2, -1)) & (jnp.isfinite(found) | ~there)
        mean = jnp.where(sound[..., None], mean, 0.0)
        spread = jnp.where(sound[..., None, None], spread, jnp.asarray(chain.prior())[None].astype(spread.dtype))
        odds = belief.odds + jnp.where(known, jnp.where(sound, found, -_BROKEN), 0.0)
        odds = odds - jnp.max(odds)
        level = jnp.argmax(jax.nn.logsumexp(odds, -1))
        K, P, theta = jax.vmap(self._designed)(mean[level], spread[level], rates, belief.P)
        weights = jax.nn.softmax(odds[level])
        states = mean[level][:, : chain.n]
        inputs = -jnp.einsum("kmn,kn->km", K, states)
        inputs = jnp.clip(jnp.where(jnp.isfinite(inputs), inputs, 0.0), -limit, limit)
        shares = weights / jnp.trace(P, axis1=1, axis2=2)
        louder = jnp.sqrt(noise**2 + disturbed[level] - disturbed[0])
        probing = probe(jnp.array(_PROBE), chain.n + chain.m, belief.t, louder)[: chain.m]
        u = jnp.clip(shares @ inputs / jnp.sum(shares) + probing, -limit, limit)
        u = jnp.where(jnp.isfinite(u), u, 0.0)
        z = jnp.concatenate([states, jnp.broadcast_to(u, inputs.shape)], axis=1)
        expected = weights @ jnp.einsum("kz,kzp->kp", z, theta[..., : chain.p])
        return OutputBelief(mean, spread, odds, P, expected, u, belief.t + 1, calm), u

    def _designed(self, mean: Array, spread: Array, rate: Array, P: Array) -> tuple[Array, Array, Array]:
        """Gain, improved cost to go and [A B]ᵀ of one hypothesis; what it does not know is multiplicative noise."""
        chain, theta = self.chain, self.chain.matrices(mean, rate)
        paid = jnp.diag(jnp.concatenate([jnp.ones(chain.p), jnp.zeros(chain.n - chain.p), jnp.ones(chain.m)]))
        price = paid + _CAUTION * chain.doubt(spread, P)
        P = improved(theta, price, P, self.doublings)
        return greedy(theta @ P @ theta.T + price, chain.n), P, theta


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
        noise: least standard deviation of what disturbs outputs and rates in a step, in units of the outputs' scales.
        sensor_noise: the same of what is measured of the outputs.
        limit: of the inputs, ± in units of their scale.
        doublings: 2 to this power steps of policy evaluation are made a step.

    Raises:
        ValueError: a plant of more than four states an output.

    >>> plant = systems.make("pendulum")
    >>> policy = simulation.Measured(unknown.adaptive_outputs(plant), simulation.outputs(plant))
    >>> run = simulation.rollout(plant, policy, jnp.array([0.1, 0.0]), num_steps=300)
    >>> bool(abs(run.xs[-1]).max() < 1e-3)
    True
    """
    check_plant(plants)
    lead = plants.batch_shape
    noise, sensor_noise = (_level(name, a, 0.0, lead) for name, a in (("noise", noise), ("sensor_noise", sensor_noise)))
    limit, doublings = _level("limit", limit, np.finfo(float).tiny, lead), checks.whole("doublings", doublings, 0)
    n = plants.n if order is None else checks.whole("order", order)
    C = jnp.asarray(plants.output_matrix(), float)
    if order is not None and order > _MOST * C.shape[-2]:
        most = _MOST * C.shape[-2]
        raise ValueError(f"order: expected at most {most}, four states for each output, but found {order}")
    C = jnp.broadcast_to(C, (*lead, *C.shape[-2:]))
    scale_x, scale_u = (jnp.broadcast_to(jnp.asarray(s, float), (*lead, s.shape[-1])) for s in plants.scales)
    size = jnp.linalg.norm(C * scale_x[..., None, :], axis=-1)
    scale_y = jnp.where(size > 0, size, 1.0)
    told = Told.units(Coordinates.of(plants), plants.dt, noise=noise, sensor_noise=sensor_noise, limit=limit)
    return of_outputs(told, scale_y, scale_u, n, plants.m, doublings=doublings)


def _level(name: str, value: ArrayLike, low: float, lead: tuple[int, ...]) -> np.ndarray:
    level = np.asarray(checks.real(name, value), float)
    if not (level >= low).all() or (low == 0 and np.isinf(level).any()):
        wanted = "finite numbers ≥ 0" if low == 0 else "numbers > 0"
        raise ValueError(f"{name}: expected {wanted}, in units of the scales, but found {value!r}")
    if level.ndim > len(lead) or any(a not in (1, b) for a, b in zip(level.shape[::-1], lead[::-1])):
        raise ValueError(f"{name}: expected one number, or one for each plant {lead}, but found shape {level.shape}")
    return level


def of_outputs(
    told: Told, scale_y: Array, scale_u: Array, n: int, m: int, *, doublings: int = 2
) -> AdaptiveOutputPolicy:
    """The regulator of plants of n states and m inputs, with units of outputs and inputs as the policy has them."""
    p = scale_y.shape[-1]
    lags = max(-(-n // p), 1)
    if lags > _MOST:
        raise ValueError(
            f"plants: expected at most four states an output, but found {n} states and {p} outputs; measure more"
        )
    return AdaptiveOutputPolicy(told, scale_y, scale_u, Chain(p, lags, m), doublings)

"""Experiments: exciting inputs, the information in their log, and optimal inputs."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.signal
from jaxtyping import Array, ArrayLike, Float

from lqrlab import simulation
from lqrlab.compute import checks, jit_by_function, one_program, pytree
from lqrlab.extensions.identification.fitted_plant import in_words
from lqrlab.extensions.identification.physical import free_parameters
from lqrlab.extensions.identification.shooting import ScaledParameters, held
from lqrlab.systems import Plant, check_plant

KINDS = ("prbs", "multisine", "chirp", "steps")


def excitation(
    kind: str,
    num_steps: int,
    dt: float,
    *,
    amplitude: ArrayLike = 1.0,
    band: tuple[float, float] | None = None,
    hold: int = 1,
    seed: int = 0,
) -> Float[np.ndarray, "T m"]:
    """A persistently exciting input, to be added to the operating point or to a regulator's input.

    Args:
        kind: ``"prbs"`` (a binary sequence of maximal length), ``"multisine"`` (equal amplitudes, Schroeder's phases;
            several inputs take turns in the frequencies), ``"chirp"`` or ``"steps"`` (of random height).
        num_steps: T.
        dt: sample time [s].
        amplitude: largest absolute value, of each input.
        band: frequencies [Hz] of multisine and chirp; from 1/T to a fifth of the sampling rate if left out.
        hold: samples for which ``"prbs"`` and ``"steps"`` hold a value at least.
        seed: of random heights, and of where a sequence begins.

    Source: L. Ljung, System Identification, 2nd ed. (1999), section 13.3.

    >>> u = identification.excitation("prbs", 100, 0.1, amplitude=2.0)
    >>> u.shape, sorted(set(u[:, 0].tolist()))
    ((100, 1), [-2.0, 2.0])
    """
    checks.choice("kind", kind, KINDS)
    T, step = (checks.whole("num_steps", num_steps, 2), checks.number("dt", dt, "a sample time above 0 s", above=0))
    high = np.atleast_1d(np.asarray(checks.real("amplitude", amplitude, finite=True), float))
    if np.any(high <= 0):
        raise ValueError(f"amplitude: expected numbers above 0, but found {amplitude!r}")
    checks.whole("hold", hold)
    low_f, high_f = (1 / (T * step), 0.2 / step) if band is None else (checks.number("band", f) for f in band)
    if not 0 < low_f < high_f <= 0.5 / step:
        raise ValueError(f"band: expected 0 < low < high ≤ {0.5 / step:g} Hz, but found {band!r}")
    random, t = np.random.default_rng(seed), step * np.arange(T)
    columns = []
    for i in range(len(high)):
        if kind == "prbs":
            count = -(-T // hold)
            bits = max(int(np.ceil(np.log2(count + 1))), 4)
            sequence = np.roll(scipy.signal.max_len_seq(bits)[0], int(random.integers(2**bits)))
            s = np.repeat(2.0 * sequence[:count] - 1, hold)[:T]
        elif kind == "steps":
            s = np.repeat(random.uniform(-1, 1, -(-T // hold)), hold)[:T]
        elif kind == "chirp":
            s = scipy.signal.chirp(t, low_f, t[-1], high_f, "logarithmic", phi=90.0 * i)
        else:
            lines = np.arange(max(round(low_f * T * step), 1), round(high_f * T * step) + 1)[i :: len(high)]
            phases = -np.pi * np.arange(len(lines)) * np.arange(1, len(lines) + 1) / max(len(lines), 1)
            s = np.sum(np.cos(2 * np.pi * np.outer(t, lines) / (T * step) + phases), 1)
        columns.append(s / np.abs(s).max() * high[i])
    return np.stack(columns, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """Inputs and the information in a log of them; prints as sentences.

    Attributes:
        us: to be added to the input at the operating point, or to a regulator's ``[T, m]``.
        names, std: parameters and the standard errors that they will have, relative to their values (or ranges).
        information: Fisher's, of the scaled parameters.
        logdet: its logarithmic determinant: what D-optimal designs maximise.
    """

    us: Float[np.ndarray, "T m"]
    names: tuple[str, ...]
    information: Float[np.ndarray, "k k"]
    positive: np.ndarray

    @property
    def std(self) -> Float[np.ndarray, " k"]:
        """Relative standard errors; large where the data carry no information."""
        values, vectors = np.linalg.eigh(self.information)
        return np.sqrt(np.sum(vectors**2 / np.maximum(values, 1e-12 * values.max()), 1))

    @property
    def logdet(self) -> float:
        """Logarithmic determinant of the information."""
        return float(np.linalg.slogdet(self.information)[1])

    def __str__(self) -> str:
        values, vectors = np.linalg.eigh(self.information)
        said = [f"{n}: ± {100 * s:.2g} %" for n, s in zip(self.names, self.std)]
        weak = vectors[:, values < 4.0]
        return "\n".join([", ".join(said), *(in_words(self.names, v, self.positive) for v in weak.T)])


def experiment(
    plant: Plant,
    us: ArrayLike,
    noise: ArrayLike,
    *,
    parameters: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    gain: ArrayLike | None = None,
) -> Experiment:
    """Fisher information on a plant's parameters in a log of these inputs, by exact differentiation.

    Args:
        plant: with the values that are guessed.
        us: inputs as deviations from the equilibrium ``[T, m]``; what is added to the regulator's if there is a gain.
        noise: standard deviation of each output.
        parameters: those that are free; all that vary if left out.
        outputs: states or outputs that are measured; the plant's if left out.
        gain: of a regulator u = −Kx of an unstable plant. It counts as part of the plant, which understates the log.
    """
    probe = _Probe.of(plant, noise, parameters, outputs, gain)
    us = jnp.asarray(checks.real("us", us, finite=True), float)
    if us.ndim != 2 or us.shape[1] != plant.m:
        raise ValueError(f"us: expected shape [T, {plant.m}], but found {us.shape}")
    return probe.experiment(us)


def design(
    plant: Plant,
    num_steps: int,
    noise: ArrayLike,
    *,
    amplitude: ArrayLike,
    num_lines: int = 12,
    state_limits: ArrayLike | None = None,
    parameters: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    gain: ArrayLike | None = None,
    iterations: int = 40,
) -> Experiment:
    """The D-optimal multisine of so many lines, within limits.

    Args:
        plant, noise, parameters, outputs, gain: as in :func:`experiment`.
        num_steps: of the record.
        amplitude: largest absolute value of each input.
        num_lines: frequencies, spread logarithmically from one period in the record to a fifth of the sampling rate.
        state_limits: largest deviation of each state; five scales if left out.
        iterations: of L-BFGS.

    Source: R. Mehra, Optimal input signals for parameter estimation, IEEE Trans. Autom. Control 19(6), 1974.
    """
    probe = _Probe.of(plant, noise, parameters, outputs, gain)
    T, m = checks.whole("num_steps", num_steps, 4), plant.m
    high = jnp.broadcast_to(jnp.asarray(checks.real("amplitude", amplitude, finite=True), float), (m,))
    given = 5 * plant.scales[0] if state_limits is None else checks.real("state_limits", state_limits, low=0)
    limits = jnp.broadcast_to(jnp.asarray(given, float), (plant.n,))
    lines = np.unique(np.round(np.geomspace(1, max(0.2 * T, 2), checks.whole("num_lines", num_lines))))
    turns = 2 * np.pi * np.outer(np.arange(T), lines) / T
    waves = jnp.asarray(np.concatenate([np.cos(turns), np.sin(turns)], 1))

    def flat(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = _sloped(jnp.asarray(v), probe, waves, high, limits)
        return (float(value) if np.isfinite(value) else 1e9), np.nan_to_num(np.asarray(g))

    begin = np.random.default_rng(0).normal(size=2 * len(lines) * m)
    found = scipy.optimize.minimize(flat, begin, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return probe.experiment(_scaled(jnp.asarray(found.x), waves, high))


def _scaled(v: Array, waves: Array, high: Array) -> Array:
    """Inputs of waves with coefficients v, as large as they may be."""
    s = waves @ v.reshape(-1, len(high))
    return s / jnp.maximum(jnp.max(jnp.abs(s), axis=0, keepdims=True), 1e-12) * high[None]


def _loss(v: Array, probe: "_Probe", waves: Array, high: Array, limits: Array) -> Array:
    """Minus the logarithm of the information's determinant, and what states beyond their limits add."""
    H, xs = probe.information(_scaled(v, waves, high))
    scale = jax.lax.stop_gradient(jnp.trace(H)) * 1e-12
    over = jnp.maximum(jnp.abs(xs) / limits[None] - 1, 0)
    values = H + scale * jnp.eye(len(H))
    return -jnp.linalg.slogdet(values)[1] + 1e3 * jnp.mean(over**2)


_sloped = jit_by_function(jax.value_and_grad(_loss))


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class _Probe:
    """A plant about its equilibrium, perhaps under a regulator, with noisy outputs and parameters to be found."""

    plant: Plant
    coordinates: ScaledParameters
    which: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    sigma: Array
    K: Array
    point: tuple[Array, Array]
    substeps: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(
        cls,
        plant: Plant,
        noise: ArrayLike,
        parameters: Sequence[str] | None,
        outputs: Sequence[str] | None,
        gain: ArrayLike | None,
    ) -> Self:
        """The arguments of :func:`experiment`, checked."""
        check_plant(plant)
        known = [s.name for s in (*plant.states, *plant.outputs)]
        names = [s.name for s in plant.outputs] if outputs is None else list(outputs)
        which = tuple(known.index(checks.choice("outputs", name, known)) for name in names)
        sigma = jnp.broadcast_to(jnp.asarray(checks.real("noise", noise, finite=True), float), (len(which),))
        if not bool(jnp.all(sigma > 0)):
            raise ValueError(f"noise: expected standard deviations above 0, but found {noise!r}")
        K = jnp.asarray(np.zeros((plant.m, plant.n)) if gain is None else checks.real("gain", gain, finite=True), float)
        substeps = simulation.Problem.of(plant, optimum=False).substeps
        coordinates = ScaledParameters.of(plant, free_parameters(plant, parameters))
        return cls(plant, coordinates, which, sigma, K, plant.equilibrium(), substeps)

    def experiment(self, us: Float[Array, "T m"]) -> Experiment:
        """Inputs with the information in a log of them."""
        information, _ = self.information(us)
        c = self.coordinates
        return Experiment(np.asarray(us), c.names, np.asarray(information), np.asarray(c.span) == 0)

    @one_program
    def information(self, us: Float[Array, "T m"]) -> tuple[Float[Array, "k k"], Float[Array, "T n"]]:
        """Fisher's information of the scaled parameters, the initial state unknown too; and the states' deviations."""
        x_eq, u_eq = self.point

        def outputs(z: Array, x0: Array) -> tuple[Array, Array]:
            plant = self.coordinates.plant(self.plant, z)
            move = held(plant, self.plant.dt, self.substeps)

            def step(x: Array, extra: Array) -> tuple[Array, tuple[Array, Array]]:
                u = u_eq + extra - self.K @ (x - x_eq)
                return move(x, u), (jnp.concatenate([x, plant.output(x)])[jnp.array(self.which)], x)

            ys, xs = jax.lax.scan(step, x0, us)[1]
            return ys / self.sigma[None], xs - x_eq[None]

        z = jnp.zeros(len(self.coordinates.names))
        (Jz, Jx), xs = jax.jacfwd(outputs, argnums=(0, 1), has_aux=True)(z, x_eq)
        Jz, Jx = Jz.reshape(-1, Jz.shape[-1]), Jx.reshape(-1, Jx.shape[-1])
        inner = Jx.T @ Jx
        inner = inner + 1e-10 * jnp.trace(inner) * jnp.eye(len(inner))
        cross = Jx.T @ Jz
        return Jz.T @ Jz - cross.T @ jnp.linalg.solve(inner, cross), xs

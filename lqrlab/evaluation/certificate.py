"""Certificates of gains: provable properties of their loops."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.simulation import LinearPolicy, Problem, Verdict, bind, verdict
from lqrlab.systems import Plant


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Certificate of a gain: stability, cost above the optimum, distance from instability.

    All of it holds for the linearised, sampled plants, from every initial state.

    Attributes:
        stable: of each plant.
        excess: cost above the optimum as a share of it, over all directions of the initial state; infinite if unstable.
        radius: spectral radius of A − BK.
        distance: the smallest change of A − BK, by its largest singular value and with states in units of their scales,
            with which the loop is not stable: min over ω of σ_min(e^{jω}I − A + BK). 0 where it is not stable already.
    """

    stable: Bool[np.ndarray, "*batch"]
    excess: Float[np.ndarray, "*batch"]
    radius: Float[np.ndarray, "*batch"]
    distance: Float[np.ndarray, "*batch"]

    def words(self) -> str:
        """The certificate in sentences, with its assumptions."""
        many = self.stable.size > 1
        good = int(self.stable.sum())
        says = f"on {good} of {self.stable.size} plants" if many else "" if good else "not "
        parts = [f"Stable {says}:" if many else f"{says}stable:".capitalize()]
        largest = "the largest spectral radius" if many else "the spectral radius"
        parts.append(f"{largest} of A - BK is {np.max(self.radius):.6g}.")
        if good:
            excess, distance = 100 * self.excess[self.stable], self.distance[self.stable].min()
            where = "Where stable, it" if good < self.stable.size else "It"
            cost = f"between {excess.min():.3g} and {excess.max():.3g}" if many else f"{excess.max():.3g}"
            parts += [
                f"{where} costs {cost} % above the optimum, over all directions of the initial state alike.",
                f"A change of A - BK smaller than {distance:.3g} (largest singular value, states in units of their "
                f"scales) leaves {'each of these loops' if many else 'the loop'} stable.",
            ]
        return " ".join([*parts, "Exact for the linearised, sampled plant" + "s" * many + "."])

    __str__ = words


def certify(controller: object, plants: Plant | Sequence[Plant] | Problem) -> Certificate:
    """Certify a gain: stability, cost above the optimum, distance from instability.

    Args:
        controller: what :func:`lqrlab.simulation.bind` makes a constant gain of; :func:`judge` runs loops of others.
        plants: a plant or a batch; several batches, one after another; or a problem of them.

    Raises:
        ValueError: it is no constant gain; a plant has no stabilizing optimum to compare with.

    >>> plant = systems.make("pendulum")
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> certificate = evaluation.certify(simulation.LinearPolicy(0.8 * optimum.K), plant)
    >>> bool(certificate.stable), bool(certificate.distance < 1 - certificate.radius)
    (True, True)
    >>> round(float(certificate.excess), 3)
    0.035
    """
    from lqrlab.control.analysis import system_norms  # only certificates need it

    checks.on_host("certify", controller, plants)
    problem = (plants if isinstance(plants, Problem) else Problem.of(plants, linear=True)).solved()
    policy = bind(controller, dataclasses.replace(problem, linear=True))
    if not isinstance(policy, LinearPolicy):
        raise ValueError(
            f"controller: expected a constant gain, of which all can be proved, but found {type(policy).__name__}; "
            "evaluation.judge compares loops of any controller with the optimum"
        )
    scaled, K = problem.scaled(), jnp.asarray(policy.K)
    if K.ndim > problem.K.ndim:
        raise ValueError(f"controller: expected gains {problem.K.shape}, one for each plant, but found {K.shape}")
    gain = problem.units.scale("K", jnp.broadcast_to(K, problem.K.shape).astype(problem.K.dtype))
    closed, live = np.asarray(scaled.closed_loop(gain)), np.asarray(problem.coordinates.state_mask) > 0
    radius, distance = (np.zeros(closed.shape[:-2]) for _ in range(2))
    for index in np.ndindex(radius.shape):
        F = closed[index][np.ix_(live[index], live[index])]
        radius[index] = np.abs(np.linalg.eigvals(F)).max() if np.isfinite(F).all() else np.inf
        if system_norms.stable(F, 1.0):
            distance[index] = 1 / control.hinf_norm(F, np.eye(len(F)), np.eye(len(F)), dt=1.0)[0]
    stable = np.asarray(verdict.of_gain(jnp.asarray(closed))) == Verdict.CONVERGED
    return Certificate(stable, excess(gain, scaled), radius, np.where(stable, distance, 0.0))


def excess(gain: Float[Array, "*batch 6 12"], problem: Problem) -> Float[np.ndarray, "*batch"]:
    """Excess cost of scaled gains relative to the optimum, over all directions of x0 alike; inf if unstable."""
    paid, least = (jnp.trace(M, axis1=-1, axis2=-2) for M in (extra_cost(gain, problem), problem.P))
    return np.asarray(paid / least)


def extra_cost(gain: Float[Array, "*batch 6 12"], problem: Problem) -> Float[Array, "*batch 12 12"]:
    """X of the loop's cost x0ᵀX x0 above the optimum; infinite if it does not converge.

    It solves X = FᵀXF + (K − K*)ᵀS(K − K*), F the closed loop: nothing cancels.
    """
    error, closed = gain - problem.K, problem.closed_loop(gain)
    X = control.dlyap(closed.mT, error.mT @ problem.S @ error)
    stable = verdict.of_gain(closed) == Verdict.CONVERGED
    return jnp.where(stable[..., None, None] & jnp.isfinite(X), X, jnp.inf)

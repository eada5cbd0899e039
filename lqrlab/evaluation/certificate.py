"""Certificates of a policy on given plants: exact for a gain, else by the statistics of simulated loops."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lqrlab import control, simulation
from lqrlab.compute import checks
from lqrlab.simulation import LinearPolicy, Policy, Problem, Verdict, bind, verdict
from lqrlab.systems import Plant

CONFIDENCE = 0.95  # of the bound on the share of loops that do not converge


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Certificate of a policy: does it stabilise the plants, its cost above the optimum, its distance from instability.

    Of a constant gain (``exact``) all of it holds for the linearised, sampled plants, from every initial state. Of any
    other policy it is read off simulated loops: it holds for starts like theirs, and says nothing of others.

    Attributes:
        exact: whether the policy is a constant gain.
        stable: of each plant; of a policy that is no gain, whether all of its loops converged.
        excess: cost above the optimum as a share of it, over all directions of the initial state alike (of a gain),
            or over the simulated loops; infinite where not stable.
        radius: spectral radius of A − BK; NaN if not exact.
        distance: the smallest change of A − BK, by its largest singular value and with states in units of their
            scales, with which the loop is not stable: min over ω of σ_min(e^{jω}I − A + BK). 0 where it is not
            stable already, NaN if not exact.
        loops, failed: loops simulated, and of these those that did not converge; 0 if exact.
        num_steps: samples of a simulated loop; 0 if exact.
    """

    exact: bool
    stable: Bool[np.ndarray, "*batch"]
    excess: Float[np.ndarray, "*batch"]
    radius: Float[np.ndarray, "*batch"]
    distance: Float[np.ndarray, "*batch"]
    loops: int = 0
    failed: int = 0
    num_steps: int = 0

    @property
    def bound(self) -> float:
        """An upper bound on the share of loops like those simulated that do not converge; 0 or 1 if exact.

        Source: C. J. Clopper and E. S. Pearson, Biometrika 26 (1934), one-sided.
        """
        if self.exact:
            return float(not self.stable.all())
        if self.failed == self.loops:
            return 1.0
        return float(scipy.special.betaincinv(self.failed + 1, self.loops - self.failed, CONFIDENCE))

    def words(self) -> str:
        """The certificate in sentences, with its assumptions."""
        return self._of_gain() if self.exact else self._of_loops()

    __str__ = words

    def _of_gain(self) -> str:
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

    def _of_loops(self) -> str:
        count = "none" if not self.failed else f"{self.failed}"
        parts = [
            f"Not proved: {count} of {self.loops} simulated loops failed to converge within {self.num_steps} samples.",
            f"Of loops like these at most {100 * self.bound:.2g} % fail, with {100 * CONFIDENCE:.0f} % confidence.",
        ]
        if self.stable.any():
            cost = 100 * np.median(self.excess)
            parts.append(
                f"The median cost is {cost:.3g} % above the optimum."
                if np.isfinite(cost)
                else "The median cost is infinite."
            )
        return " ".join(
            [
                *parts,
                "Assumed: the linearised plants, initial states drawn at random about one scale from the equilibrium, "
                "no noise; of other starts, longer times and the nonlinear plants it says nothing.",
            ]
        )


def certify(
    controller: object, plants: Plant | Sequence[Plant] | Problem, *, loops: int = 300, key: PRNGKeyArray | None = None
) -> Certificate:
    """Certify a policy: does it stabilise the plants, at what cost above the optimum, how far from instability?

    Args:
        controller: see :func:`lqrlab.simulation.bind`.
        plants: a plant or a batch; several batches, one after another; or a problem of them.
        loops: simulated, at least, of a policy that is no constant gain.
        key: of their initial states.

    Raises:
        ValueError: a plant has no stabilizing optimum to compare with.

    >>> plant = systems.make("pendulum")
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> certificate = evaluation.certify(simulation.LinearPolicy(0.8 * optimum.K), plant)
    >>> bool(certificate.stable), bool(certificate.distance < 1 - certificate.radius)
    (True, True)
    >>> round(float(certificate.excess), 3)
    0.035
    """
    checks.on_host("certify", controller, plants, key)
    checks.whole("loops", loops)
    key = jax.random.key(0) if key is None else key
    checks.random_key(key)
    problem = (plants if isinstance(plants, Problem) else Problem.of(plants, linear=True)).solved()
    problem = dataclasses.replace(problem, linear=True)
    policy = bind(controller, problem)
    if isinstance(policy, LinearPolicy):
        return _of_gain(policy.K, problem)
    return _of_loops(policy, problem, loops, key)


def _of_gain(K: Array, problem: Problem) -> Certificate:
    from lqrlab.control.analysis import system_norms  # only certificates of gains need it

    scaled, K = problem.scaled(), jnp.asarray(K)
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
    return Certificate(True, stable, excess(gain, scaled), radius, np.where(stable, distance, 0.0))


def excess(gain: Float[Array, "*batch 6 12"], problem: Problem) -> Float[np.ndarray, "*batch"]:
    """Excess cost of scaled gains relative to the optimum, over all directions of x0 alike; inf if unstable."""
    paid, least = (jnp.trace(M, axis1=-1, axis2=-2) for M in (extra_cost(gain, problem), problem.P))
    return np.asarray(paid / least)


def extra_cost(gain: Float[Array, "*batch 6 12"], problem: Problem) -> Float[Array, "*batch 12 12"]:
    """X with which the loop from x0 costs x0ᵀX x0 above the optimum; infinite where it does not converge.

    It solves X = FᵀXF + (K − K*)ᵀS(K − K*), F the closed loop: nothing cancels.
    """
    error, closed = gain - problem.K, problem.closed_loop(gain)
    X = control.dlyap(closed.mT, error.mT @ problem.S @ error)
    stable = verdict.of_gain(closed) == Verdict.CONVERGED
    return jnp.where(stable[..., None, None] & jnp.isfinite(X), X, jnp.inf)


def _of_loops(policy: Policy, problem: Problem, loops: int, key: PRNGKeyArray) -> Certificate:
    num_steps = control.settling_steps(np.linalg.eigvals(np.asarray(problem.closed_loop())))
    number = -(-loops // max(1, int(np.prod(problem.batch_shape))))
    x0 = problem.initial_state(key=key, num=number)
    run = simulation.rollout(problem, policy, x0, num_steps, keep=("xs", "us"))
    judged = np.asarray(verdict.of_sizes(verdict.size(run.xs, problem.scale_x), linear=True))
    good = judged == Verdict.CONVERGED
    paid = np.where(good, np.asarray(problem.excess(run.xs, run.us)), np.inf)
    nothing = np.full(problem.batch_shape, np.nan)
    return Certificate(False, good.all(-1), paid.mean(-1), nothing, nothing, good.size, int((~good).sum()), num_steps)

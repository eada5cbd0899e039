"""A compensator shaped by hand: gain, zeros and poles, sampled by Tustin's rule."""

import dataclasses
import itertools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Complex, Float

from lqrlab.compute import checks
from lqrlab.control import StateSpace
from lqrlab.simulation import LinearController, Measured, Problem, bind
from lqrlab.simulation.memory_policies import check_sizes

_INSIDE = 1 - 1e-6  # a zero this near the unit circle would keep what it was told of the limits for ever
_AT_INFINITY = 1e-9  # a pole that is sent beyond z = 2e9 is sent to infinity but for rounding


@dataclasses.dataclass(frozen=True)
class Compensator:
    """u = −K(s) y with K = gain ∏(s − zeros) / ∏(s − poles), of one measured output y = Cx and one input.

    Attributes:
        C: the measured output ``[1, n]``.
        gain: factor before the roots, in input over output and rad/s to the power of the pole excess.
        zeros, poles: roots [rad/s], complex ones in pairs; a pole at 0 is an integrator.
        input, m: the input that it drives, and the number of the plant's inputs.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 8.2.
    """

    C: ArrayLike | Sequence[Sequence[float]]
    gain: float = 1.0
    zeros: ArrayLike | Sequence[complex] = ()
    poles: ArrayLike | Sequence[complex] = ()
    input: int = 0
    m: int = 1

    def __post_init__(self) -> None:
        C = np.atleast_2d(np.array(checks.real("C", self.C, finite=True), float))
        object.__setattr__(self, "C", C)
        checks.number("gain", self.gain, "a finite number")
        for name in ("zeros", "poles"):
            roots = np.atleast_1d(np.array(checks.real(name, getattr(self, name), or_complex=True), complex))
            roots = np.where(np.abs(roots.imag) <= 1e-9 * np.abs(roots), roots.real, roots)
            pairs = roots.ndim == 1 and np.isfinite(roots).all()
            if not pairs or not np.allclose(np.sort_complex(roots), np.sort_complex(roots.conj()), rtol=1e-9, atol=0):
                raise ValueError(
                    f"{name}: expected finite roots [rad/s], complex ones with their conjugates, but found {roots}: "
                    "else the input would not be real"
                )
            object.__setattr__(self, name, roots)
        if np.size(self.zeros) > np.size(self.poles):
            raise ValueError(
                f"zeros: expected at most as many as poles, {np.size(self.poles)}, but found {np.size(self.zeros)}: "
                "the gain would grow with frequency without end; add a fast pole"
            )
        checks.whole("m", self.m)
        if len(C) != 1 or not 0 <= checks.whole("input", self.input, 0) < self.m:
            raise ValueError(
                f"input: expected one output and an input from 0 to {self.m - 1}, but found C of shape "
                f"{C.shape} and input {self.input}"
            )

    def sampled(self, dt: float) -> tuple[StateSpace, Float[np.ndarray, "k m"]]:
        """K and E of z[t+1] = Az + By + E(v − u), u = Cz + Dy, for v that the actuator could do of u.

        E is that of Hanus, with which K starts again from v (M. Kinnaert, R. Hanus, J.-L. Henrotte, Automatica 23,
        1987); zero where K's zeros do not decay, for then it would not forget.

        Raises:
            ValueError: a pole that the rule sends to z = ∞.
        """
        dt = checks.number("dt", dt, "a sample time above 0 s", above=0)
        half = dt / 2  # s = (z − 1)/(z + 1)/half
        zeros, poles = np.asarray(self.zeros), np.asarray(self.poles)
        if (np.abs(1 - half * poles) < _AT_INFINITY).any():
            raise ValueError(
                f"poles: expected none at {1 / half:.6g} rad/s, which Tustin's rule maps to z = ∞, so that u would "
                "not be causal; choose another sample time"
            )
        A, B, C, D = np.zeros((0, 0)), np.zeros((0, 1)), np.zeros((1, 0)), np.full((1, 1), float(self.gain))
        # sections in series: one companion matrix of all poles near z = 1 would lose them to rounding
        for of_zeros, of_poles in itertools.zip_longest(_in_twos(zeros), _in_twos(poles)):
            num, den = np.atleast_1d(np.poly(of_zeros or [])), np.poly(of_poles)
            num = np.pad(num, (len(den) - len(num), 0))[None]
            # ẋ = ax + bu is transformed, not its roots: a zero at 2/dt goes to z = ∞
            a, c, d = scipy.linalg.companion(den), num[:, 1:] - num[:, :1] * den[None, 1:], num[:, :1]
            system = a, np.eye(len(a), 1), c, d
            a, b, c, d, _ = scipy.signal.cont2discrete(system, dt, "bilinear")
            A = np.block([[A, np.zeros((len(A), len(a)))], [b @ C, a]])
            B, C, D = np.vstack([B, b @ D]), np.hstack([d @ C, c]), d @ D
        C, D = -C, -D
        inside = np.abs(1 + half * zeros) < _INSIDE * np.abs(1 - half * zeros)  # of the unit circle
        forgets = D[0, 0] and len(zeros) == len(poles) and inside.all()
        E = B / D if forgets else np.zeros_like(B)
        one = np.eye(self.m)[:, [self.input]]
        return StateSpace(A, B, one @ C, one @ D, dt), E @ one.T


def _in_twos(roots: Complex[np.ndarray, " k"]) -> list[list[complex]]:
    """Conjugates together, then real roots two by two: only the last part may be of one."""
    real = [r for r in roots if not r.imag]
    return [[r, r.conjugate()] for r in roots if r.imag > 0] + [real[i : i + 2] for i in range(0, len(real), 2)]


@bind.register
def compensated(design: Compensator, problem: Problem) -> Measured:
    """The policy of a compensator on a problem, sampled at its step; a missing measurement counts as zero."""
    check_sizes(problem, np.shape(design.C)[-1], design.m)
    if np.ndim(problem.dt):
        raise ValueError("controller: expected one sample time for a compensator, but found a batch of them")
    K, E = design.sampled(float(problem.dt))
    more = {"E": jnp.asarray(E, problem.A.dtype)} if K.order else {}
    return Measured(LinearController.of(K, problem, **more), jnp.asarray(design.C, problem.A.dtype))

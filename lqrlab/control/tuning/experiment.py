"""The experiment that a loop is tuned in: its outputs step from rest to a set-point."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from lqrlab.control import checks
from lqrlab.control.analysis.eigenmodes import settling_time
from lqrlab.control.analysis.stability_margins import margins
from lqrlab.control.analysis.step import step_info, step_response
from lqrlab.control.discretization import c2d
from lqrlab.control.regulator import LQR, lqrd
from lqrlab.control.servo import feedforward
from lqrlab.control.tuning.specifications import StepSpecs

_SIZES = (50, 100, 200, 400, 800)  # steps that are simulated: each is a program of its own


class StepExperiment(NamedTuple):
    """One continuous plant, sampled, whose outputs step to r.

    ``A, B, C, Q, R`` as in :func:`lqrd`, ``plant`` sampled, ``dt`` [s], set-point ``r [m]``, the input that holds
    it ``[m]``, and how many steps are simulated.
    """

    A: Array
    B: Array
    C: Array
    Q: Array
    R: Array
    dt: float
    plant: tuple[Array, Array]
    r: np.ndarray
    holding_input: np.ndarray
    num_steps: int

    @classmethod
    def of(
        cls, A: ArrayLike, B: ArrayLike, C: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: float, specs: StepSpecs,
        r: ArrayLike,
    ) -> "StepExperiment":  # fmt: skip
        """The experiment of checked arguments.

        Raises:
            ValueError: bad arguments, no output that steps, or outputs that no constant input holds.
        """
        a, b, q, weight, _ = checks.one_problem("tune", A, B, Q, R)
        c = jnp.asarray(C, a.dtype)
        target = np.broadcast_to(np.asarray(r, float), (b.shape[1],))
        if not target.any() or not np.isfinite(target).all():
            raise ValueError(
                f"r: expected at least one output to step, but found the set-point {target.tolist()}"
            )
        plant = c2d(a, b, dt)
        Nx, Nu = (np.asarray(x) for x in feedforward(*plant, c, discrete=True))
        if not np.isfinite(Nu).all() or np.abs(Nx).max() > 1e12 * max(np.abs(np.asarray(c)).max(), 1.0):
            raise ValueError(
                "C: no constant input holds these outputs (a transmission zero at the origin); choose outputs that "
                "can stand still"
            )
        poles = lqrd(a, b, q, weight, dt).poles
        last = float(settling_time(poles, dt)) if specs.settling is None else 4 * specs.settling
        num_steps = next((size for size in _SIZES if size >= last / dt), _SIZES[-1])
        return cls(a, b, c, q, weight, dt, plant, target, Nu @ target, num_steps)

    def reached(self, design: LQR, specs: StepSpecs) -> dict[str, float]:
        """The specifications of a loop by the public analysis functions; the effort relative to its limit."""
        ys, us = step_response(*self.plant, self.C, design.K, jnp.asarray(self.r), self.num_steps)
        info = step_info(ys, self.dt, self.r, within=specs.within)
        reached = {
            "settling": float(np.nanmax(info.settling)),
            "overshoot": float(np.nanmax(info.overshoot)),
            "effort": float(np.max(np.abs(us) / specs.limits(len(self.r)))),
        }
        if specs.margin is not None:
            at_inputs = margins(*self.plant, design.K, float(self.dt))
            reached["margin"] = min(m.disk.alpha for m in at_inputs)
        return reached

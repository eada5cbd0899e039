"""Steps of the set-point: responses of sampled linear loops, their figures, and specifications of them."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, pytree
from lqrlab.compute.checks import number, whole
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.eigenmodes import settling_time
from lqrlab.control.analysis.stability_margins import margins
from lqrlab.control.discretization import c2d
from lqrlab.control.regulator import LQR, lqrd
from lqrlab.control.servo import feedforward


def step_response(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, K: ArrayLike, r: ArrayLike, num_steps: int
) -> tuple[Float[Array, "*batch points m"], Float[Array, "*batch steps m"]]:
    """The loop u = Nu r − K(x − Nx r) from rest to the set-point y = Cx = r; batched, differentiable.

    Args:
        A, B, K: sampled plant ``[..., n, n]``, ``[..., n, m]``, as from :func:`c2d`, and gain ``[..., m, n]``.
        C: ``[..., m, n]``: as many outputs as inputs.
        r, num_steps: set-point ``[..., m]``, and T.

    Returns ``(ys [..., T+1, m], us [..., T, m])``; not finite where no constant input holds y (see :func:`zeros`).
    """
    whole("num_steps", num_steps)
    A, B, C, K = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "mn"), K=(K, "mn"))
    r = jnp.asarray(matrix_checks.real("r", r), A.dtype)
    if r.shape[-1:] != C.shape[-2:-1]:
        raise ValueError(f"r: expected a set-point {C.shape[-2:-1]}, one an output, but found {r.shape}")
    return _run(A, B, C, K, r, num_steps)


@partial(jax.jit, static_argnames="num_steps")
def _run(A: Array, B: Array, C: Array, K: Array, r: Array, num_steps: int) -> tuple[Array, Array]:
    def one(A: Array, B: Array, C: Array, K: Array, r: Array) -> tuple[Array, Array]:
        Nx, Nu = feedforward(A, B, C, discrete=True)
        closed = A - B @ K
        last, errors = jax.lax.scan(lambda e, _: (closed @ e, e), -Nx @ r, None, length=num_steps)  # x − Nx r
        ys = r[None] + jnp.concatenate([errors, last[None]]) @ C.T
        return ys, (Nu @ r)[None] - errors @ K.T

    return broadcast(one, (A, 2), (B, 2), (C, 2), (K, 2), (r, 1))


@pytree
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """Step response of outputs in numbers, read off at the samples; one number an output.

    Attributes:
        rise: from 10 % to 90 % [s].
        settling: time after which the output stays within the band [s]; infinite if it is outside at the end.
        overshoot: beyond the set-point, relative to it; ≥ 0.
        undershoot: the wrong way, relative to the set-point; ≥ 0.
        peak: largest absolute value.
    """

    rise: Float[Array, "*outputs"]
    settling: Float[Array, "*outputs"]
    overshoot: Float[Array, "*outputs"]
    undershoot: Float[Array, "*outputs"]
    peak: Float[Array, "*outputs"]


def step_info(ys: ArrayLike, dt: ArrayLike, r: ArrayLike, *, within: float = 0.02) -> StepInfo:
    """Rise and settling time, over- and undershoot of responses to a set-point; batched.

    Args:
        ys: outputs ``[..., T+1, p]``, from :func:`step_response` or measured; at rest in 0 before.
        dt: sample time [s], scalar or with the leading axes.
        r: set-points ``[..., p]``. Zero means an output that is to stay where it is: it has no such figures (NaN).
        within: half-width of the band, relative to the set-point.

    The times are steps of a function, so their derivative is zero; to tune a loop by gradient see :func:`tune`. How
    long a loop takes before any response is known: :func:`settling_time`.

    >>> tuning.step_info([[0.0], [0.5], [1.0], [1.0]], 0.1, [1.0]).settling
    Array([0.2], dtype=float64)
    """
    ys, r = jnp.asarray(matrix_checks.real("ys", ys)), jnp.asarray(matrix_checks.real("r", r))
    ys, r = (a.astype(matrix_checks.floating(ys, r)) for a in (ys, r))
    number("within", within, "a share of the set-point above 0 and below 1", above=0, below=1)
    if ys.ndim < 2 or not ys.size:
        raise ValueError(f"ys: expected outputs [..., T+1, p], but found shape {ys.shape}")

    def one(y: Array, dt: Array, r: Array) -> StepInfo:
        done = y / jnp.where(r != 0, r, jnp.nan)
        outside = ~(jnp.abs(done - 1) <= within)
        last = y.size - jnp.argmax(outside[::-1]).astype(y.dtype)  # one after the last outside
        settled = jnp.where(outside.any(), jnp.where(last < y.size, last, jnp.inf), 0)
        reached = [
            jnp.where((done >= share).any(), jnp.argmax(done >= share).astype(y.dtype), jnp.inf) for share in (0.1, 0.9)
        ]
        return StepInfo(
            (reached[1] - reached[0]) * dt,
            jnp.where(r != 0, settled * dt, jnp.nan),
            jnp.maximum(jnp.max(done) - 1, 0),
            jnp.maximum(-jnp.min(done), 0),
            jnp.max(jnp.abs(y)),
        )

    return broadcast(one, (ys.mT, 1), (matrix_checks.sample_time(dt, ys.dtype, ys)[..., None], 0), (r, 0))


_ENDLESS = 1e6  # a figure of a response that grows
_SIZES = (50, 100, 200, 400, 800)  # steps that are simulated: each is a program of its own
_WORDS = {
    "settling": ("settling time", " s"),
    "overshoot": ("overshoot", ""),
    "effort": ("largest input", " times its limit"),
    "margin": ("disk margin", ""),
}


@dataclasses.dataclass(frozen=True)
class StepSpecs:
    """Specifications of a loop whose set-point steps; None: not specified.

    Attributes:
        settling: time after which each output that steps stays within the band [s].
        overshoot: at most so much beyond the set-point, relative to it.
        effort: at most so much of each input, absolute: one number or ``[m]``.
        margin: at least so large a symmetric disk margin α at each input (see :class:`Disk`).
        within: half-width of the band, relative to the set-point.
    """

    settling: float | None = None
    overshoot: float | None = None
    effort: float | tuple[float, ...] | None = None
    margin: float | None = None
    within: float = 0.02

    def __post_init__(self) -> None:
        for name in ("settling", "effort", "margin", "within"):
            value = getattr(self, name)
            for one in () if value is None else np.ravel(value).tolist():
                number(name, one, "a number above 0", above=0)
        if self.overshoot is not None:
            number("overshoot", self.overshoot, "a share of the set-point, ≥ 0", low=0)
        if not self.names:
            raise ValueError("specs: expected at least one of settling, overshoot, effort, margin")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the given specifications."""
        return tuple(name for name in _WORDS if getattr(self, name) is not None)

    def limits(self, m: int) -> np.ndarray:
        """Limits of the inputs ``[m]``; infinite where none are specified."""
        return np.broadcast_to(np.asarray(np.inf if self.effort is None else self.effort, float), (m,))

    def first_settled(self, dt: float) -> int:
        """The first sample at which the output has to be in the band."""
        return 0 if self.settling is None else int(np.floor(self.settling / dt + 1e-9))

    def bound(self, name: str) -> float:
        """The number specified; efforts are relative to their limits."""
        return 1.0 if name == "effort" else float(getattr(self, name))

    def met(self, name: str, value: float) -> bool:
        """True if a loop that reaches ``value`` meets a specification, up to rounding."""
        bound = self.bound(name)
        return value >= bound * (1 - 1e-9) if name == "margin" else value <= bound * (1 + 1e-9)

    def sentence(self, name: str, value: float, simulated: float) -> str:
        """The value that a loop reaches in so many seconds, and whether it meets the specification, in words."""
        words, unit = _WORDS[name]
        bound, title = self.bound(name), f"{words[0].upper()}{words[1:]}"
        asked = f", specified at {'least' if name == 'margin' else 'most'} {bound:.3g}{unit}" * (name != "effort")
        if not value < _ENDLESS:
            why = f"the response does not settle within the {simulated:.3g} s that are simulated"
            return f"{title}: missed{asked}: {why}. Raise the weight of this output, or lower that of the inputs."
        if self.met(name, value):
            return f"{title}: {value:.3g}{unit}{asked}: met."
        missed = "" if name == "effort" else f" by {abs(value - bound):.2g}{unit}"
        return f"{title}: {value:.3g}{unit}{asked}: missed{missed}."

    def sentence_without(self, name: str, value: float, simulated: float) -> str:
        """The value that the loop reaches which meets all others; ``simulated`` [s] is how long its response is."""
        words, unit = _WORDS[name]
        then = f"it is then {value:.3g}{unit}"
        if not value < _ENDLESS:
            then = f"it then does not settle in the {simulated:.3g} s that are simulated"
        return f"Without the specification of the {words} all others are met; {then}."


class StepExperiment(NamedTuple):
    """One continuous plant, sampled, whose outputs step to r.

    ``A, B, C, Q, R`` as in :func:`lqrd`, ``plant`` sampled, ``dt`` [s], set-point ``r [m]``, the state that rests there
    ``[n]`` and the input that holds it ``[m]``, and how many steps are simulated.
    """

    A: Array
    B: Array
    C: Array
    Q: Array
    R: Array
    dt: float
    plant: tuple[Array, Array]
    r: np.ndarray
    rest: np.ndarray
    holding_input: np.ndarray
    num_steps: int

    @classmethod
    def of(
        cls,
        A: ArrayLike,
        B: ArrayLike,
        C: ArrayLike,
        Q: ArrayLike,
        R: ArrayLike,
        dt: float,
        specs: StepSpecs,
        r: ArrayLike,
    ) -> "StepExperiment":
        """The experiment of checked arguments."""
        a, b, q, weight, _ = matrix_checks.one_problem("tune", A, B, Q, R)
        c = jnp.asarray(C, a.dtype)
        target = np.asarray(matrix_checks.real("r", r), float)
        if target.shape not in ((), (1,), (b.shape[1],)):
            raise ValueError(f"r: expected a number, or one for each of {b.shape[1]} outputs, but found {target.shape}")
        target = np.broadcast_to(target, (b.shape[1],))
        if not target.any() or not np.isfinite(target).all():
            raise ValueError(f"r: expected at least one output to step, but found the set-point {target.tolist()}")
        plant = c2d(a, b, dt)
        Nx, Nu = (np.asarray(x) for x in feedforward(*plant, c, discrete=True))
        if not np.isfinite(Nu).all() or np.abs(Nx).max() > 1e12 * max(np.abs(np.asarray(c)).max(), 1.0):
            raise ValueError(
                "C: no constant input holds these outputs (a transmission zero at the origin); choose other outputs"
            )
        poles = lqrd(a, b, q, weight, dt).poles
        last = float(settling_time(poles, dt)) if specs.settling is None else 4 * specs.settling
        num_steps = next((size for size in _SIZES if size >= last / dt), _SIZES[-1])
        return cls(a, b, c, q, weight, dt, plant, target, Nx @ target, Nu @ target, num_steps)

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

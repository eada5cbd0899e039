"""PID controllers with two degrees of freedom, and their exact sampling: one loop, or a matrix of loops."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import as_jax, broadcast, checks, pytree
from lqrlab.compute.checks import real
from lqrlab.compute.linalg import matvec
from lqrlab.control import StateSpace
from lqrlab.control.discretization import Sampled
from lqrlab.control.matrix_checks import sample_time
from lqrlab.simulation import Measured, Policy, Problem, bind
from lqrlab.simulation.memory_policies import LinearController, check_sizes, limits_of, problem_of
from lqrlab.systems import Plant


@pytree
@dataclasses.dataclass(frozen=True)
class PID:
    """u = kp (b r − y) + ki ∫ (r − y) dt + kd s/(1 + filter_time s) (c r − y), one loop or several.

    Arrays are ``[*batch]`` for one loop, ``[*batch, loops]`` for several; those that drive one input are added.
    Sampled, the integral is exact for a held error, the derivative for an output that is linear between samples.

    Attributes:
        kp, ki, kd: gains [u/y], [u/(y s)], [u s/y], of the parallel form; NaN for a member of a batch without answer.
        filter_time: of the derivative [s].
        b, c: weights of the set-point in the proportional and the derivative part.
        tracking_time: of the anti-windup by back-calculation [s]; infinite for none, 0 for the velocity form,
            u[t] = v[t−1] + Δu with v the limited input.
        C: the measured output of each loop, ``[*batch, loops, n]``; None if it was tuned on a process model.
        dt: sample time [s] for which it was tuned; None for a continuous loop.
        inputs, m: the input that each loop drives, and the number of the plant's inputs.

    Source: K. J. Åström and T. Hägglund, Advanced PID Control (2006), sections 3.3 to 3.6 and 13.2.
    """

    kp: Float[Array, "*loops"]
    ki: Float[Array, "*loops"]
    kd: Float[Array, "*loops"]
    filter_time: Float[Array, "*loops"]
    b: Float[Array, "*loops"]
    c: Float[Array, "*loops"]
    tracking_time: Float[Array, "*loops"]
    C: Float[Array, "*batch k n"] | None = None
    dt: Float[Array, ""] | None = None
    inputs: tuple[int, ...] = dataclasses.field(default=(0,), metadata={"static": True})
    m: int = dataclasses.field(default=1, metadata={"static": True})

    def per_loop(self, values: ArrayLike) -> Array:
        """Values with an axis for the loops."""
        a = jnp.asarray(values, self.kp.dtype)
        return a[..., None] if len(self.inputs) == 1 else jnp.broadcast_to(a, (*a.shape[:-1], len(self.inputs)))

    @property
    def selection(self) -> np.ndarray:
        """``[m, loops]``: one where a loop drives an input."""
        return np.eye(self.m)[:, list(self.inputs)]

    def sampled(self, dt: ArrayLike | None = None, *, leak: bool = False) -> tuple[StateSpace, Array]:
        """K and E of z[t+1] = Az + By + E(v − u), u = Cz + Dy with r = 0; y has the output of each loop.

        The state z is the integral of each loop, in units of the input, then the filtered output of each.

        Args:
            dt: sample time [s]; its own if left out.
            leak: forget the integral of a loop without integral gain, which else keeps what it starts with.
        """
        if dt is None and self.dt is None:
            raise ValueError("dt: expected a sample time [s], for the controller was tuned in continuous time")
        step = jnp.asarray(self.dt if dt is None else sample_time(dt, self.kp.dtype))
        gains = (self.kp, self.ki, self.kd, self.filter_time, self.tracking_time)
        selection = jnp.asarray(self.selection, self.kp.dtype)

        def one(kp: Array, ki: Array, kd: Array, Tf: Array, Tt: Array, dt: Array) -> tuple[Array, ...]:
            return controller_matrices(kp, ki, kd, Tf, Tt, dt, selection, leak=leak)

        A, B, C, D, E = broadcast(one, *((self.per_loop(a), 1) for a in gains), (step, 0))
        return StateSpace(A, B, C, D, step), E

    def loop(self, problem: Sampled, dt: ArrayLike | None = None) -> tuple[Sampled, Array]:
        """The problem of plant and controller together and the gain u = −K (x, z), for cost and margins.

        :func:`lqrlab.control.cost_to_go` takes them; with A, B, K also :func:`lqrlab.control.margins`. The problem
        given is that of :func:`lqrlab.control.discretize`, or of :func:`lqrlab.control.delayed`, with further states.
        """
        if self.C is None:
            raise ValueError("C: expected the measured outputs, but the controller was tuned on a process model")
        A, B, Q, R, N = (jnp.asarray(a) for a in problem)
        a, b, c, d = self.sampled(dt, leak=True)[0].matrices
        C = jnp.pad(self.C, [(0, 0)] * (self.C.ndim - 1) + [(0, A.shape[-1] - self.C.shape[-1])])
        k = a.shape[-1]

        def joint(M: Array, rows: int, columns: int) -> Array:
            return jnp.pad(M, [(0, 0)] * (M.ndim - 2) + [(0, rows), (0, columns)])

        lower = jnp.concatenate([b @ C, a], axis=-1)
        lower = jnp.pad(lower, [(0, 0)] * (lower.ndim - 2) + [(A.shape[-1], 0), (0, 0)])
        whole = Sampled(joint(A, k, k) + lower, joint(B, k, 0), joint(Q, k, k), R, joint(N, k, 0))
        return whole, -jnp.concatenate([d @ C, c], axis=-1)

    def start(self, r: ArrayLike = 0.0, u0: ArrayLike | None = None, y0: ArrayLike = 0.0) -> Array:
        """The state z ``[*batch, 2 loops]`` to begin with.

        Args:
            r: set-point of each loop.
            u0: the first input of each loop, for bumpless transfer: the integral starts so that it is this one.
            y0: the output before the first sample, of each loop; with u0 the first measurement.
        """
        if u0 is not None and not np.all(np.asarray(self.ki)):
            raise ValueError("u0: expected integral gain in each loop, whose integral takes up what is handed over")
        r, y0 = (real(n, a, finite=True) for n, a in (("r", r), ("y0", y0)))
        kp, b, c, r, y0 = jnp.broadcast_arrays(*map(self.per_loop, (self.kp, self.b, self.c, r, y0)))
        if u0 is None:
            return jnp.concatenate([kp * b * r, y0 + c * r], axis=-1)
        first = jnp.broadcast_to(self.per_loop(real("u0", u0, finite=True)), kp.shape)
        return jnp.concatenate([first + kp * y0, y0], axis=-1)

    def response(self, frequencies: ArrayLike, dt: float | None = None) -> Array:
        """kp + ki/s + kd s/(1 + Tf s) of each loop at ω [rad/s]: ``[*batch, f]``, or ``[*batch, f, loops]``.

        With a sample time, that of the sampled controller.
        """
        w = np.asarray(real("frequencies", frequencies), float)
        kp, ki, kd, Tf = (np.asarray(a)[..., None] for a in (self.kp, self.ki, self.kd, self.filter_time))
        w = w.reshape((1,) * (kp.ndim - 1) + w.shape)
        integral, derivative = parts(w, Tf, dt)
        value = kp + ki * integral + kd * derivative
        return as_jax(value if len(self.inputs) == 1 else np.swapaxes(value, -1, -2))


def parts(w: np.ndarray, filter_time: np.ndarray | float, dt: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Responses at ω [rad/s] of the integral and the filtered derivative; of the sampled ones if there is a dt."""
    if dt is None:
        return 1 / (1j * w), 1j * w / (1 + 1j * w * filter_time)
    z, a = np.exp(1j * w * dt), np.exp(-dt / np.maximum(filter_time, 1e-300))
    return dt / (z - 1), (1 - a) / dt * (z - 1) / (z - a)


def controller_matrices(
    kp: Array, ki: Array, kd: Array, Tf: Array, Tt: Array, dt: Array, selection: Array, *, leak: bool = True
) -> tuple[Array, Array, Array, Array, Array]:
    """:meth:`PID.sampled` for one plant: gains and times ``[loops]``, the inputs that these drive ``[m, loops]``."""
    positive = Tf > 0
    a = jnp.where(positive, jnp.exp(-dt / jnp.where(positive, Tf, 1.0)), 0.0)
    steep, integral = kd * (1 - a) / dt, ki != 0
    kept = jnp.where(integral, 1.0, 0.0).astype(kp.dtype) if leak else jnp.ones_like(kp)
    A = jnp.diag(jnp.concatenate([kept, a]))
    B = jnp.concatenate([jnp.diag(-ki * dt), jnp.diag(1 - a)])
    C = jnp.concatenate([selection, selection * steep[None]], axis=1)
    D = -selection * (kp + steep)[None]
    followed = jnp.where(integral, -jnp.expm1(-dt / Tt), 0.0)
    shared = jnp.maximum(selection @ jnp.where(integral, 1.0, 0.0).astype(kp.dtype), 1.0)
    E = selection.T * followed[:, None] / shared[None]
    return A, B, C, D, jnp.concatenate([E, jnp.zeros_like(E)])


def pid_loops(
    plant: Plant | Problem, design: PID, r: ArrayLike = 0.0, *, u0: ArrayLike | None = None, y0: ArrayLike = 0.0
) -> Measured:
    """The policy of PID loops, which hold their outputs at r; a measurement that is not finite is the filter's.

    Args:
        plant: one plant, or the batch of the design; or a problem of them, with the limits of the back-calculation.
        design: of :func:`lqrlab.classical.pid`.
        r: set-point of each loop ``[*batch]``, or ``[*batch, loops]`` of several, as a deviation from the equilibrium.
        u0, y0: first input and output of each loop for bumpless transfer (:meth:`lqrlab.classical.PID.start`).

    >>> plant = systems.make("dc_motor")
    >>> design = classical.pid(plant, "simc", tau_c=0.3)
    >>> run = simulation.rollout(plant, classical.pid_loops(plant, design, r=0.5), jnp.zeros(plant.n), 400)
    >>> bool(abs(run.xs[-1, 0] - 0.5) < 0.05)
    True
    """
    problem = problem_of(plant)
    checks.instance("design", design, PID, "PID loops, as classical.pid makes")
    C = design.C
    if C is None:
        raise ValueError(
            "design: expected one with measured outputs, but it was tuned on a process model; give it those of the "
            "plant with dataclasses.replace(design, C=…), one row for each loop"
        )
    check_sizes(problem, C.shape[-1], design.m)
    if design.dt is not None:
        problem.check_step(design.dt)
    K, E = design.sampled(problem.dt)
    A, B = jnp.asarray(K.A), jnp.asarray(K.B)
    k = len(design.inputs)
    kept = jnp.broadcast_to(design.start(r, u0, y0), (*A.shape[:-2], 2 * k))
    set_point = jnp.broadcast_to(design.per_loop(r), (*A.shape[:-2], k)).astype(A.dtype)
    b = -matvec(B, set_point) * (jnp.arange(2 * k) < k).astype(A.dtype).reshape(*(1,) * (A.ndim - 2), 2 * k)
    H = jnp.broadcast_to(jnp.eye(k, 2 * k, k, dtype=A.dtype), (*A.shape[:-2], k, 2 * k))
    return Measured(LinearController(K, E, b, *limits_of(problem), H, kept), C)


@bind.register
def _policy(design: PID, problem: Problem) -> Policy:
    return pid_loops(problem, design)

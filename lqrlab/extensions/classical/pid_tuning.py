"""Tuning of PID controllers: one function for all rules, for one plant or a batch, one loop or a matrix of loops."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from lqrlab.compute import checks
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.frequency import response_at
from lqrlab.control.delay import delayed, lqrd_delayed
from lqrlab.extensions.classical import tuning_rules
from lqrlab.extensions.classical.channels import Channel
from lqrlab.extensions.classical.optimal_pid import Limits, optimal
from lqrlab.extensions.classical.pid_controller import PID
from lqrlab.extensions.classical.process_models import ProcessModel, process_model
from lqrlab.extensions.classical.sensitivity_limit import max_ki
from lqrlab.extensions.classical.tuning_rules import KINDS, Gains

METHODS = ("simc", "amigo", "ziegler_nichols", "cohen_coon", "max_ki", "optimal")
ARRAYS = ("kp", "ki", "kd", "filter_time", "b", "c", "tracking_time")
_ROUNDING = 1e-12  # as near to one a mode may be an integral that nothing moves
EXPERIMENTS = ("half_rule", "step", "relay")


@dataclasses.dataclass(frozen=True)
class _Loops:
    """One plant, and which of its outputs drives which of its inputs; on the host."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    inputs: tuple[int, ...]
    delay: float
    dt: float | None
    weights: tuple[np.ndarray, np.ndarray]
    W: np.ndarray
    model: ProcessModel | None = None

    @property
    def blocked(self) -> bool:
        """True if no constant inputs hold the outputs at will: [A B; C 0] has less than full row rank."""
        d = matrix_checks.even_units(self.A, self.B, self.C)
        A, B, C = self.A * d / d[:, None], self.B / d[:, None], self.C * d
        size = [np.linalg.norm(a) or 1.0 for a in (A, B, C)]
        joint = np.block([[A / size[0], B / size[1]], [C / size[2], np.zeros((len(C), B.shape[1]))]])
        values = np.linalg.svd(joint, compute_uv=False)
        return len(joint) > joint.shape[1] or bool(values[-1] < 1e-12 * values[0])

    def channel(self, k: int) -> Channel:
        """The plant as the k-th loop sees it, the others open."""
        return Channel(self.A, self.B[:, [self.inputs[k]]], self.C[[k]], self.delay, self.dt)


def pid(
    plant: Any,
    method: str = "simc",
    *,
    kind: str = "pid",
    pairs: Sequence[tuple[int, int]] | None = None,
    dt: float | None = None,
    delay: float = 0.0,
    tau_c: float | None = None,
    experiment: str | None = None,
    ms: float | None = None,
    phase_margin: float = 0.0,
    gain_margin: float = 1.0,
    filter_time: float | None = None,
    b: float | None = None,
    c: float = 0.0,
    tracking_time: float | None = None,
    velocity: bool = False,
    Q: ArrayLike | None = None,
    R: ArrayLike | None = None,
    num_starts: int = 256,
    seed: int = 0,
) -> PID:
    """A PID controller tuned by a rule or by optimisation.

    Args:
        plant: a plant of :mod:`lqrlab.systems` or a batch; ``(A, B, C)`` or ``(A, B, C, D)`` in continuous time with
            D = 0; or a :class:`ProcessModel`.
        method: ``"simc"`` (Skogestad), ``"amigo"`` (Åström and Hägglund), ``"ziegler_nichols"`` (by the ultimate gain,
            or by a model if ``experiment`` names one), ``"cohen_coon"``, ``"max_ki"``: the largest integral gain with
            Ms ≤ ``ms`` (1.4), or ``"optimal"``: the least cost ∫ xᵀQx + uᵀRu from initial states as large as the
            plant's scales, with Ms ≤ ``ms`` (2) and the two margins, each input's with the others closed. With integral
            action the loop is also to come to rest a quarter as fast as the regulator's, for the cost would do without.
        kind: ``"pid"``, ``"pi"``, ``"pd"`` or ``"p"``.
        pairs: (output, input) of each loop; if left out the i-th output drives the i-th input. Several loops are tuned
            one by one with the others open, but for ``"optimal"``, which tunes them together.
        dt: sample time [s]; the plant's if left out. Rules count half of it as dead time.
        delay: dead time [s] of the inputs.
        tau_c: of ``"simc"``: time constant of the closed loop [s]; the dead time if left out.
        experiment: how rules get their model: ``"half_rule"`` (of ``"simc"``), ``"step"`` or ``"relay"``, simulated.
        ms, phase_margin, gain_margin: limits; phase margin in rad, gain margin as a factor.
        filter_time: of the derivative [s]; a tenth of Td if left out, but found with the gains by the last two methods.
        b, c: weights of the set-point; b is the rule's if left out.
        tracking_time: of the anti-windup [s]; √(Ti Td), or Ti of a PI controller, if left out.
        velocity: compute changes of the input: the same as a tracking time of 0.
        Q, R: weights instead of the plant's, for ``"optimal"``; CᵀC and 1 of matrices.
        num_starts, seed: of the descent of ``"optimal"``.

    Returns:
        :class:`PID`; of a batch with NaN gains where a member has no answer.

    Raises:
        ValueError: bad arguments; a rule that is not for such a plant; a loop that is not stable, in words.

    >>> lag = np.array([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0], [0.0, 0.0, -1.0]])  # 1 / (s + 1)³
    >>> plant = (lag, np.array([[0.0], [0.0], [1.0]]), np.array([[1.0, 0.0, 0.0]]))
    >>> classical.pid(plant, "ziegler_nichols").kp.round(6)  # 0.6 of the ultimate gain, which is 8
    Array(4.8, dtype=float64)
    """
    settings = _settings(
        method, kind, tau_c, experiment, (ms, phase_margin, gain_margin), filter_time, b, c, tracking_time, velocity,
        num_starts, seed,
    )  # fmt: skip
    members, lead = _members(plant, pairs, dt, checks.number("delay", delay, "a dead time ≥ 0 s", low=0), Q, R)
    designs: list[PID | None] = []
    failures = []
    for member in members:
        try:
            designs.append(_tuned(member, method, **settings))
        except ValueError as error:
            if not lead:
                raise
            failures.append(error)
            designs.append(None)
    if len(failures) == len(designs):
        raise failures[0]
    return _stacked(designs, lead)


def _settings(
    method: str, kind: str, tau_c: Any, experiment: Any, limits: tuple[Any, Any, Any], filter_time: Any, b: Any, c: Any,
    tracking_time: Any, velocity: Any, num_starts: Any, seed: Any,
) -> dict[str, Any]:  # fmt: skip
    """The arguments that are the same for all plants, checked."""
    checks.choice("method", method, METHODS)
    checks.choice("kind", kind, KINDS)
    if experiment is not None:
        checks.choice("experiment", experiment, EXPERIMENTS)
    for name, value in {"tau_c": tau_c, "filter_time": filter_time, "b": b, "tracking_time": tracking_time}.items():
        if value is not None:
            low = -np.inf if name in ("tau_c", "b") else 0.0
            checks.number(name, value, "a finite number" if low else "a time ≥ 0 s", low=low, finite=low != 0)
    ms, phase_margin, gain_margin = limits
    kept = Limits(
        (1.4 if method == "max_ki" else 2.0) if ms is None else checks.number("ms", ms, "above 1", above=1.0),
        checks.number("phase_margin", phase_margin, "an angle from 0 to π rad", low=0, below=np.pi),
        checks.number("gain_margin", gain_margin, "a factor ≥ 1", low=1),
    )
    if checks.flag("velocity", velocity) and "i" not in kind:
        raise ValueError(f'velocity: expected integral action in the velocity form, but found kind="{kind}"')
    checks.number("c", c)
    checks.whole("num_starts", num_starts)
    checks.whole("seed", seed, 0)
    return {
        **{"kind": kind, "tau_c": tau_c, "experiment": experiment, "limits": kept, "filter_time": filter_time},
        **{"tracking_time": 0.0 if velocity else tracking_time, "b": b, "c": float(c)},
        **{"num_starts": num_starts, "seed": seed},
    }


def _stacked(designs: list[PID | None], lead: tuple[int, ...]) -> PID:
    """The designs of a batch; NaN gains where there is none."""
    good = next(d for d in designs if d is not None)
    if not lead:
        return good
    nan = jnp.full_like(good.kp, jnp.nan)
    bad = dataclasses.replace(good, kp=nan, ki=nan, kd=nan)
    full = [bad if d is None else d for d in designs]

    def stacked(name: str) -> Any:
        values = [np.asarray(getattr(d, name)) for d in full]
        return jnp.asarray(np.stack(values).reshape(*lead, *values[0].shape))

    return dataclasses.replace(good, **{name: stacked(name) for name in (*ARRAYS, "C", "dt")})


# What is given ------------------------------------------------------------------------------------------------


def _members(
    plant: Any, pairs: Any, dt: Any, delay: float, Q: Any, R: Any
) -> tuple[list[_Loops], tuple[int, ...]]:  # fmt: skip
    """The plants of a batch one by one, and its shape."""
    step = matrix_checks.host_sample_time("pid", dt)
    if isinstance(plant, ProcessModel):
        channel = plant.channel()
        member = _one(channel.A, channel.b, channel.c, pairs, step, delay + plant.delay, (Q, R), None)
        model = dataclasses.replace(plant, delay=plant.delay + delay + (step or 0.0) / 2)
        return [dataclasses.replace(member, model=model)], ()
    if callable(getattr(plant, "matrices", None)) and callable(getattr(plant, "output_matrix", None)):
        matrix_checks.on_host("pid", plant)
        (A, B), (q, r), C = plant.matrices(), plant.weights(), plant.output_matrix()
        step, scale = plant.dt if dt is None else step, plant.scales[0]
        lead = np.broadcast_shapes(*(np.shape(a)[:-2] for a in (A, B, C, q, r)))
        full = [np.broadcast_to(np.asarray(a), (*lead, *np.shape(a)[-2:])) for a in (A, B, C, q, r)]
        scales = np.broadcast_to(np.asarray(scale), (*lead, np.shape(A)[-1]))
        steps = np.broadcast_to(np.asarray(step, float), lead)
        made = []
        for at in np.ndindex(lead):
            a, b, c, q, r = (M[at] for M in full)
            weights = (q if Q is None else Q, r if R is None else R)
            made.append(_one(a, b, c, pairs, float(steps[at]), delay, weights, scales[at]))
        return made, lead
    if isinstance(plant, tuple | list) and len(plant) in (3, 4):
        A, B, C, *D = plant
        given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({"D": (D[0], "pm")} if D else {})
        matrix_checks.on_host("pid", *plant)
        A, B, C, *D = matrix_checks.host_matrices("pid", **given)
        if D and D[0].any():
            raise ValueError(
                "D: expected zero, but found inputs that act on the outputs at once: with a derivative such a loop is "
                "not proper; add the lag of an actuator or sensor to the plant"
            )
        return [_one(A, B, C, pairs, step, delay, (Q, R), None)], ()
    raise ValueError(
        "plant: expected a plant of systems.make, (A, B, C), (A, B, C, D) or classical.ProcessModel(gain, time_constant, "
        f"delay), but found {type(plant).__name__}"
    )


def _one(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, pairs: Any, dt: float | None, delay: float,
    weights: tuple[Any, Any], scale: np.ndarray | None,
) -> _Loops:  # fmt: skip
    """One checked plant with its loops."""
    A, B, C = matrix_checks.host_matrices("pid", A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    (p, n), m = C.shape, B.shape[1]
    if not (p and n and m):
        raise ValueError(f"C: expected at least one state, input and measured output, but found {n}, {m} and {p}")
    pairs = [(i, i) for i in range(min(p, m))] if pairs is None else pairs
    if not (isinstance(pairs, Sequence) and pairs and all(isinstance(q, tuple | list) and len(q) == 2 for q in pairs)):
        raise ValueError(f"pairs: expected a list of (output, input), one for each loop, but found {pairs!r}")
    outputs = [checks.whole("pairs", i, 0, p - 1) for i, _ in pairs]
    inputs = tuple(checks.whole("pairs", j, 0, m - 1) for _, j in pairs)
    if len(set(zip(outputs, inputs))) < len(outputs):
        raise ValueError(f"pairs: expected each pair of output and input once, but found {pairs!r}")
    Q = C[outputs].T @ C[outputs] if weights[0] is None else weights[0]
    R = np.eye(m) if weights[1] is None else weights[1]
    Q, R = (np.asarray(a) for a in matrix_checks.one_problem("pid", A, B, Q, R)[2:4])
    W = np.eye(n) if scale is None else np.diag(np.asarray(scale, float) ** 2)
    return _Loops(A, B, C[outputs], inputs, delay, dt, (Q, R), W)


# What is made of it -------------------------------------------------------------------------------------------


def _tuned(loops: _Loops, method: str, **settings: Any) -> PID:
    """The design of one plant."""
    k = len(loops.inputs)
    for i in range(k if method != "optimal" else 0):
        loops.channel(i).sign()  # refuses an output that does not react
    if "i" in settings["kind"] and loops.blocked:
        raise ValueError(
            f'kind: expected "pd" or "p", but found "{settings["kind"]}": no constant inputs hold the outputs of all '
            "loops (a transmission zero at the origin, or more outputs than inputs), so an integral would grow for ever"
        )
    if method == "optimal":
        return _optimal(loops, settings)
    found = [_rule(loops, i, method, settings) for i in range(k)]
    design = _designed(loops, [g for g, _ in found], [t for _, t in found], settings)
    _check_stable(loops, design, method)
    return design


def _rule(loops: _Loops, k: int, method: str, settings: dict[str, Any]) -> tuple[Gains, float | None]:
    """The gains of one loop, and its filter if the method finds one."""
    kind, experiment, filter_time = settings["kind"], settings["experiment"], settings["filter_time"]
    channel = loops.channel(k)
    if method == "max_ki":
        return max_ki(channel, settings["limits"].ms, kind, filter_time)
    if method == "ziegler_nichols" and experiment is None:
        return tuning_rules.ziegler_nichols_ultimate(*channel.ultimate(), kind), filter_time
    model = loops.model
    if model is None or experiment is not None:
        default = "half_rule" if method == "simc" else "step"
        model = process_model(channel, experiment or default, 1 if kind == "pi" else 2)
    if method == "simc":
        return tuning_rules.simc(model, kind, settings["tau_c"]), filter_time
    return getattr(tuning_rules, method)(model, kind), filter_time


def _designed(
    loops: _Loops, gains: list[Gains], filter_times: list[float | None], settings: dict[str, Any]
) -> PID:  # fmt: skip
    """The controller with what the gains leave open."""
    kp, ki, kd, b = (np.array(a, float) for a in zip(*gains))
    with np.errstate(divide="ignore", invalid="ignore"):
        Ti, Td = np.abs(kp / ki), np.where(kp != 0, np.abs(kd / kp), 0.0)
        Tt = np.where(ki == 0, np.inf, np.where(kd == 0, Ti, np.sqrt(Ti * Td)))
        Tt = np.where((ki != 0) & (kp == 0), loops.dt or 1.0, Tt)
    Tf = np.array([t if chosen is None else chosen for t, chosen in zip(Td / 10, filter_times)])
    b = b if settings["b"] is None else np.full_like(b, settings["b"])
    Tt = Tt if settings["tracking_time"] is None else np.full_like(Tt, settings["tracking_time"])
    arrays = (kp, ki, kd, Tf, b, np.full_like(kp, settings["c"]), Tt)
    values: dict[str, Any] = dict(zip(ARRAYS, (jnp.asarray(a[0] if len(a) == 1 else a, float) for a in arrays)))
    C = None if loops.model is not None else jnp.asarray(loops.C)
    dt = None if loops.dt is None else jnp.asarray(loops.dt, float)
    return PID(**values, C=C, dt=dt, inputs=loops.inputs, m=loops.B.shape[1])


def _optimal(loops: _Loops, settings: dict[str, Any]) -> PID:
    """Gains of least cost under the limits."""
    if loops.dt is None:
        raise ValueError('dt: expected a sample time [s] for method="optimal", whose cost is that of the sampled loop')
    late = loops.delay / loops.dt
    problem = delayed(loops.A, loops.B, *loops.weights, loops.dt, late)
    optimum = lqrd_delayed(loops.A, loops.B, *loops.weights, loops.dt, late)
    more = problem.A.shape[-1] - len(loops.A)
    C, rates = (np.pad(a, ((0, 0), (0, more))) for a in (loops.C, loops.C @ loops.A))
    W = np.pad(loops.W, (0, more))
    start = [Gains(1.0, 1.0, 1.0)] * len(loops.inputs)
    blank = dataclasses.replace(_designed(loops, start, [None] * len(start), settings), C=jnp.asarray(loops.C))
    keys = {name: settings[name] for name in ("filter_time", "num_starts", "seed")}
    found = optimal(problem, optimum, C, rates, W, blank, settings["limits"], settings["kind"], **keys)
    gains = [
        Gains(*(float(g) for g in one)) for one in zip(*(np.atleast_1d(a) for a in (found.kp, found.ki, found.kd)))
    ]
    return _designed(loops, gains, [float(t) for t in np.atleast_1d(found.filter_time)], settings)


def _check_stable(loops: _Loops, design: PID, method: str) -> None:
    """Refuse gains whose loop is not stable: sampled if it has a sample time, else with the dead time in frequency."""
    if loops.dt is not None:
        zero, one = np.zeros_like(loops.A), np.eye(loops.B.shape[1])
        problem = delayed(loops.A, loops.B, zero, one, loops.dt, loops.delay / loops.dt)
        joint, K = dataclasses.replace(design, C=jnp.asarray(loops.C)).loop(problem)
        radius = np.abs(np.linalg.eigvals(np.asarray(joint.A - joint.B @ K))).max()
        stable, found = radius < 1 - _ROUNDING, f"a mode of size {radius:.4g} at each sample"
    else:
        stable, found = _encircles(loops, design), "its frequency response encircles −1"
    if not stable:
        raise ValueError(
            f"plant: the loop that {method} tunes is not stable ({found}): expected a plant that such a controller can "
            'stabilise from its outputs; use a shorter sample time, other pairs, a longer tau_c, or method="optimal"'
        )


def _encircles(loops: _Loops, design: PID) -> bool:
    """True if the continuous loop is stable: 1 + L turns by π for each unstable pole and π/2 for each integrator."""
    channels = [loops.channel(i) for i in range(len(loops.inputs))]
    w = np.unique(np.concatenate([c.frequencies() for c in channels]))
    w = np.geomspace(w[0] / 100, w[-1], 4 * len(w))
    gains = np.asarray(design.response(w)).reshape(len(w), -1)
    G = response_at(loops.A, loops.B, loops.C, 1j * w) * np.exp(-1j * w * loops.delay)[:, None, None]
    L = (design.selection[None] * gains[:, None, :]) @ G
    turned = np.unwrap(np.angle(np.linalg.det(np.eye(L.shape[-1]) + L)))
    end = turned[-1] - np.round(turned[-1] / (2 * np.pi)) * 2 * np.pi
    poles = channels[0].poles
    integrators = np.sum(poles == 0) + np.sum(np.asarray(design.ki) != 0)
    expected = np.pi * np.sum(poles.real > 0) + np.pi / 2 * integrators
    return bool(abs(turned[-1] - end - turned[0] - expected) < np.pi / 4)

"""Tuning of PID controllers by a rule that is found by name: one plant or a batch, one loop or a matrix of loops."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used

from lqrlab.compute import checks
from lqrlab.control import matrix_checks
from lqrlab.control.delay import delayed, lqrd_delayed
from lqrlab.extensions.classical import tuning_rules
from lqrlab.extensions.classical.channels import Channel, spaced
from lqrlab.extensions.classical.optimal_pid import Bounds, optimal
from lqrlab.extensions.classical.pid_controller import PID
from lqrlab.extensions.classical.process_models import NEGLIGIBLE, ProcessModel, half_rule, of_step
from lqrlab.extensions.classical.tuning_rules import KINDS, Gains, max_ki
from lqrlab.simulation import Problem
from lqrlab.systems import Plant

RULES = {
    "simc": ("tau_c", "experiment"),
    "amigo": ("experiment",),
    "ziegler_nichols": ("experiment",),
    "cohen_coon": ("experiment",),
    "max_ki": ("ms",),
    "optimal": ("ms", "phase_margin", "gain_margin", "num_starts", "seed"),
}
"""The settings of each rule."""
_ROUNDING = 1e-12  # as near to one a mode may be an integral that nothing moves
_MARGINAL = 1e-13  # times the largest pole: a real part that rounding may have made
_POINTS, _TURN, _MOST = 4000, 0.5, 100_000  # frequencies at first; the largest step of a logarithm; how many at most


@dataclasses.dataclass(frozen=True)
class _PairedPlant:
    """One plant, and which of its outputs drives which of its inputs; on the host."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    inputs: tuple[int, ...]
    delay: float
    dt: float | None
    weights: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    W: np.ndarray
    model: ProcessModel | None = None

    @property
    def blocked(self) -> bool:
        """True if no constant inputs hold the outputs at will: [A B; C 0] has less than full row rank."""
        d = matrix_checks.even_units(self.A, self.B, self.C)
        A, B, C = self.A * d / d[:, None], self.B / d[:, None], self.C * d
        size = [np.linalg.norm(a) or 1.0 for a in (A, B, C)]
        joint = np.block([[A / size[0], B / size[1]], [C / size[2], np.zeros((len(C), B.shape[1]))]])
        return bool(np.linalg.matrix_rank(joint, rtol=1e-12) < len(joint))

    def channel(self, k: int) -> Channel:
        """The plant as the k-th loop sees it, the others open."""
        return Channel(self.A, self.B[:, [self.inputs[k]]], self.C[[k]], self.delay, self.dt)


def pid(
    process: Any,
    rule: str = "simc",
    *,
    kind: str = "pid",
    pairs: Sequence[tuple[int, int]] | None = None,
    dt: float | None = None,
    delay: float = 0.0,
    filter_time: float | None = None,
    b: float | None = None,
    tracking_time: float | None = None,
    **settings: Any,
) -> PID:
    """A PID controller tuned by a rule or by optimisation.

    Args:
        process: a :class:`lqrlab.simulation.Problem` or a plant of :mod:`lqrlab.systems`, one or a batch; a
            :class:`ProcessModel`; or ``(A, B, C)``, ``(A, B, C, D)`` in continuous time with D = 0.
        rule: ``"simc"`` (Skogestad), ``"amigo"`` (Åström and Hägglund), ``"ziegler_nichols"`` (by the ultimate gain, or
            by a model if ``experiment`` names one), ``"cohen_coon"``: formulas, :mod:`.tuning_rules`; ``"max_ki"``: the
            largest integral gain with Ms ≤ ``ms`` (1.4); ``"optimal"``: the least cost of the problem (CᵀC and 1 of
            matrices) from initial states as large as the scales, with Ms ≤ ``ms`` (2), ``phase_margin`` [rad] and
            ``gain_margin`` (a factor); with integral action also at rest a quarter as fast as the regulator's loop.
        kind: ``"pid"``, ``"pi"``, ``"pd"`` or ``"p"``.
        pairs: (output, input) of each loop; the i-th of both if left out. Only ``"optimal"`` tunes them together.
        dt: sample time [s] of a plant, model or matrices; a problem has one. Rules count half of it as dead time.
        delay: dead time [s] of the inputs.
        filter_time: of the derivative [s]; a tenth of Td if left out, but found with the gains by the last two rules.
        b: weight of the set-point in the proportional part; the rule's if left out.
        tracking_time: of the anti-windup [s]: √(Ti Td), or Ti of a PI controller, if left out; 0 for the velocity form.
        settings: of the rule. ``tau_c``: time constant of the closed loop [s], the dead time if left out;
            ``experiment``: how rules get their model, ``"half_rule"`` or a simulated ``"step"``; ``ms``,
            ``phase_margin``, ``gain_margin``; ``num_starts`` (256) and ``seed`` of the descent of ``"optimal"``.

    A member of a batch without an answer has NaN gains; a rule not for such a plant, and an unstable loop, are refused.

    >>> lag = np.array([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0], [0.0, 0.0, -1.0]])  # 1 / (s + 1)³
    >>> plant = (lag, np.array([[0.0], [0.0], [1.0]]), np.array([[1.0, 0.0, 0.0]]))
    >>> classical.pid(plant, "ziegler_nichols").kp.round(6)  # 0.6 of the ultimate gain, which is 8
    Array(4.8, dtype=float64)
    """
    checks.choice("rule", rule, RULES)
    checks.choice("kind", kind, KINDS)
    for name in settings:
        checks.choice("settings", name, RULES[rule], f'for rule="{rule}" one of')
    if settings.get("experiment") is not None:
        checks.choice("experiment", settings["experiment"], ("half_rule", "step"))
    for name, value in {"filter_time": filter_time, "tracking_time": tracking_time}.items():
        if value is not None:
            checks.number(name, value, "a time ≥ 0 s", low=0, finite=False)
    if b is not None:
        checks.number("b", b)
    if tracking_time == 0 and "i" not in kind:
        raise ValueError(f'tracking_time: expected integral action in the velocity form (0), but found kind="{kind}"')
    chosen = {"filter_time": filter_time, "b": b, "tracking_time": tracking_time}
    members, lead = _members(process, pairs, dt, checks.number("delay", delay, "a dead time ≥ 0 s", low=0))
    designs: list[PID | None] = []
    failures = []
    for member in members:
        try:
            designs.append(_tuned(member, rule, kind, chosen, settings))
        except ValueError as error:
            failures.append(error)
            designs.append(None)
    if len(failures) == len(designs):
        raise failures[0]
    return _stacked(designs, lead)


def _stacked(designs: list[PID | None], lead: tuple[int, ...]) -> PID:
    """The designs of a batch; NaN gains where there is none."""
    good = next(d for d in designs if d is not None)
    if not lead:
        return good
    nan = jnp.full_like(good.kp, jnp.nan)
    bad = dataclasses.replace(good, kp=nan, ki=nan, kd=nan)
    full = [bad if d is None else d for d in designs]
    return jax.tree.map(lambda *a: jnp.asarray(np.stack(a).reshape(*lead, *np.shape(a[0]))), *full)


def _members(process: Any, pairs: Any, dt: Any, delay: float) -> tuple[list[_PairedPlant], tuple[int, ...]]:
    """The plants of a batch one by one, and its shape."""
    step = matrix_checks.host_sample_time("pid", dt)
    if isinstance(process, ProcessModel):
        channel = process.channel()
        member = _one(channel.A, channel.b, channel.c, pairs, step, delay + process.delay)
        model = dataclasses.replace(process, delay=member.delay + (step or 0.0) / 2)
        return [dataclasses.replace(member, model=model)], ()
    if isinstance(process, Problem | Plant):
        return _of_problem(process, pairs, step, delay)
    if isinstance(process, tuple | list) and len(process) in (3, 4):
        A, B, C, *D = process
        given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({"D": (D[0], "pm")} if D else {})
        A, B, C, *D = matrix_checks.host_matrices("pid", **given)
        if D and D[0].any():
            raise ValueError(
                "D: expected zero, but found inputs that act on the outputs at once: with a derivative such a loop is "
                "not proper; add the lag of an actuator or sensor to the plant"
            )
        return [_one(A, B, C, pairs, step, delay)], ()
    raise ValueError(
        "process: expected a problem, a plant of systems.make, (A, B, C), (A, B, C, D) or "
        f"classical.ProcessModel(gain, time_constant, delay), but found {type(process).__name__}"
    )


def _of_problem(
    process: Problem | Plant, pairs: Any, dt: float | None, delay: float
) -> tuple[list[_PairedPlant], tuple[int, ...]]:
    matrix_checks.on_host("pid", process)
    problem = Problem.of(process, dt=dt, linear=True, optimum=False) if isinstance(process, Plant) else process
    if problem.plant is None or problem.continuous is None:
        raise ValueError("process: expected the problem of one plant or batch, but found one of matrices, or scaled")
    if isinstance(process, Problem) and dt is not None:
        raise ValueError("dt: the problem already has a sample time; set it in Problem.of")
    A, B, Q, R, N = problem.continuous
    lead = problem.batch_shape
    there = [a for a in (A, B, problem.plant.output_matrix(), Q, R, N) if a is not None]
    full = [np.broadcast_to(np.asarray(a, float), (*lead, *np.shape(a)[-2:])) for a in there]
    scales = np.broadcast_to(np.asarray(problem.scale_x, float), (*lead, problem.n))
    steps = np.broadcast_to(np.asarray(problem.dt, float), lead)
    made = []
    for at in np.ndindex(lead):
        a, b, c, *weights = (M[at] for M in full)
        made.append(_one(a, b, c, pairs, float(steps[at]), delay, weights, scales[at]))
    return made, lead


def _one(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, pairs: Any, dt: float | None, delay: float,
    weights: Sequence[np.ndarray] = (), scale: np.ndarray | None = None,
) -> _PairedPlant:  # fmt: skip
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
    Q, R, N = [*(weights or (C[outputs].T @ C[outputs], np.eye(m))), None][:3]
    fastest = np.abs(np.linalg.eigvals(A)).max() or 1.0
    delay = 0.0 if dt is None and delay * fastest <= NEGLIGIBLE else delay
    W = np.eye(n) if scale is None else np.diag(np.asarray(scale, float) ** 2)
    return _PairedPlant(A, B, C[outputs], inputs, delay, dt, (Q, R, N), W)


def _tuned(plant: _PairedPlant, rule: str, kind: str, chosen: dict[str, Any], settings: dict[str, Any]) -> PID:
    """The design of one plant, with what was ``chosen`` of filter, set-point weight and anti-windup."""
    k = len(plant.inputs)
    for i in range(k if rule != "optimal" else 0):
        plant.channel(i).sign()  # refuses an output that does not react
    if "i" in kind and plant.blocked:
        raise ValueError(
            f'kind: expected "pd" or "p", but found "{kind}": no constant inputs hold the outputs of all '
            "loops (a transmission zero at the origin, or more outputs than inputs), so an integral would diverge"
        )
    if rule == "optimal":
        with jax.enable_x64(True):  # single precision ends at other gains
            return _optimal(plant, kind, chosen, **settings)
    found = [_ruled(plant, i, rule, kind, chosen["filter_time"], **settings) for i in range(k)]
    design = _designed(plant, [g for g, _ in found], [t for _, t in found], chosen)
    _check_stable(plant, design, rule)
    return design


def _ruled(
    plant: _PairedPlant, k: int, rule: str, kind: str, filter_time: float | None, experiment: str | None = None,
    **settings: Any,
) -> tuple[Gains, float | None]:  # fmt: skip
    """The gains of one loop, and its filter if the rule finds one."""
    channel = plant.channel(k)
    if rule == "max_ki":
        return max_ki(channel, kind, filter_time, **settings)
    if rule == "ziegler_nichols" and experiment is None:
        return tuning_rules.ziegler_nichols_ultimate(*channel.ultimate(), kind), filter_time
    model = plant.model
    if model is None or experiment is not None:
        experiment = experiment or ("half_rule" if rule == "simc" else "step")
        model = of_step(channel) if experiment == "step" else half_rule(channel, 1 if kind == "pi" else 2)
    return getattr(tuning_rules, rule)(model, kind, **settings), filter_time


def _designed(
    plant: _PairedPlant, gains: list[Gains], filter_times: list[float | None], chosen: dict[str, Any]
) -> PID:  # fmt: skip
    """The controller with what the gains leave open."""
    kp, ki, kd, b = (np.array(a, float) for a in zip(*gains))
    with np.errstate(divide="ignore", invalid="ignore"):
        Ti, Td = np.abs(kp / ki), np.where(kp != 0, np.abs(kd / kp), 0.0)
        Tt = np.where(ki == 0, np.inf, np.where(kd == 0, Ti, np.sqrt(Ti * Td)))
        Tt = np.where((ki != 0) & (kp == 0), plant.dt or 1.0, Tt)
    Tf = np.array([t if given is None else given for t, given in zip(Td / 10, filter_times)])
    b = b if chosen["b"] is None else np.full_like(b, chosen["b"])
    Tt = Tt if chosen["tracking_time"] is None else np.full_like(Tt, chosen["tracking_time"])
    arrays = {"kp": kp, "ki": ki, "kd": kd, "filter_time": Tf, "b": b, "c": np.zeros_like(kp), "tracking_time": Tt}
    values: dict[str, Any] = {name: jnp.asarray(a[0] if len(a) == 1 else a, float) for name, a in arrays.items()}
    C = None if plant.model is not None else jnp.asarray(plant.C)
    dt = None if plant.dt is None else jnp.asarray(plant.dt, float)
    return PID(**values, C=C, dt=dt, inputs=plant.inputs, m=plant.B.shape[1])


def _optimal(
    plant: _PairedPlant, kind: str, chosen: dict[str, Any], num_starts: int = 256, seed: int = 0, **limits: float
) -> PID:
    """Gains of least cost under the limits."""
    bounds, starts = Bounds.checked(**limits), (checks.whole("num_starts", num_starts), checks.whole("seed", seed, 0))
    if plant.dt is None:
        raise ValueError('dt: expected a sample time [s] for rule="optimal", whose cost is that of the sampled loop')
    A, B, Q, R = (np.asarray(a) for a in matrix_checks.one_problem("pid", plant.A, plant.B, *plant.weights)[:4])
    given = A, B, Q, R, plant.dt, plant.delay / plant.dt, plant.weights[2]
    problem, optimum = delayed(*given), lqrd_delayed(*given)
    more = problem.A.shape[-1] - len(A)
    C, rates = (np.pad(a, ((0, 0), (0, more))) for a in (plant.C, plant.C @ A))
    W = np.pad(plant.W, (0, more))
    start = [Gains(1.0, 1.0, 1.0)] * len(plant.inputs)
    blank = dataclasses.replace(_designed(plant, start, [None] * len(start), chosen), C=jnp.asarray(plant.C))
    found = optimal(problem, optimum, (C, rates), W, blank, kind, chosen["filter_time"], bounds, *starts)
    arrays = (np.atleast_1d(np.asarray(a, float)) for a in (found.kp, found.ki, found.kd))
    return _designed(plant, [Gains(*one) for one in zip(*arrays)], [*np.atleast_1d(found.filter_time)], chosen)


def _check_stable(plant: _PairedPlant, design: PID, rule: str) -> None:
    """Refuse gains whose loop is not stable: sampled if it has a sample time, else with the dead time in frequency."""
    if plant.dt is not None:
        zero, one = np.zeros_like(plant.A), np.eye(plant.B.shape[1])
        problem = delayed(plant.A, plant.B, zero, one, plant.dt, plant.delay / plant.dt)
        joint, K = dataclasses.replace(design, C=jnp.asarray(plant.C)).loop(problem)
        radius = np.abs(np.linalg.eigvals(np.asarray(joint.A - joint.B @ K))).max()
        stable, found = radius < 1 - _ROUNDING, f"a mode of size {radius:.4g} at each sample"
    else:
        stable, found = _decays(plant, design), "its frequency response encircles −1"
    if not stable:
        raise ValueError(
            f"process: the loop that {rule} tunes is not stable ({found}): expected a plant that such a controller can "
            'stabilise from its outputs; use a shorter sample time, other pairs, a longer tau_c, or rule="optimal"'
        )


def _decays(plant: _PairedPlant, design: PID) -> bool:
    """True if the continuous loop is stable: det(sI − A + BK exp(−s delay)) is zero nowhere in the right half-plane.

    Without dead time its zeros are eigenvalues; with it, it turns by −π from ω = 0 to infinity for each of these, over
    a polynomial that decays. A loop of which rounding would decide is none that is stable.
    """
    kp, ki, kd, Tf = (np.array(a, float, ndmin=2).T for a in (design.kp, design.ki, design.kd, design.filter_time))
    C, select, one, late = plant.C, design.selection, np.eye(len(plant.C)), plant.delay
    # states: the plant's, the integral of each loop (which decays where there is none), its filtered output
    lag, steep, prompt = np.where(Tf > 0, Tf, 1.0), np.where(Tf > 0, kd / np.maximum(Tf, 1e-300), 0.0), kd * (Tf == 0)
    memory = np.vstack([(ki != 0) * C, C / lag])
    more = len(memory)
    A = np.block([[plant.A, np.zeros((len(plant.A), more))], [memory, -np.diag(np.vstack([ki == 0, 1 / lag])[:, 0])]])
    B = np.pad(plant.B, ((0, more), (0, 0)))
    K = select @ np.hstack([(kp + steep) * C + prompt * (C @ plant.A), ki * one, -steep * one])
    again = select @ (prompt * (C @ plant.B))  # an unfiltered derivative: u = −Kx − again · u(t − delay)
    turns = np.linalg.eigvals(again)
    if (np.abs(turns) >= 1).any() if late else (turns.real <= -1).any():
        return False
    opened, closed = np.linalg.eigvals(A), np.linalg.eigvals(A - B @ np.linalg.solve(np.eye(len(again)) + again, K))
    size = np.abs(np.concatenate([opened, closed]))
    if not late or np.abs(closed.real).min() <= _MARGINAL * size.max():
        return bool(closed.real.max() < -_MARGINAL * size.max())
    ends = min(size[size > 0].min(), 1 / late) / 1e3, max(size.max(), 1 / late) * 1e3

    def turned(w: np.ndarray) -> np.ndarray:
        s = 1j * w[:, None, None]
        loop = s * np.eye(len(A)) - A + B @ np.linalg.solve(np.exp(s * late) * np.eye(len(again)) + again, K)
        return np.linalg.det(loop / (s + size.max()))

    w = np.append(0.0, spaced(*ends, _POINTS, np.append(opened, closed), late))
    values = turned(w)
    while True:
        steps = np.log(values[1:] / values[:-1])
        # beside a large step as well: between two points of the same size two zeros may hide
        coarse = np.flatnonzero(scipy.ndimage.maximum_filter1d(np.abs(steps), 3) > _TURN)
        if not len(coarse):
            return bool(values[0].real > 0 and abs(steps.imag.sum()) < np.pi / 2)
        between = (w[coarse] + w[coarse + 1]) / 2
        if len(w) > _MOST or (between <= w[coarse]).any():
            return False
        w, values = np.insert(w, coarse + 1, between), np.insert(values, coarse + 1, turned(between))

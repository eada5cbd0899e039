"""Correct calls of the public functions, what is done to their arguments, and checks of what comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from hypothesis import strategies as st

from lqrlab import compute, control, dataset, evaluation, simulation, systems

compute.setup()
KEY = jax.random.key(0)
A, B, C, D = (
    np.array([[0.0, 1.0], [2.0, -0.5]]),
    np.array([[0.0], [1.0]]),
    np.array([[1.0, 0.0]]),
    np.array([[0.0]]),
)
Q, R, N, DT = np.eye(2), np.array([[1.0]]), np.array([[0.1], [0.0]]), 0.1
F = scipy.linalg.expm(A * DT)
G = np.array([[0.005], [0.1]])
K = np.array([[5.0, 3.0]])
STABLE = np.array([[-1.0, 0.5], [0.0, -2.0]])
PENDULUM = systems.make("pendulum")
GAIN = simulation.LinearPolicy(control.lqrd(*PENDULUM.matrices(), *PENDULUM.weights(), PENDULUM.dt).K)


def field(x, u):
    """A pendulum without units."""
    return jnp.stack([x[1], jnp.sin(x[0]) + u[0]])


# Damage -----------------------------------------------------------------------------------------------------

ARRAYS = {
    "+ 1j": lambda a, _: a + 1j,
    "as text": lambda a, _: a.astype(str),
    "as objects": lambda a, _: a.astype(object),
    "as whole numbers": lambda a, _: np.round(a).astype(int),
    "as truth values": lambda a, _: a.astype(bool),
    "in float32": lambda a, _: a.astype(np.float32),
    "as list": lambda a, _: a.tolist(),
    "with NaN": lambda a, rng: np.where(rng.random(a.shape) < 0.5, np.nan, a),
    "with inf": lambda a, rng: np.where(rng.random(a.shape) < 0.5, np.inf, a),
    "· 1e300": lambda a, _: a * 1e300,
    "· 1e12": lambda a, _: a * 1e12,
    "· 1e-12": lambda a, _: a * 1e-12,
    "· 1e-300": lambda a, _: a * 1e-300,
    "= 0": lambda a, _: np.zeros_like(a),
    "negative": lambda a, _: -a,
    "transposed": lambda a, _: a.T,
    "cut": lambda a, _: a[:-1],
    "with one axis more": lambda a, _: a[None],
    "three times": lambda a, _: np.stack([a] * 3),
    "empty": lambda a, _: a[:0],
    "at random": lambda a, rng: rng.normal(size=a.shape) * 10.0 ** rng.integers(-3, 4),
    "all alike": lambda a, _: np.ones_like(a),
}
NUMBERS = [
    *(
        0,
        -1,
        0.5,
        1e-300,
        1e-12,
        1e6,
        1e300,
        np.nan,
        np.inf,
        -np.inf,
        1j,
        10**30,
        True,
        np.float32(0.1),
        np.zeros(()),
    ),
    *(None, "x", "0.1", b"1", [], [0.1], {}, np.ones(3), object()),
]
OTHERS = [None, 3, 0.5, "x", "", "cart_pole", object(), [], {}, np.ones((2, 2)), 1j, len]


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@st.composite
def arguments(draw, valid: dict):
    """(Arguments of a call of which one or two are damaged, what was done to them in words)."""
    given, words = dict(valid), []
    for name in draw(st.lists(st.sampled_from(sorted(valid)), min_size=1, max_size=2, unique=True)):
        value, rng = valid[name], np.random.default_rng(draw(st.integers(0, 2**32)))
        if isinstance(value, np.ndarray) and draw(st.integers(0, 9)):
            way = draw(st.sampled_from(sorted(ARRAYS)))
            given[name] = ARRAYS[way](value, rng)
            words.append(f"{name} {way}")
            continue
        given[name] = draw(st.sampled_from(NUMBERS if _is_number(value) else OTHERS))
        words.append(f"{name} = {str(given[name])[:40]!r}")
    return given, words


# Checks -----------------------------------------------------------------------------------------------------


def plain(found, given, damage) -> str:
    """Nothing that is no real number was taken for one."""
    for name, value in given.items():
        kind = np.asarray(value).dtype.kind if isinstance(value, np.ndarray | complex | str | bytes) else "f"
        if kind in "cUS" and not isinstance(value, str):
            return f"{name} was taken for real numbers"
        if kind in "US" and f"{name} = " in " ".join(damage) and value not in ("", "cart_pole"):
            return f"the text {value!r} was taken for {name}"
    return ""


def gain(discrete: bool = False, sampled: bool = False):
    """Of a regulator: what is called stabilizing is."""

    def check(found, given, damage) -> str:
        words = plain(found, given, damage)
        A, B = (np.asarray(given[name], float) for name in "AB")
        gains, said = np.asarray(found.K), np.asarray(found.stabilizing)
        if words or A.ndim != 2 or B.ndim != 2 or gains.ndim != 2 or not said:
            return words
        if not np.isfinite(gains).all():
            return "called stabilizing, but the gain is not finite"
        if sampled:
            block = np.zeros((3, 3))
            block[:2] = np.hstack([A, B]) * float(given["dt"])
            with np.errstate(all="ignore"):
                whole = (
                    scipy.linalg.expm(block) if np.isfinite(block).all() and abs(block).max() < 50 else None
                )
            if whole is None:
                return ""
            A, B = whole[:2, :2], whole[:2, 2:]
        with np.errstate(all="ignore"):
            closed = A - B @ gains
        if not np.isfinite(closed).all():
            return ""
        poles = np.linalg.eigvals(closed)
        scale = np.finfo(float).eps ** 0.5 * max(abs(closed).max(), 1.0)
        limit = abs(poles).max() - 1 if discrete or sampled else poles.real.max()
        return "" if limit <= scale else f"called stabilizing, but a pole is {limit:.2g} beyond the border"

    return check


def residual(of):
    """What an equation leaves is small against its terms."""

    def check(found, given, damage) -> str:
        words = plain(found, given, damage)
        X, a, q = np.asarray(found), *(np.asarray(given[k], float) for k in "AQ")
        if words or a.ndim != 2 or q.ndim != 2 or not np.isfinite(X).all():
            return words
        with np.errstate(all="ignore"):
            left = of(a, X, q)
            size = abs(X).max() * (1 + abs(a).max() + abs(a).max() ** 2) + abs(q).max()
        return (
            ""
            if not np.isfinite(size) or abs(left).max() <= 1e-6 * max(size, 1e-300)
            else "the equation is not solved"
        )

    return check


def rollout_is_recursion(found, given, damage) -> str:
    """Of a linear loop."""
    words = plain(found, given, damage)
    xs, x0 = np.asarray(found.xs), np.asarray(given["x0"], float)
    if (
        words
        or xs.shape[:-2] != x0.shape[:-1]
        or not np.allclose(xs[..., 0, :], x0, rtol=1e-5, equal_nan=True)
    ):
        return words or "the first state is not x0"
    return ""


# Calls ------------------------------------------------------------------------------------------------------

_ab, _abc, _design = {"A": A, "B": B}, {"A": STABLE, "B": B, "C": C}, {"A": A, "B": B, "Q": Q, "R": R}
_sampled = {"A": F, "B": G, "Q": Q, "R": R}
_loop = {"A": A, "B": B, "K": K}
_run = {"plant": PENDULUM, "policy": GAIN, "x0": np.array([0.1, 0.0]), "num_steps": 5}
_w, _x0, _d = np.array([0.5, 1.0]), np.array([0.1, 0.0]), _abc | {"D": D}
_kalman = {"C": C, "W": Q, "V": R}
_step = {"A": F, "B": G, "C": C, "K": K, "r": np.ones(1), "num_steps": 4}
_ys = {"ys": np.array([[0.0], [0.5], [1.0]]), "dt": DT, "r": np.ones(1)}
_grid = {"grid": [_w], "A": np.stack([A, A]), "B": np.stack([B, B]), "Q": Q, "R": R}
_plan = {"f": field, "x0": _x0, "Q": Q, "R": R, "num_steps": 5, "dt": DT}
_plant = {"f": field, "x_eq": np.zeros(2), "u_eq": np.zeros(1), "Q": Q, "R": R, "dt": DT}
_score = {"policy": GAIN, "plants": PENDULUM, "key": KEY, "num_initial": 2, "num_steps": 20}
_region = {"plant": PENDULUM, "policy": GAIN, "x0": _x0[None], "num_steps": 20}
_data = {"families": ("pendulum",), "variants": 3, "trajectories": 2, "num_steps": 5}

CALLS = {
    "control.lqr": (control.lqr, _design | {"N": N}, gain()),
    "control.dlqr": (control.dlqr, _sampled | {"N": N}, gain(discrete=True)),
    "control.lqrd": (control.lqrd, _design | {"dt": DT, "N": N}, gain(sampled=True)),
    "control.care": (control.care, _design, plain),
    "control.dare": (control.dare, _sampled, plain),
    "control.lyap": (control.lyap, {"A": STABLE, "Q": Q}, residual(lambda a, X, q: a @ X + X @ a.T + q)),
    "control.dlyap": (control.dlyap, {"A": F / 2, "Q": Q}, residual(lambda a, X, q: a @ X @ a.T - X + q)),
    "control.c2d": (control.c2d, _ab | {"dt": DT}, plain),
    "control.discretize": (control.discretize, _design | {"dt": DT, "N": N}, plain),
    "control.finite_horizon": (control.finite_horizon, _sampled | {"num_steps": 3, "Qf": Q}, plain),
    "control.delayed": (control.delayed, _design | {"dt": DT, "delay": 0.05}, plain),
    "control.delay_cost": (control.delay_cost, _design | {"dt": DT, "delay": 0.05}, plain),
    "control.lqrd_delayed": (control.lqrd_delayed, _design | {"dt": DT, "delay": 0.05}, plain),
    "control.diagnose": (control.diagnose, _design, plain),
    "control.lqe": (control.lqe, {"A": A} | _kalman, plain),
    "control.dlqe": (control.dlqe, {"A": F} | _kalman, plain),
    "control.lqg": (control.lqg, _design | _kalman, plain),
    "control.lqi": (control.lqi, _design | {"C": C, "Qi": R}, plain),
    "control.feedforward": (control.feedforward, _abc, plain),
    "control.ctrb": (control.ctrb, _ab, plain),
    "control.obsv": (control.obsv, {"A": A, "C": C}, plain),
    "control.gram": (control.gram, {"A": STABLE, "B": B}, plain),
    "control.h2_norm": (control.h2_norm, _abc, plain),
    "control.hinf_norm": (control.hinf_norm, _d, plain),
    "control.zeros": (control.zeros, _d, plain),
    "control.modes": (control.modes, {"A": A, "dt": DT}, plain),
    "control.margins": (control.margins, _loop, plain),
    "control.sensitivity": (control.sensitivity, _loop | {"frequencies": _w}, plain),
    "control.frequency_response": (control.frequency_response, _abc | {"frequencies": _w}, plain),
    "control.step_response": (control.step_response, _step, plain),
    "control.step_info": (control.step_info, _ys, plain),
    "control.settling_time": (control.settling_time, {"poles": np.array([0.5, 0.2]), "dt": DT}, lambda *_: ""),
    "control.place": (control.place, _ab | {"poles": np.array([-1.0, -2.0])}, plain),
    "control.inverse_lqr": (control.inverse_lqr, _loop, plain),
    "control.gain_schedule": (control.gain_schedule, _grid, plain),
    "control.to_statespace": (control.to_statespace, _d, plain),
    "control.unsaturated_level": (control.unsaturated_level, {"K": K, "P": Q, "limit": 1.0}, plain),
    "control.ilqr": (control.ilqr, _plan, plain),
    "control.StepSpecs": (control.StepSpecs, {"settling": 1.0, "overshoot": 0.1, "margin": 0.5}, plain),
    "systems.make": (systems.make, {"name": "pendulum", "length": 0.5}, lambda *_: ""),
    "systems.sample": (systems.sample, {"name": "pendulum", "key": KEY, "num": 3, "spread": 0.2}, lambda *_: ""),
    "systems.from_matrices": (systems.from_matrices, _abc | {"Q": Q, "R": R, "dt": DT}, plain),
    "systems.from_dynamics": (systems.from_dynamics, _plant, plain),
    "simulation.env": (simulation.env, {"plant": PENDULUM, "dt": DT, "substeps": 2}, plain),
    "simulation.rollout": (simulation.rollout, _run, rollout_is_recursion),
    "simulation.rollout, linear": (simulation.rollout, _run | {"linear": True, "noise": 0.1, "key": KEY}, plain),
    "evaluation.evaluate": (evaluation.evaluate, _score, plain),
    "evaluation.attraction": (evaluation.attraction, _region, plain),
    "dataset.DataConfig": (dataset.DataConfig, _data, lambda *_: ""),
}  # fmt: skip

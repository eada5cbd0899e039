"""Plants found in logs, next to nfoursid, jax-sysid and SciPy alone; regulators from logs; standard errors."""

import contextlib
import dataclasses
import importlib.util
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize

from benchmarks.measurement import Parts, Row, main, measure, row
from lqrlab import control, simulation, systems
from lqrlab.compute import seconds
from lqrlab.extensions import identification
from lqrlab.extensions.identification import Log
from lqrlab.extensions.identification.shooting import DEFECT, PULL, first_states
from lqrlab.systems import Signal

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A, B, C."""
_LAGS = 30


def records(n: int, num: int, samples: int = 1000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[Matrices]]:
    """White inputs ``[num, T, 1]``, outputs with 10 % noise, and the stable plants of order n behind them."""
    rng = np.random.default_rng(seed)
    us, ys, plants = rng.normal(size=(num, samples, 1)), np.empty((num, samples, 1)), []
    for k in range(num):
        size, turn = rng.uniform(0.7, 0.95, n // 2), rng.uniform(0.1, 1.2, n // 2)
        A = np.zeros((n, n))
        for j, (r, w) in enumerate(zip(size, turn)):
            c, s = r * np.cos(w), r * np.sin(w)
            A[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = [[c, s], [-s, c]]
        B, C, x = rng.normal(size=(n, 1)), rng.normal(size=(1, n)), np.zeros(n)
        for t in range(samples):
            ys[k, t] = C @ x
            x = A @ x + B @ us[k, t]
        ys[k] += 0.1 * ys[k].std() * rng.normal(size=(samples, 1))
        plants.append((A, B, C))
    return us, ys, plants


def bench_identify(
    orders: Sequence[int] = (2, 4), *, num: int = 50, repeats: int = 3, samples: int = 2000, starts: int = 64
) -> list[Row]:
    """Errors of linear models on ``num`` records and their rate, then a fit of a cart-pole's five parameters.

    nfoursid and jax-sysid are measured too where they are installed (``pip install nfoursid jax-sysid``).
    """
    return [each for n in orders for each in _linear(n, num, repeats)] + _physical(repeats, samples, starts)


def _linear(n: int, num: int, repeats: int) -> list[Row]:
    us, ys, plants = records(n, num)
    methods: dict[str, Callable[[], list[Matrices]]] = {"subspace": lambda: [_alone(u, y, n) for u, y in zip(us, ys)]}
    others = {
        library: partial(find, n)
        for library, find in (("nfoursid", _nfoursid), ("jax_sysid", _jax_sysid))
        if importlib.util.find_spec(library)
    }
    methods |= {name: partial(_each, find, us, ys) for name, find in others.items()}
    found = {name: method() for name, method in methods.items()}
    found["subspace and refine"] = [_alone(u, y, n, refined=True) for u, y in zip(us, ys)]
    errors = {name: np.median([_errors(f, p) for f, p in zip(each, plants)], 0) for name, each in found.items()}
    times = {name: t / num for name, t in measure(methods, repeats).items()}
    rows = []
    for name, (pulses, poles) in errors.items():
        rows.append(row(f"n={n}: {name}: error of the pulse response, median", 100 * pulses, "%"))
        rows.append(row(f"n={n}: {name}: error of the poles, median", poles, "1"))
    rows += [row(f"n={n}: {name}", 1 / t, "records/s") for name, t in times.items()]
    for library in others:
        for what, ratio in zip(("pulse response", "poles"), errors["subspace and refine"] / errors[library]):
            title = f"n={n}: subspace and refine: error of the {what} over {library}'s"
            rows.append(row(title, ratio, "×", 1.05, least=False))
        rows.append(row(f"n={n}: records a second over {library}'s", times[library] / times["subspace"], "×"))
    return rows


def _each(find: Callable[..., Matrices], us: np.ndarray, ys: np.ndarray) -> list[Matrices]:
    return [find(u, y) for u, y in zip(us, ys)]


def _errors(found: Matrices, true: Matrices) -> tuple[float, float]:
    """Errors: of the pulse response, relative; of the poles, the largest distance to the nearest that was found."""
    a, b = (np.array([C @ np.linalg.matrix_power(A, k) @ B for k in range(_LAGS)]) for A, B, C in (found, true))
    near, poles = (np.linalg.eigvals(A) for A, _, _ in (found, true))
    distance = np.abs(near[:, None] - poles).min(0).max()
    return float(np.linalg.norm(a - b) / np.linalg.norm(b)), float(distance)


def _alone(u: np.ndarray, y: np.ndarray, n: int, *, refined: bool = False) -> Matrices:
    log = Log(u, y, 1.0, (Signal("u", "1"),), (Signal("y", "1"),))
    model = identification.subspace(log, n)
    model = identification.refine(model, log) if refined else model
    return model.A, model.B, model.C


def _nfoursid(n: int, u: np.ndarray, y: np.ndarray) -> Matrices:
    frame = pd.DataFrame({"u": u[:, 0], "y": y[:, 0]})
    library = importlib.import_module("nfoursid.nfoursid")
    problem = library.NFourSID(frame, output_columns=["y"], input_columns=["u"], num_block_rows=10)
    problem.subspace_identification()
    model = problem.system_identification(rank=n)[0]
    return model.a, model.b, model.c


def _jax_sysid(n: int, u: np.ndarray, y: np.ndarray) -> Matrices:
    model = importlib.import_module("jax_sysid.models").LinearModel(n, 1, 1, feedthrough=False)
    model.loss(rho_x0=1e-6, rho_th=1e-6)
    model.optimization(adam_epochs=0, lbfgs_epochs=1000, iprint=-1)
    with contextlib.redirect_stdout(io.StringIO()):
        model.fit(y, u)
    A, B, C = (np.asarray(a) for a in model.params[:3])
    return A, B, C


def _physical(repeats: int, samples: int, starts: int) -> list[Row]:
    """A cart-pole held by a regulator, five parameters, several starts."""
    true, nominal = systems.make("cart_pole", pole_mass=0.13, pole_length=0.6), systems.make("cart_pole")
    gain = control.lqrd(*nominal.matrices(), *nominal.weights(), nominal.dt).K
    run = simulation.rollout(
        true,
        simulation.LinearPolicy(gain),
        jnp.zeros(4),
        samples,
        excitation=0.4 * nominal.scales[1],
        key=jax.random.key(0),
    )
    log = identification.read(run, plant=true)
    noise = 0.01 * log.ys.std(0) * np.random.default_rng(0).normal(size=log.ys.shape)
    log = dataclasses.replace(log, ys=log.ys + noise)
    fit = partial(identification.fit, nominal, log, starts=starts)
    rows = [row(f"cart-pole, 5 parameters, {starts} starts: first call", seconds(fit), "s")]
    best = min(seconds(fit) for _ in range(max(repeats - 1, 1)))
    found = fit()
    other = min(seconds(partial(_finite_differences, found)) for _ in range(repeats))
    same = seconds(partial(_same_unknowns, found))
    return [
        *rows,
        row(f"cart-pole, 5 parameters, {starts} starts", best, "s", 2, least=False),
        row("cart-pole: SciPy with finite differences, one start, segments' states known", other, "s"),
        row("cart-pole: SciPy with finite differences, three steps from one start, the same unknowns", same, "s"),
    ]


def _finite_differences(found: identification.FittedPlant) -> np.ndarray:
    """The parameters alone, from the plant's own values, by the same compiled simulation."""
    s, starts = found.segments, jnp.asarray(found.x0)

    def missed(z: np.ndarray) -> np.ndarray:
        e = np.asarray(s.outputs(jnp.asarray(z), starts)[0]) - s.ys
        return (np.nan_to_num(e, nan=1e6) / found.noise)[s.mask].ravel()

    return scipy.optimize.least_squares(missed, np.zeros(len(found.z)), x_scale="jac").x


def _same_unknowns(found: identification.FittedPlant) -> np.ndarray:
    """The parameters and the states that segments begin with, from where our fit begins."""
    s = found.segments
    begin = s.packed(np.zeros(len(found.z)), np.zeros(len(found.noise)), first_states(s, found.log))

    def missed(free: np.ndarray) -> np.ndarray:
        z, _, starts = s.unpacked(free)
        ys, ends = (np.asarray(a) for a in s.outputs(jnp.asarray(z), jnp.asarray(starts)))
        gaps = ((ends[:-1] - starts[1:]) / (DEFECT * s.scale))[s.follows[1:]]
        e = ((ys - s.ys) / found.noise)[s.mask]
        return np.nan_to_num(np.concatenate([e.ravel(), gaps.ravel(), PULL * z]), nan=1e6)

    return scipy.optimize.least_squares(missed, begin, x_scale="jac", max_nfev=3).x  # all of it takes minutes


# Regulators from logs, and standard errors ------------------------------------------------------------------------

LENGTHS = (3.0, 10.0, 30.0)


def closed_loop_log(
    name: str, seed: int = 0, steps: int = 300, noise: float = 0.01, excitation: float = 0.5, spread: float = 0.2
) -> tuple[systems.Plant, Log]:
    """A variant of a family, unknown to its regulator, excited; the log of all its states with noise."""
    nominal = systems.make(name)
    plant = systems.sample(name, key=jax.random.key(seed), num=1, spread=spread)[0]
    gain = control.lqrd(*nominal.matrices(), *nominal.weights(), nominal.dt).K
    x0 = 0.3 * plant.initial_state(key=jax.random.key(seed + 1))
    key, added = jax.random.key(seed + 2), excitation * nominal.scales[1]
    run = simulation.rollout(plant, simulation.LinearPolicy(gain), x0, steps, excitation=added, key=key)
    log = identification.read(run, plant=plant)
    sigma = noise * np.maximum(log.ys.std(0), 1e-9)
    ys = log.ys + sigma * np.random.default_rng(seed).normal(size=log.ys.shape)
    return plant, dataclasses.replace(log, ys=ys)


def told(name: str, truth: systems.Plant, log: Log) -> identification.FittedPlant:
    """A fit of what the log tells: of what it does not, one parameter after the other is fixed at its true value."""
    nominal, fixed = systems.make(name), set[str]()
    varied = [k for k, f in systems.parameter_fields(type(nominal)).items() if f.metadata["vary"]]
    while True:
        plant = dataclasses.replace(nominal, **{k: getattr(truth, k) for k in fixed})  # type: ignore[type-var]
        free = [name for name in varied if name not in fixed]
        fitted = identification.fit(plant, log, free, starts=1)
        if not fitted.unidentifiable:
            return fitted
        fixed.add(free[int(np.argmax(np.abs(fitted.eigen[1][:, 0])))])


@dataclasses.dataclass(frozen=True)
class LogRow:
    """Cost above the optimum [%] of regulators designed from logs, on the true machines; inf where unstable."""

    family: str
    log: str
    machines: int
    median: float
    p95: float
    worst: float
    unstable: int


def bench_logs(
    families: Sequence[str] = ("cart_pole", "furuta_pendulum", "quadrotor"), num: int = 200
) -> Iterator[LogRow]:
    """Regulators from logs of 3, 10 and 30 s of machines known but for their class, 1 % noise."""
    for name in families:
        found: dict[str, list[float]] = {}
        for seed in range(num):
            with contextlib.suppress(ValueError):  # the rough regulator did not hold the machine, most likely
                for log, excess in _excess(name, seed).items():
                    found.setdefault(log, []).append(excess)
        for log, each in found.items():
            median, p95, worst = np.quantile(each, (0.5, 0.95, 1.0), method="higher").tolist()
            yield LogRow(name, log, len(each), median, p95, worst, int(np.isinf(each).sum()))


def _excess(name: str, seed: int) -> dict[str, float]:
    """Cost above the optimum [%] of the regulator from each length of one log."""
    nominal = systems.make(name)
    truth, log = closed_loop_log(name, seed, round(LENGTHS[-1] / nominal.dt))
    truth = jax.tree.map(lambda a: np.asarray(a)[None], truth)
    plants = {f"{s:g} s": identification.fit(nominal, log.cut(0, s)).plant for s in LENGTHS}
    gains = {
        length: control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
        for length, plant in ({"none": nominal} | plants).items()
    }
    return {k: 100 * identification.under_uncertainty(truth, gain).quantile(1.0) for k, gain in gains.items()}


@dataclasses.dataclass(frozen=True)
class CoverageRow:
    """Errors of estimates in units of their standard errors; should be within three in 99.7 % and of rms 1."""

    family: str
    estimates: int
    within_three: float
    rms: float
    refused: int


def bench_coverage(families: Sequence[str] = (), num: int = 20) -> Iterator[CoverageRow]:
    """Standard errors of fitted parameters, family by family (all if none is named), measured states, 1 % noise."""
    for name in families or systems.names():
        errors, refused = [], 0
        if not systems.parameter_fields(type(systems.make(name))):
            continue
        for seed in range(num):
            try:
                truth, log = closed_loop_log(name, seed, 200)
                found = told(name, truth, log)
                errors += ((found.values - [float(getattr(truth, k)) for k in found.names]) / found.std).tolist()
            except ValueError:
                refused += 1
        z = np.array(errors or [np.nan])
        within = 100 * float(np.mean(np.abs(z) < 3))
        yield CoverageRow(name, len(errors), within, float(np.sqrt(np.mean(z**2))), refused)


PARTS: Parts = {
    "speed": (bench_identify, {"orders": (2,), "num": 2, "repeats": 1, "samples": 200, "starts": 4}),
    "logs": (bench_logs, {"families": ("pendulum",), "num": 2}),
    "coverage": (bench_coverage, {"families": ("pendulum",), "num": 2}),
}

if __name__ == "__main__":
    main(PARTS)

"""Physical parameters of a plant from a log: output error by single or multiple shooting, from many starts."""

import bisect
import itertools
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
import scipy.linalg

from lqrlab import simulation
from lqrlab.compute import checks
from lqrlab.extensions.identification.fitted_plant import FittedPlant
from lqrlab.extensions.identification.log import Log, check_log, require_excitation
from lqrlab.extensions.identification.shooting import DEFECT, Segments, first_states, minimised
from lqrlab.systems import Plant, check_plant, parameter_fields

METHODS = ("auto", "single", "multiple")
_GROWTH = 150.0  # of errors within a segment
_FAR = 25.0  # ranges of a signal in the log, from which it is far
_ROUGH = 0.05  # the noise at first, relative to each output's spread
_EXPLAINED = 0.5 * 0.01 / _ROUGH**2  # the cost of a sample where 1 % of the variance is left
_SCREENED, _MOST_SCREENED = (8, 128)  # parameter values all over the ranges for each start, of which the best count
_BRIEF, _MOST_COMPARED = 5, 64  # evaluations after which so many starts are compared again
_LOOSE = 1e-2  # by which segments may fail to meet at first, relative to the states' scales


def fit(
    plant: Plant,
    log: Log,
    parameters: Sequence[str] | None = None,
    *,
    method: str = "auto",
    starts: int = 8,
    offsets: bool | Sequence[str] = False,
    defect: float = DEFECT,
    segment: int | None = None,
    substeps: int | None = None,
    iterations: int = 100,
) -> FittedPlant:
    """Physical parameters of a plant from a log of its inputs and (some) outputs, named as the plant names them.

    Minimised is the sum of squares of the outputs' errors in units of their noise, which is estimated along, over the
    parameters, the initial state of each record, and offsets: SciPy's trust-region least squares, Jacobians from JAX.

    Args:
        plant: of any class, with values to start from.
        log: the record or records.
        parameters: names of those that are free; all that vary between variants if left out.
        method: ``"single"`` shooting simulates each record in one go; ``"multiple"`` in segments that have to meet,
            which unstable plants and long records need; ``"auto"`` looks at how errors grow.
        starts: searches at most: from the plant's own values, others around them, and all over the declared ranges.
        offsets: free constant offsets, of all outputs or of those named.
        defect: by how much segments may fail to meet, relative to the states' scales: larger allows for disturbances.
        segment: samples in a segment; if left out, as many as errors of the state take to grow 150-fold, or fewer.
        substeps: Runge-Kutta steps in a sample time; enough for the plant's fastest mode if left out.
        iterations: at most so many evaluations from each start.

    Raises:
        ValueError: signals that the plant does not have, nothing excited, too few samples; says what to do.

    Source: H. G. Bock, Recent advances in parameter identification techniques for ODE (1983), multiple shooting;
    L. Ljung, System Identification, 2nd ed. (1999), chapters 7, 9.
    """
    check_plant(plant, one=True)
    check_log(log)
    names = free_parameters(plant, parameters)
    checks.whole("starts", starts)
    checks.choice("method", method, METHODS)
    checks.number("defect", defect, "a share of the states' scales above 0", above=0)
    checks.whole("iterations", iterations)
    segments = _cut(plant, log, names, method, segment, _offset(log, offsets), substeps)
    require_excitation(log, len(names) + plant.n)
    _plausible(segments, log)
    begin = first_states(segments, log)
    # segments that need not meet at once converge from afar
    gaps = np.geomspace(max(_LOOSE, defect), defect, 4)
    sigma = np.maximum(_ROUGH * log.ys.std(0), 1e-12)
    best, costs = _best_of_starts(segments, _candidates(segments, starts), begin, sigma, iterations, gaps[0])
    for gap in gaps:  # the noise, and what it weighs, are found along
        sigma = _noise(segments, best, len(names))
        last = gap == gaps[-1]
        best, _ = minimised(segments, best, sigma, iterations, gap, 1e-8 if last else 1e-4)
    return _finished(segments, best, _noise(segments, best, len(names)), defect, costs, log)


def free_parameters(plant: Plant, parameters: Sequence[str] | None) -> tuple[str, ...]:
    """The parameters named, checked; all that vary between variants if none are."""
    fields = parameter_fields(type(plant))
    if not fields:
        raise ValueError(
            f"plant: {plant.name} declares no parameters; write a class with systems.param, or use subspace"
        )
    if parameters is None:
        return tuple(name for name, f in fields.items() if f.metadata["vary"])
    return _chosen("parameters", parameters, fields, f"some of {plant.name}'s parameters:", least=1)


def _chosen(kind: str, chosen: Sequence[str], known: Iterable[str], what: str, least: int = 0) -> tuple[str, ...]:
    """Names, each known and given once."""
    if isinstance(chosen, str) or not isinstance(chosen, Iterable) or len(list(chosen)) < least:
        raise ValueError(f"{kind}: expected a list of {what} {', '.join(known)}, but found {chosen!r}")
    for name in chosen:
        checks.choice(kind, name, known, what)
    if twice := [name for name in chosen if list(chosen).count(name) > 1]:
        raise ValueError(f"{kind}: expected each name once, but found {twice[0]} twice: the two are indistinguishable")
    return tuple(chosen)


def _offset(log: Log, offsets: bool | Sequence[str]) -> np.ndarray:
    names = [s.name for s in log.outputs]
    if isinstance(offsets, bool):
        return np.full(len(names), offsets)
    offsets = _chosen("offsets", offsets, names, "outputs of the log:")
    return np.array([name in offsets for name in names])


def _cut(
    plant: Plant,
    log: Log,
    names: tuple[str, ...],
    method: str,
    segment: int | None,
    offsets: np.ndarray,
    substeps: int | None,
) -> Segments:
    """The log in one go, or in segments in which errors do not grow too much."""
    longest = max(len(u) for u, _ in log.records)
    segment = None if segment is None else min(checks.whole("segment", segment), longest)
    bounded = _bounded_growth(plant, log.dt, longest)
    if method == "auto":
        method = "multiple" if segment or bounded < longest else "single"
    if method == "single":
        length = None
    else:
        fits = bounded if bounded < longest else longest // 10
        length = segment if segment else int(np.clip(fits, 5, max(longest // 2, 5)))
    substeps = simulation.Problem.of(plant, dt=log.dt, substeps=substeps, optimum=False).substeps
    while True:
        made = Segments.of(plant, log, names, length, substeps, offsets)
        if segment or not length or length < 10 or not _far_off(made, log):
            return made
        length //= 2


def _far_off(segments: Segments, log: Log) -> bool:
    """True if segments of the plant as given leave the log far behind: no slope there says where to go."""
    z = jnp.zeros(len(segments.coordinates.names))
    ys = np.asarray(segments.outputs(z, jnp.asarray(first_states(segments, log)))[0])
    ranges = np.ptp(log.ys, axis=0)
    error = np.abs(ys - segments.ys)[segments.mask] / np.where(ranges > 0, ranges, np.inf)
    return not bool(np.all(error < _FAR))


def _bounded_growth(plant: Plant, dt: float, longest: int) -> int:
    """Samples, at most ``longest``, in which an error of the state grows by a factor of at most ``_GROWTH``."""
    scale = np.asarray(plant.scales[0])
    rate = np.asarray(plant.matrices()[0]) / scale[:, None] * scale * dt

    def grows(samples: int) -> bool:
        with np.errstate(all="ignore"):
            flow = scipy.linalg.expm(rate * samples)
        return not (np.isfinite(flow).all() and np.linalg.norm(flow, 2) <= _GROWTH)

    return max(bisect.bisect_left(range(1, longest + 1), True, key=grows), 1)


def _plausible(segments: Segments, log: Log) -> None:
    """Refuse signals that are far from anything that the plant means: most likely another unit."""
    plant = segments.plant
    scales, at = {s.name: s for s in (*plant.inputs, *plant.states)}, dict(log.signals)
    for signal, a in at.items():
        s = scales.get(signal.name)
        if s is not None and s.scale and np.abs(a - s.at).max() > 1e3 * s.scale + 1e3 * abs(s.at):
            raise ValueError(
                f"log: {signal.name} reaches {np.abs(a).max():.3g}, where {s.scale:g} {s.unit} is large for "
                f"{plant.name}: is it in another unit? read(..., outputs=['{signal.name} [deg]']) converts"
            )


def _candidates(segments: Segments, starts: int) -> tuple[np.ndarray, np.ndarray]:
    """The plant's own values and others within a factor of some four of them; more, all over the declared ranges."""
    c, random = segments.coordinates, np.random.default_rng(0)
    near = random.uniform(-1.4, 1.4, (starts, len(c.names)))
    near[:, c.span != 0] = np.abs(near[:, c.span != 0]) * 2 - 1
    near[0] = 0.0
    shape = (min(_SCREENED * (starts - 1), _MOST_SCREENED), len(c.names))
    far = random.uniform(c.low, c.high, shape)
    # in ranges that include zero, where there are no logarithms, small values count more too
    zero = -c.base / np.where(c.span != 0, c.span, 1.0)
    far = np.where(c.span != 0, zero + (far - zero) * random.uniform(size=shape), far)
    return np.clip(near, c.low, c.high), np.clip(far, c.low, c.high)


def _best_of_starts(
    segments: Segments,
    candidates: tuple[np.ndarray, np.ndarray],
    begin: np.ndarray,
    sigma: np.ndarray,
    iterations: int,
    gap: float,
) -> tuple[np.ndarray, np.ndarray]:
    """End of the search from the most promising parameter values, and the costs that they lead to.

    Those near the plant's own values and those all over the ranges take turns: the former alone may all lie in the
    valley of one poor minimum. What a start is worth shows after a few steps, more than at the start.
    """
    starts, ranked = len(candidates[0]), []
    for zs in candidates if starts > 1 else candidates[:1]:
        costs = np.asarray(segments.costs(jnp.asarray(zs), jnp.asarray(begin), jnp.asarray(sigma)))
        ranked.append(zs[np.argsort(np.where(np.isfinite(costs), costs, np.inf), kind="stable")])

    def searched(free: list[np.ndarray], most: int) -> list[tuple[np.ndarray, float]]:
        return [minimised(segments, v, sigma, most, gap, 1e-3) for v in free]

    turns = [z for pair in itertools.zip_longest(ranked[0][2:], *ranked[1:]) for z in pair if z is not None]
    first, rest = (
        [segments.packed(z, np.zeros(len(sigma)), begin) for z in zs]
        for zs in (ranked[0][:2], turns[: min(5 * starts, _MOST_COMPARED)])
    )
    reached = searched(first, iterations)
    least, most = min(cost for _, cost in reached), max(cost for _, cost in reached)
    if least < _EXPLAINED * segments.mask.sum() * len(sigma):
        # nothing is left to explain; where both ended there, one minimum from two sides, that is all
        rest = rest[: int(most > 1.02 * least)]
    elif starts > 2:
        brief = sorted(searched(rest, _BRIEF), key=lambda r: r[1])
        rest = [v for v, _ in brief[: min(starts - 2, max(6, starts // 2))]]
    reached += searched(rest if starts > 2 else [], iterations)
    return min(reached, key=lambda r: r[1])[0], np.array([cost for _, cost in reached])


def _outputs(segments: Segments, free: np.ndarray) -> np.ndarray:
    z, offsets, starts = segments.unpacked(free)
    return (np.asarray(segments.outputs(jnp.asarray(z), jnp.asarray(starts))[0]) + offsets)[segments.mask]


def _noise(segments: Segments, free: np.ndarray, k: int) -> np.ndarray:
    """Standard deviation of each output's error, less the freedom of the fit."""
    e = _outputs(segments, free) - segments.ys[segments.mask]
    used = (k + int(np.sum(~segments.follows)) * segments.plant.n) / e.shape[1] + segments.offsets
    rms = np.sqrt(np.sum(e**2, 0) / np.maximum(len(e) - used, 1))
    return np.maximum(rms, 1e-9 * np.maximum(segments.ys[segments.mask].std(0), 1e-12))


def _finished(
    segments: Segments, free: np.ndarray, sigma: np.ndarray, defect: float, costs: np.ndarray, log: Log
) -> FittedPlant:
    z, offsets, starts = segments.unpacked(free)
    k = len(z)
    J = segments.condensed(free, sigma, defect, 0.0)[1]
    # all but the parameters eliminated
    R = np.asarray(np.linalg.qr(np.concatenate([J[:, k:], J[:, :k]], 1), mode="r"))[-k:, -k:]
    found = {"information": R.T @ R, "noise": sigma, "offsets": offsets, "x0": starts, "starts": costs}
    return FittedPlant.of(segments, z, predicted=_outputs(segments, free), log=log, **found)

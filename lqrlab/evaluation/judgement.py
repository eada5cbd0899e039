"""The judge: controllers on plants ever further from those they were made for, beside the least that any could pay."""

import collections
import dataclasses
import hashlib
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab import systems
from lqrlab.compute import checks, files
from lqrlab.compute.linalg import quadratic
from lqrlab.evaluation import certificate
from lqrlab.evaluation.disturbed import disturbed
from lqrlab.evaluation.rungs import Rung, untold
from lqrlab.evaluation.scores import Score, evaluate
from lqrlab.simulation import LinearPolicy, Problem, Verdict, bind, verdict
from lqrlab.simulation.binding import check_controller
from lqrlab.systems import Plant

NO_ANSWER = -1
"""In the place of a verdict where a contender refused a plant, or raised an error."""
FAILED = 10.0
"""A loop that costs more than so many times the reference has failed, though it may not have diverged."""
_AT_ONCE = 256  # plants whose loops are simulated together
_EPISODE = 100  # samples of a disturbed loop between two events
_CALLS = 200  # of one step, to time it
_KIND = "lqrlab judgement"
Reference = Callable[[Problem], Callable[[Array], Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class Judgement:
    """What controllers cost above the least possible cost, rung by rung.

    Attributes:
        scores: rung → contender → score ``[variants, starts]``; not a number where the contender gave no answer.
        plants: rung → the family or design of each variant.
        refused: contender → rung → plant → why it gave no answer there, in its own words.
        seconds: contender → median and longest time of one step of one loop [s].
        digests: rung → digest of its plants and starts.
        left_out: rung → variants that have no stabilizing optimum to compare with.
    """

    scores: Mapping[str, Mapping[str, Score]]
    plants: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, Mapping[str, Mapping[str, str]]]
    seconds: Mapping[str, tuple[float, float]]
    digests: Mapping[str, str]
    left_out: Mapping[str, int]

    def __getitem__(self, name: str) -> "Judgement":
        """That of one contender."""
        scores = {rung: {name: by[name]} for rung, by in self.scores.items() if name in by}
        return dataclasses.replace(self, scores=scores)

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Rung → contender → percent of the loops diverged, failed (see :data:`FAILED`) and without an answer; the
        cost above the reference in percent, p99, p95 and median, of the loops with an answer; the largest input asked
        for beyond its limit, in percent of it, p95."""
        return {rung: {name: _numbers(score) for name, score in by.items()} for rung, by in self.scores.items()}

    def rows(self) -> list[dict[str, str | float]]:
        """The same as rows of a table, for pandas, with the time of a step."""
        rows: list[dict[str, str | float]] = []
        for rung, by in self.summary().items():
            for name, numbers in by.items():
                median, worst = self.seconds.get(name, (math.nan, math.nan))
                rows.append({"plants": rung, "controller": name, **numbers, "step": median, "slowest step": worst})
        return rows

    def by_plant(self, rung: str, controller: str) -> dict[str, dict[str, float]]:
        """Family or design → the same numbers, of one rung and contender."""
        score, names = self.scores[rung][controller], np.array(self.plants[rung])
        return {name: _numbers(score[np.flatnonzero(names == name)]) for name in dict.fromkeys(names.tolist())}

    def beside(self, other: "Judgement") -> "Judgement":
        """Both in one: the contenders of the other on the same plants and starts.

        Raises:
            ValueError: other plants or starts, by their digests; a contender that both have.
        """
        shared = [rung for rung in self.scores if rung in other.scores]
        changed = [rung for rung in shared if self.digests[rung] != other.digests[rung]]
        if changed or not shared:
            raise ValueError(
                f"other: expected a judgement on the same plants and starts, but {changed[0] if changed else 'no rung'} "
                f"{'has others' if changed else 'is shared'}; judge both with one seed"
            )
        both = {rung: {**self.scores[rung], **other.scores[rung]} for rung in shared}
        twice = [name for name in self.scores[shared[0]] if name in other.scores[shared[0]]]
        if twice:
            raise ValueError(f"other: expected other contenders, but both have {', '.join(twice)}")
        refused, seconds = ({**a, **b} for a, b in ((self.refused, other.refused), (self.seconds, other.seconds)))
        return dataclasses.replace(self, scores=both, refused=refused, seconds=seconds)

    def save(self, path: str | Path, **recipe: object) -> Path:
        """Write it as JSON, with what else is to be known of how it was made; :func:`read` reads it back."""
        rungs = {
            rung: {
                "plants": list(self.plants[rung]),
                "digest": self.digests[rung],
                "left_out": self.left_out[rung],
                "scores": {name: _written(score) for name, score in by.items()},
            }
            for rung, by in self.scores.items()
        }
        content = {"kind": _KIND, "recipe": recipe, "seconds": self.seconds, "refused": self.refused, "rungs": rungs}
        return files.write_json(path, content, ensure_ascii=False)


def read(path: str | Path) -> Judgement:
    """A judgement of a file that :meth:`Judgement.save` wrote.

    Raises:
        ValueError: it is none, or its numbers do not go together.
    """
    try:
        content = files.read_object(checks.path("path", path))
        if content["kind"] != _KIND:
            raise ValueError(f"its kind is {content['kind']!r:.40}")
        rungs = content["rungs"]
        scores = {r: {str(n): _score_of(row) for n, row in one["scores"].items()} for r, one in rungs.items()}
        for rung, by in scores.items():
            if any(len(score.ratio) != len(rungs[rung]["plants"]) for score in by.values()):
                raise ValueError(f"{rung} has scores of another number of plants")
        fields = (("plants", tuple), ("digest", str), ("left_out", int))
        plants, digests, left_out = ({r: kind(one[name]) for r, one in rungs.items()} for name, kind in fields)
        seconds = {str(name): (float(a), float(b)) for name, (a, b) in content["seconds"].items()}
        return Judgement(scores, plants, dict(content["refused"]), seconds, digests, left_out)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected a file of Judgement.save, but found another ({error})") from None


def _written(score: Score) -> dict[str, object]:
    """A score in JSON; infinity is the verdict's."""
    finite = np.asarray(score.ratio, float)
    ratio = [[None if not math.isfinite(a) else float(f"{a:.9g}") for a in row] for row in finite.tolist()]
    found: dict[str, object] = {"ratio": ratio, "verdict": np.asarray(score.verdict).tolist()}
    found |= {"lost": np.isposinf(finite).tolist(), "reference": score.reference}
    return found if score.asked is None else found | {"asked": np.round(np.asarray(score.asked), 6).tolist()}


def _score_of(row: Mapping[str, Any]) -> Score:
    ratio = np.array([[math.nan if a is None else float(a) for a in line] for line in row["ratio"]])
    ratio = np.where(np.array(row["lost"], bool), np.inf, ratio)
    asked = None if "asked" not in row else jnp.asarray(np.array(row["asked"], float))
    judged = jnp.asarray(np.array(row["verdict"], np.int8))
    if judged.shape != ratio.shape:
        raise ValueError("verdicts of another shape than the costs")
    return Score(jnp.asarray(ratio), judged, jnp.zeros(ratio.shape), str(row["reference"]), asked)


def _numbers(score: Score) -> dict[str, float]:
    """What a table shows of a score, tails first."""
    ratio, judged = np.asarray(score.ratio, float).ravel(), np.asarray(score.verdict).ravel()
    answered = judged >= 0
    gap, some = 100 * (ratio[answered] - 1), bool(answered.any())
    known = gap[~np.isnan(gap)]
    diverged = judged[answered] == Verdict.DIVERGED
    quantiles = np.quantile(known, (0.99, 0.95, 0.5), method="higher") if len(known) else (math.nan,) * 3
    found = {
        "diverged": 100 * float(np.mean(diverged)) if some else math.nan,
        "failed": 100 * float(np.mean(~(ratio[answered] <= FAILED) & ~np.isnan(ratio[answered]))) if some else math.nan,
        **{name: float(q) for name, q in zip(("p99", "p95", "median"), quantiles)},
        "no answer": 100 * float(np.mean(~answered)),
    }
    if score.asked is not None:
        asked = np.asarray(score.asked).ravel()[answered]
        found["beyond limit"] = 100 * float(np.quantile(asked, 0.95, method="higher")) if some else math.nan
    if score.reference == "constrained":
        found["no optimum"] = 100 * float(np.mean(np.isnan(gap))) if some else math.nan
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Case:
    """A rung, ready to be run: only the plants that have an optimum, padded to one size."""

    rung: Rung
    names: tuple[str, ...]
    left_out: int
    problem: Problem
    x0: Array
    then: Problem | None
    key: Array
    digest: str
    reference: Reference | None

    def acting(self, problem: Problem) -> Problem:
        """Plants within the limits and under the noise of the rung."""
        if self.rung.limit is not None:
            room = self.rung.limit * problem.scale_u
            around = 0.0 if problem.u_eq is None else problem.u_eq
            problem = problem.limited((around - room, around + room))
        noise = self.rung.noise * problem.scale_x
        return problem.disturbed(noise=noise, sensor_noise=noise) if self.rung.noise else problem

    def some(self, at: Any) -> "_Case":
        """The case of some plants, still padded."""
        chosen = {"problem": self.problem[at], "x0": self.x0[at], "then": None if self.then is None else self.then[at]}
        return dataclasses.replace(self, names=tuple(np.array(self.names)[at].tolist()), **chosen)

    def alone(self, family: str) -> "_Case":
        """The case of one family's plants as they are: not padded, with the plant's own equations and names."""
        at = np.flatnonzero(np.array(self.names) == family)
        here = self.some(at)
        if self.rung.told == "units":
            return here

        def own(batches: Mapping[str, Plant]) -> Problem:
            problem = Problem.of(batches[family], linear=True)
            return self.acting(problem[np.flatnonzero(np.asarray(problem.has_optimum))])

        problem = own(self.rung.plants)
        x0 = here.x0[..., : problem.n]
        return dataclasses.replace(here, problem=problem, x0=x0, then=own(self.rung.then) if self.rung.then else None)


def judge(
    controllers: Mapping[str, object],
    plants: Mapping[str, Rung] | Mapping[str, Plant] | Plant,
    *,
    key: PRNGKeyArray,
    starts: int = 4,
    reference: Reference | None = None,
    progress: Callable[[str, str], None] | None = None,
) -> Judgement:
    """Compare any controllers with the least cost that any controller could pay, on any plants.

    Costs of gains without limits are exact, over infinite time, by Lyapunov equations, and over x0ᵀP x0; loops of other
    policies are simulated. Within limits the reference is the constrained optimum; under noise, pushes and changes of
    the plant the exact LQR of the plant at hand, under the same. A loop that diverges costs infinitely much and is in
    all quantiles. A contender that refuses a plant, or raises an error, has no answer there: its words are kept.

    Args:
        controllers: name → what :func:`lqrlab.simulation.bind` takes; a table of controllers by family; or what makes
            gains for the plants of a rung, such as ``rungs.FamilyGain()``.
        plants: the rungs, as ``rungs.suite`` makes them; or plants by name; or one plant, or a batch.
        key: of starts, noise and pushes; those of a rung do not depend on the others.
        starts: initial states a variant.
        reference: problem → the least cost of starts within its limits, as ``predictive.reference`` makes; for rungs
            with limits.
        progress: called with a rung and a contender before they are judged.

    >>> cart_pole = systems.sample("cart_pole", key=jax.random.key(0), num=3, spread=0.2)
    >>> found = evaluation.judge({"detuned": lambda problem: 0.9 * problem.K}, cart_pole, key=jax.random.key(1))
    >>> found.summary()["cart_pole"]["detuned"]["diverged"]
    0.0
    """
    rungs = _as_rungs(plants)
    _check(controllers, rungs, reference)
    checks.random_key(key)
    starts = checks.whole("starts", starts)
    cases = {name: _prepared(rung, _key_of(key, name), starts, reference) for name, rung in rungs.items()}
    scores: dict[str, dict[str, Score]] = {name: {} for name in cases}
    refused: dict[str, dict[str, dict[str, str]]] = collections.defaultdict(dict)
    seconds: dict[str, tuple[float, float]] = {}
    for (rung, case), (name, controller) in itertools.product(cases.items(), controllers.items()):
        if progress is not None:
            progress(rung, name)
        scores[rung][name], words = _scored(controller, case)
        if words:
            refused[name][rung] = words
        if name not in seconds and case.rung.told == "everything" and (timed := _timed(controller, case)):
            seconds[name] = timed
    plants_of, digests, left_out = (
        {r: getattr(c, f) for r, c in cases.items()} for f in ("names", "digest", "left_out")
    )
    return Judgement(scores, plants_of, dict(refused), seconds, digests, left_out)


def _as_rungs(plants: Any) -> dict[str, Rung]:
    """What was given as rungs."""
    if isinstance(plants, Plant):
        plants = {plants.name: plants}
    if not isinstance(plants, Mapping) or not plants:
        raise ValueError(f"plants: expected rungs, or plants by name, but found {plants!r:.80}")
    if all(isinstance(one, Rung) for one in plants.values()):
        return dict(plants)
    batches = {}
    for name, plant in plants.items():
        systems.check_plant(plant)
        batches[name] = plant if plant.batch_shape else jax.tree.map(lambda a: jnp.asarray(a)[None], plant)
    return {name: Rung({name: batch}) for name, batch in batches.items()}


def _check(controllers: Mapping[str, object], rungs: Mapping[str, Rung], reference: Reference | None) -> None:
    """Refuse what is no controller, and limits without what to compare with."""
    if not isinstance(controllers, Mapping) or not controllers:
        raise ValueError(f"controllers: expected a table of names and controllers, but found {controllers!r:.80}")
    for controller in controllers.values():
        if not isinstance(controller, Mapping) and not hasattr(controller, "gains"):
            check_controller(controller)
    limited = [name for name, rung in rungs.items() if rung.limit is not None]
    if limited and reference is None:
        raise ValueError(
            f"reference: expected one for {limited[0]!r}, since a loop within limits is compared with the least cost "
            "within them; reference=predictive.reference computes it"
        )


def _key_of(key: PRNGKeyArray, name: str) -> Array:
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def _prepared(rung: Rung, key: Array, starts: int, reference: Reference | None) -> _Case:
    """Plants with an optimum, their starts and what happens to them."""
    batches = list(rung.plants.values())
    names = [name for name, batch in rung.plants.items() for _ in range(len(batch))]
    problem = (untold if rung.told == "units" else Problem.of)(batches)
    then = Problem.of(list(rung.then.values())) if rung.then else None
    good = np.asarray(problem.has_optimum) & (True if then is None else np.asarray(then.has_optimum))
    at = np.flatnonzero(good)
    if not len(at):
        raise ValueError("plants: none has a stabilizing optimum to compare with; control.lqrd on one says why")
    problem, then = problem[at], None if then is None else then[at]
    normal = jax.random.normal(key, (len(names), starts, systems.N_MAX))[at]
    exists = problem.coordinates.state_mask[:, None, : problem.n]
    x0 = rung.size * normal[..., : problem.n] * exists * problem.scale_x[:, None]
    seen = hashlib.sha256(repr((rung.limit, rung.size, rung.noise, rung.events, rung.told, names)).encode())
    for leaf in jax.tree.leaves([*batches, *rung.then.values(), normal]):
        seen.update(np.asarray(leaf, np.float32).tobytes())
    kept = tuple(names[i] for i in at)
    best = None if rung.limit is None else reference
    case = _Case(rung, kept, len(names) - len(at), problem, x0, then, key, seen.hexdigest(), best)
    return dataclasses.replace(case, problem=case.acting(problem), then=None if then is None else case.acting(then))


def _scored(controller: Any, case: _Case) -> tuple[Score, dict[str, str]]:
    """A contender's score on all plants of a rung, and why it has none on some."""
    if hasattr(controller, "gains"):
        controller = controller.gains(case.names, case.problem)
        there = np.flatnonzero(np.isfinite(np.asarray(controller)).all((-1, -2)))
        words = {case.names[i]: "it has no gain for this plant" for i in range(len(case.names)) if i not in there}
        found = _run(controller[there], case.some(there)) if len(there) else None
        return _spread(case, [] if found is None else [(there, found)]), words
    if not isinstance(controller, Mapping):
        try:
            return _run(controller, case), {}
        except Exception:  # what a contender cannot do with many families at once, it may do with each
            pass
    words, parts = {}, []
    for family in dict.fromkeys(case.names):
        at = np.flatnonzero(np.array(case.names) == family)
        try:
            if isinstance(controller, Mapping) and family not in controller:
                raise ValueError(f"there is no controller for {family}")
            own = controller[family] if isinstance(controller, Mapping) else controller
            parts.append((at, _run(own, case.alone(family))))
        except Exception as error:  # a contender's fault costs its own rows
            words[family] = f"{'' if isinstance(error, ValueError) else type(error).__name__ + ': '}{error}"
    return _spread(case, parts), words


def _spread(case: _Case, parts: Sequence[tuple[np.ndarray, Score]]) -> Score:
    """Scores of some plants in the places of all; no answer in the others."""
    shape = case.x0.shape[:2]
    ratio, judged = np.full(shape, np.nan), np.full(shape, NO_ANSWER, np.int8)
    asked = np.zeros(shape) if any(part.asked is not None for _, part in parts) else None
    for at, part in parts:
        ratio[at], judged[at] = part.ratio, part.verdict
        if asked is not None:
            asked[at] = part.asked
    reference = parts[0][1].reference if parts else "unconstrained"
    return Score(jnp.asarray(ratio), jnp.asarray(judged), jnp.zeros(shape), reference, asked)


def _run(controller: Any, case: _Case) -> Score:
    """The score of what :func:`lqrlab.simulation.bind` takes, on all plants of a case."""
    if case.rung.noise or case.rung.events:
        return _disturbed(controller, case)
    policy = bind(controller, case.problem)
    if isinstance(policy, LinearPolicy) and case.rung.limit is None:
        scaled = case.problem.scaled()
        K = jnp.broadcast_to(policy.K, case.problem.K.shape).astype(case.problem.K.dtype)
        return _of_gain(scaled, case.problem.units.scale_state(case.x0), case.problem.units.scale("K", K))
    gains = getattr(policy, "K", None) if type(policy) is LinearPolicy else None
    parts = []
    for at in (slice(at, at + _AT_ONCE) for at in range(0, len(case.names), _AT_ONCE)):
        some = case.some(at)
        one = controller if gains is None or gains.ndim < 3 else gains[at]
        least = "unconstrained" if case.reference is None else case.reference(some.problem)
        parts.append(evaluate(one, some.problem, key=case.key, x0=some.x0, reference=least))
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


@jax.jit
def _of_gain(optimum: Problem, x0: Array, gain: Float[Array, "V 6 12"]) -> Score:
    """The exact score of constant gains in scaled coordinates."""
    extra = certificate.extra_cost(gain, optimum)
    stable = jnp.isfinite(extra[..., 0, 0])[:, None]
    least = optimum.optimal_cost(x0)
    above = quadratic(jnp.where(stable[..., None], extra, 0.0), x0) / least
    judged = jnp.broadcast_to(verdict.of_gain(optimum.closed_loop(gain))[:, None], above.shape)
    # a cost beyond all numbers is that of a loop that has left the model, whatever its poles say
    judged = jnp.where(stable | (judged != Verdict.CONVERGED), judged, Verdict.DIVERGED).astype(jnp.int8)
    return Score(jnp.where(stable, 1 + above, jnp.inf), judged, jnp.zeros_like(above))


def _disturbed(controller: Any, case: _Case) -> Score:
    """The score of what is bound, under the noise and the events of the rung."""
    problem, events = case.problem, case.rung.events
    policy = bind(controller, problem.hidden() if case.rung.told == "units" else problem)
    if any(bool(np.isnan(a).any()) for a in jax.tree.leaves(policy) if jnp.issubdtype(a.dtype, jnp.floating)):
        raise ValueError("it needs A and B, which it is not told here")
    pushes = [jnp.zeros_like(case.x0)]
    for i in range(len(events)):
        normal = jax.random.normal(jax.random.fold_in(case.key, i), case.x0.shape) * (case.x0 != 0)
        length = jnp.linalg.norm(normal, axis=-1, keepdims=True)
        pushes.append(normal / length * problem.scale_x[:, None])
    plants = [problem, *(case.then if event == "another plant" else problem for event in events)]
    return disturbed(tuple(plants), policy, case.x0, jnp.stack(pushes), case.key, _EPISODE)


def _timed(controller: Any, case: _Case) -> tuple[float, float] | None:
    """Median and longest time of one step of one loop of the rung's first plant [s]; None if it does not control it."""
    try:
        first = case.alone(case.names[0]).some(np.zeros(1, int))
        named = controller.get(case.names[0]) if isinstance(controller, Mapping) else controller
        if hasattr(named, "gains"):
            named = LinearPolicy(first.problem.K)
        policy = bind(named, first.problem)
        call = jax.jit(lambda policy, carry, x: policy(carry, x))
        x, carry, taken = first.x0[:, 0], policy.init((1,)), []
        for _ in range(_CALLS + 2):
            begin = time.perf_counter()
            carry, _ = jax.block_until_ready(call(policy, carry, x))
            taken.append(time.perf_counter() - begin)
    except Exception:  # its words are kept where its loops are run
        return None
    return float(np.median(taken[2:])), max(taken[2:])

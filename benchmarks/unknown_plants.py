"""Controllers of unknown plants (A, B not given), side by side: how good, not how fast."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.adaptive_prior import TRAINED, told, variants
from benchmarks.baseline_grid import BaselineTrial, tune_baselines
from benchmarks.drawn_baselines import baseline, baselines
from benchmarks.first_contact import first_contact
from benchmarks.measurement import Parts, Row, main, row
from lqrlab import learning, systems, unknown
from lqrlab.dataset import random_systems
from lqrlab.simulation import Policy, Problem, Told

Controller = Callable[[Problem], Policy]
NOISES = (0.0, 0.01, 0.05)
"""Standard deviations of the disturbance of the state at each step, in units of the state's scale."""
_FIT = 50  # plants of each family that priors are fitted to
_KNOWN, _TUNING, _TEST, _CONTACT = 11, 7, 12, 5000  # seeds of plants, never the same


@dataclasses.dataclass(frozen=True)
class Size:
    """Number of loops: variants of each trained and of each other family, starts of each, seeds."""

    trained: int
    others: int
    num_initial: int
    seeds: int


FULL = Size(8, 3, 2, 3)
"""Some minutes on two cores."""
QUICK = Size(1, 1, 1, 1)
"""A minute."""


@dataclasses.dataclass(frozen=True)
class UnknownRow:
    """Cost of a controller's loops above the exact LQR's; each figure (median, least, largest) over seeds.

    Attributes:
        controller: its name.
        plants: which.
        noise: standard deviation of the disturbance.
        loops: of one seed.
        median, p95: of the excess cost in percent; inf where the loop failed.
        failed: percent of the loops that diverged or cost more than ten times the optimum.
        learned: p95 of the steps after which a loop costs no more than a tenth above the optimum.
    """

    controller: str
    plants: str
    noise: float
    loops: int
    median: tuple[float, float, float]
    p95: tuple[float, float, float]
    failed: tuple[float, float, float]
    learned: tuple[float, float, float]


def bench_unknown(size: Size = FULL, controllers: Mapping[str, Controller] | None = None) -> Iterator[UnknownRow]:
    """Regulate plants of the trained families and of all others, ±20 %, with each controller, seed by seed.

    Args:
        size: :data:`FULL` or :data:`QUICK`.
        controllers: name → function from a problem to a policy; if left out, the adaptive regulator with each
            prior of the package and with plants at large alone, and the baselines.
    """
    tests = [_tests(size, seed) for seed in range(size.seeds)]
    for name, made in (controllers or _contenders()).items():
        regrets = [
            unknown.score(made, plants, key=jax.random.key(seed), num_initial=size.num_initial)
            for seed, (plants, _) in enumerate(tests)
        ]
        yield from _rows(name, *tests[0], regrets)


@dataclasses.dataclass(frozen=True)
class ContactRow:
    """A controller in :func:`benchmarks.first_contact.first_contact`; each figure (median, least, largest) over seeds.

    Attributes:
        controller: its name.
        plants: which distribution.
        noise, told: standard deviation of the disturbance, and of what the controller is told of it.
        episode: of the three.
        loops: of one seed.
        median: of the episode's excess cost in percent; inf where the loop failed by its end.
        failed: percent of the loops that failed by its end.
    """

    controller: str
    plants: str
    noise: float
    told: float
    episode: str
    loops: int
    median: tuple[float, float, float]
    failed: tuple[float, float, float]


CONDITIONS = (0.0, 0.0), (0.01, 0.01), (0.05, 0.05), (0.05, 0.01), (0.05, 0.0)
"""Noise, and what is told of it."""


def bench_contact(
    num: int = 100,
    seeds: int = 3,
    controllers: Mapping[str, Controller] | None = None,
    conditions: tuple[tuple[float, float], ...] = CONDITIONS,
) -> Iterator[ContactRow]:
    """Plants of three declared distributions: regulated, pushed, replaced.

    The distributions: the fifty families that no prior has seen, parameters ± 50 %, replaced by another variant; random
    systems of :func:`lqrlab.dataset.random_systems`, replaced by the same with its inputs reversed; ẋ = Ax + Bu with
    normal entries, A's of variance 1/n, n from 2 to 6, one or two inputs, sampled at 0.1, replaced alike.

    Args:
        num: plants of each distribution.
        seeds: of plants, starts, pushes and noise.
        controllers: name → function from a problem to a policy; if left out, the adaptive regulator with each prior of
            the package and with plants at large alone, recursive ridge regression, optimism,
            Thompson sampling, and explore, then commit.
        conditions: noise, and what is told of it.
    """
    controllers = controllers or {
        **_shipped(),
        **{name: baseline(name, ()) for name in ("ridge", "optimism", "Thompson sampling", "explore, then commit")},
    }
    drawn = [_distributions(num, seed) for seed in range(seeds)]
    for (name, made), kind, (noise, claimed) in itertools.product(controllers.items(), drawn[0], conditions):
        found = []
        for seed, kinds in enumerate(drawn):
            before, after = kinds[kind]
            before = before.disturbed(noise=np.full((len(before), 1), claimed))
            contact = first_contact(made, before, after, key=jax.random.key(seed), noise=noise)
            found.append(contact.summary())
        for episode in found[0]:
            median, failed = (_spread([each[episode][of] for each in found]) for of in ("median", "failed"))
            yield ContactRow(name, kind, noise, claimed, episode, len(drawn[0][kind][0]), median, failed)


def bench_bound(num: int = 1000, seeds: int = 3) -> Iterator[Row]:
    """Dense systems: cost over the LQR's of the best controller that is told everything after its first step.

    No controller that is told nothing does better on average over these plants, for it knows less. B and −B are equally
    likely and have the same cost to go, so the best first input is zero, whatever the state.
    """
    for sigma in NOISES:
        means = []
        for seed in range(seeds):
            plants, _ = _distributions(num, seed)["dense systems"]
            A, P, mask = (np.asarray(a) for a in (plants.A, plants.P, plants.coordinates.state_mask))
            x = np.random.default_rng(seed).normal(size=mask.shape) * mask
            moved, noise = np.einsum("bij,bj->bi", A, x), 100 * sigma**2 * np.trace(P, axis1=1, axis2=2)
            told, optimum = (np.einsum("bi,bij,bj->b", each, P, each) for each in (moved, x))
            means.append(np.mean((np.sum(x * x, 1) + told + noise) / (optimum + noise)))
        yield row(f"dense systems, σ = {sigma:g}: lower bound of the mean cost over the optimum", np.mean(means), "")
        yield row(
            f"dense systems, σ = {sigma:g}: its standard error over seeds", np.std(means, ddof=1) / seeds**0.5, ""
        )


def bench_look_ahead(num: int = 50, seeds: int = 3, sigma: float = 0.01, steps: int = 10) -> Iterator[Row]:
    """The adaptive regulator with and without look-ahead, in the first 100 steps on the three distributions.

    On dense systems also with a prior of their own form and size.
    """
    drawn = dataclasses.replace(unknown.ridge(caution=0.12), probe=jnp.array([0.034, 1.5, 0.24]))
    priors = {
        "learned prior": learning.pretrained("adaptive"),
        "their own prior": dataclasses.replace(drawn, dense=jnp.array([[0.05, 0.1, 0.0]])),
    }
    plants = [_distributions(num, seed) for seed in range(seeds)]
    for kind, (name, prior), ahead in itertools.product(plants[0], priors.items(), (False, True)):
        if name == "their own prior" and kind != "dense systems":
            continue

        def made(problem: Problem, prior: unknown.Prior = prior, ahead: bool = ahead) -> Policy:
            policy = unknown.adaptive(problem, prior)
            return unknown.look_ahead(policy, steps=steps) if ahead else policy

        found = []
        for seed, kinds in enumerate(plants):
            problem = kinds[kind][0].disturbed(noise=np.full((num, 1), sigma))
            regret = unknown.score(made, problem, key=jax.random.key(seed), num_initial=1, num_steps=100)
            found.append(regret.summary())
        for what in ("failed", "median"):
            median, least, most = _spread([each[what] for each in found])
            how = "looking ahead" if ahead else "alone"
            yield row(f"{kind}, σ = {sigma:g}, {name}, {how}: {what} [{least:.3g}, {most:.3g}]", median, "%")


def _distributions(num: int, seed: int) -> dict[str, tuple[Problem, Problem | None]]:
    """Plants and what replaces them, None for the same with reversed inputs."""
    others = [name for name in systems.names() if name not in TRAINED]
    keys = jax.random.split(jax.random.key(_CONTACT + seed), (2, len(others)))
    each = -(-num // len(others))
    families = (
        unknown.problem_of([systems.sample(name, key=k, num=each, spread=0.5) for name, k in zip(others, row)])
        for row in keys
    )
    before, after = (one[:num] for one in families)
    wide = random_systems(jax.random.key(_CONTACT + seed), num).astype(float).limited((-20.0, 20.0))
    rng = np.random.default_rng(_CONTACT + seed)
    dense = []
    for n, m in zip(rng.integers(2, 7, num), rng.integers(1, 3, num)):
        A, B = rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(n, m))
        dense.append(systems.from_matrices(A, B, dt=0.1))
    kinds = {"other families": (before, after), "random systems": (wide, None)}
    return kinds | {"dense systems": (unknown.problem_of(dense), None)}


def _contenders() -> dict[str, Controller]:
    return _shipped() | baselines(_training())


def _shipped() -> dict[str, Controller]:
    """Adaptive regulators with the priors that come with the package, and with plants at large alone."""
    known, guessed = (learning.pretrained(name) for name in ("adaptive", "student"))
    priors = {"adaptive": known, "student": guessed, "no family": dataclasses.replace(guessed, guess=None)}
    return {name: partial(unknown.adaptive, prior=prior) for name, prior in priors.items()}


def tune_unknown() -> Iterator[BaselineTrial]:
    """Every setting of every baseline, on plants of the trained families that are in no table."""
    plants, _ = _drawn([systems.names().index(name) for name in TRAINED], _TUNING, 4)
    yield from tune_baselines(_training(), _noisy(plants), key=jax.random.key(_TUNING))


def _drawn(which: list[int] | range, seed: int, num: int) -> tuple[Problem, np.ndarray]:
    """``num`` plants of each of these families, and which family each is of; other seeds have other plants."""
    names = systems.names()
    batches = [variants(names[i], seed, _FIT) for i in which]
    chosen = np.tile(np.arange(_FIT) < num, len(batches))
    return unknown.problem_of(batches)[chosen], np.repeat(np.arange(len(batches)), num)


def _training() -> list[Told]:
    """The plants that a prior may know, a batch for each of the trained families."""
    return [told(variants(name, _KNOWN, _FIT)) for name in TRAINED]


def _tests(size: Size, seed: int) -> tuple[Problem, np.ndarray]:
    """Fresh plants of all families under each noise, and their families in the order of ``systems.names()``."""
    names = systems.names()
    plants, family = _drawn(range(len(names)), _TEST + 100 * seed, max(size.trained, size.others))
    position = np.arange(len(plants)) - np.searchsorted(family, family)
    allowed = np.array([size.trained if name in TRAINED else size.others for name in names])
    kept = np.flatnonzero(position < allowed[family])
    return _noisy(plants[kept]), np.tile(family[kept], len(NOISES))


def _noisy(plants: Problem) -> Problem:
    """The same plants under each of the noises, one after another."""
    num = len(plants)
    noise = np.repeat(NOISES, num)[:, None]
    return plants[np.tile(np.arange(num), len(NOISES))].disturbed(noise=noise)


def _rows(name: str, plants: Problem, family: np.ndarray, regrets: list[unknown.Regret]) -> Iterator[UnknownRow]:
    names, known = systems.names(), plants.told("units")
    noise, trained = np.asarray(known.noise), np.isin(np.array(names)[family], TRAINED)
    n, m = (np.asarray(mask).sum(-1) for mask in (known.state_mask, known.input_mask))
    small = ~trained & (n <= 6) & (m <= 4)
    kinds = {
        f"{len(TRAINED)} trained families": trained,
        f"{len(set(family[~trained]))} never trained on": ~trained,
        f"{len(set(family[small]))} of those, n ≤ 6, m ≤ 4": small,
    }
    for kind, chosen in kinds.items():
        for level in NOISES:
            at = chosen & np.isclose(noise, level)
            found = [regret[at].summary() for regret in regrets]
            figures = {
                key: _spread([each[of] for each in found])
                for key, of in (("median",) * 2, ("p95",) * 2, ("failed",) * 2, ("learned", "learned_p95"))
            }
            yield UnknownRow(name, kind, level, regrets[0].ratio[at].size, **figures)


def _spread(values: list[float]) -> tuple[float, float, float]:
    """Median, least and largest."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]


_FEW = "ridge", "optimism"  # in the quick table

PARTS: Parts = {
    "table": (bench_unknown, {"size": QUICK, "controllers": {name: baseline(name, ()) for name in _FEW}}),
    "tune": (tune_unknown, {}),
    "contact": (bench_contact, {"num": 4, "seeds": 1, "conditions": CONDITIONS[1:2]}),
    "bound": (bench_bound, {"num": 100, "seeds": 2}),
    "look_ahead": (bench_look_ahead, {"num": 2, "seeds": 1, "steps": 2}),
}

if __name__ == "__main__":
    main(PARTS)

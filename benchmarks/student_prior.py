"""The recipe of the prior with a network, the student, that comes with the package.

The network sees the regression of the history by the adaptive regulator's plants at large, which holds all that a
linear plant's history says of it, and guesses the plant. It is trained on its own loops (DAgger), of ten families, of
plants like those and of random systems, by what its gains cost above the optimal ones.
"""

import dataclasses
import io
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from benchmarks.adaptive_prior import TRAINED, variants
from benchmarks.unknown_plants import NOISES
from lqrlab import learning, unknown
from lqrlab.compute.files import write_atomic
from lqrlab.dataset import random_systems
from lqrlab.extensions.unknown import adaptive_policy as regulators
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown.prior import Guess, Seen, Z
from lqrlab.simulation import Problem, Told
from lqrlab.systems import M_MAX, N_MAX

FILE = Path("data/benchmarks/student.npz")
DATA = f"{len(TRAINED)} families ±20 %, plants like them, and random linear systems"
_RECIPE = 4  # to be raised with every change of what is trained or how, so that no older file goes on
_FAR = 1e3  # a state at which a loop ends
_UNTOLD, _PUSHED, _REVERSED = 0.25, 0.25, 0.15  # shares of loops: noise told too small; a push; inputs reverse
_EARLY, _LATE = 16, 8  # steps of a loop that are learned from: the first, and some of the others
_BATCH = 2048
_SHARES = (0.35, 0.2, 0.45)  # of loops: families, plants like them, random systems


def prior() -> unknown.Prior:
    """The plants at large that come with the package, without any family."""
    with jax.ensure_compile_time_eval():
        return dataclasses.replace(learning.pretrained("adaptive"), known=None)


def with_guess(network: Guess) -> unknown.Prior:
    """The same with a network."""
    return dataclasses.replace(prior(), guess=network)


class TaughtPlants(NamedTuple):
    """Plants, scaled, with their optimum for Q = R = I, and what is told of them ``[num, …]``."""

    told: Told
    A: Array
    B: Array
    K: Array
    P: Array

    @classmethod
    def of(cls, problem: Problem, steps: Array | None = None, moderate: float = np.inf) -> Self:
        """Each plant under each noise; those without an optimum, or with larger gains than ``moderate``, left out."""
        gain = np.abs(np.asarray(problem.K)).max((-1, -2))
        kept = np.flatnonzero(np.asarray(problem.has_optimum) & (gain < moderate))
        problem = problem[kept]
        each = []
        for noise in NOISES:
            told = problem.disturbed(noise=noise).told("units")
            told = told if steps is None else dataclasses.replace(told, steps=steps[kept])
            each.append(cls(told, problem.A, problem.B, problem.K, problem.P))
        return jax.tree.map(lambda *a: jnp.concatenate(a), *each)


def plants(num: int, seed: int) -> tuple[TaughtPlants, TaughtPlants, TaughtPlants]:
    """Families ±20 %, plants like them, and random systems, none of them in a test."""
    families = unknown.problem_of([variants(name, 121 + seed, -(-num // 40)) for name in TRAINED])
    random = random_systems(jax.random.key(77 + seed), 2 * num, dense=True).astype(float).limited((-20.0, 20.0))
    rng = np.random.default_rng(seed)
    alike = _alike(families, rng, num)
    return (
        TaughtPlants.of(families),
        TaughtPlants.of(*alike, moderate=10.0),
        TaughtPlants.of(random, _steps(random, rng), 10.0),
    )


def _steps(random: Problem, rng: np.random.Generator) -> Array:
    """What units would tell of random systems, which have none: where a state is another's integral how far that moves
    it, elsewhere anything."""
    A, B = np.asarray(random.A), np.asarray(random.B)
    moved = A - np.eye(N_MAX)
    rest = np.sqrt(np.maximum(np.sum(moved**2, 2) + np.sum(B**2, 2), 0))[:, :, None]
    integral = (moved > 0.02) & (moved > 0.9 * rest)
    return jnp.asarray(np.where(integral, moved, 0.1 * np.exp(rng.normal(size=A.shape))))


def _alike(families: Problem, rng: np.random.Generator, num: int) -> tuple[Problem, Array]:
    """Plants that are like those of families and of none, most of them in other units, and their steps: what is not
    kinematics is multiplied entry by entry."""
    some = families[rng.integers(0, len(families), num)]
    told, A, B = some.told("units"), np.asarray(some.A), np.asarray(some.B)
    exists, steps, i = np.asarray(told.state_mask), np.asarray(told.steps), np.arange(N_MAX)
    half = (exists.sum(-1) // 2).astype(int)[:, None, None]
    paired = (i == i[:, None] + half) & (i[:, None] < half)
    moved = paired & (np.abs(A - steps) < 0.3 * np.abs(steps))
    position = moved.any(-1, keepdims=True)
    still = np.eye(N_MAX) * exists[:, None]

    def factors(shape: tuple[int, ...]) -> np.ndarray:
        return np.exp(0.6 * rng.normal(size=shape)) * np.where(rng.random(shape) < 0.15, -1, 1)

    size = np.exp(0.5 * rng.normal(size=(num, 1, 1)))
    more = (rng.random(A.shape) < 0.1) * rng.normal(size=A.shape) * exists[:, :, None] * exists[:, None]
    more = 0.3 * more * np.abs(A - still).max((1, 2), keepdims=True)
    A = np.where(position, A, still + (A - still) * factors(A.shape) * size + more)
    B = B * np.where(position, 1.0, factors(B.shape) * size)
    signs = np.where(rng.random((num, N_MAX)) < 0.5, -1.0, 1.0)
    signs = np.where(i < half[:, 0], signs, np.take_along_axis(signs, np.maximum(i - half[:, 0], 0), 1))  # of pairs
    A, B = A * signs[:, :, None] * signs[:, None], B * signs[:, :, None] * rng.choice([-1.0, 1.0], (num, 1, M_MAX))
    unit = np.exp(0.4 * rng.normal(size=(num, N_MAX))) ** (rng.random((num, 1)) < 0.5)
    A, steps = (a * unit[:, :, None] / unit[:, None] for a in (A, steps))
    B = B * unit[:, :, None]
    undesigned: Any = dict.fromkeys(("K", "P", "plant"))
    made = dataclasses.replace(some, A=jnp.asarray(A), B=jnp.asarray(B), **undesigned).solved(check=False)
    return made, jnp.asarray(steps)


class Lesson(NamedTuple):
    """A step of a loop: which loop, of its inputs' sign; what is known, the state, whether it counts."""

    loop: Array
    sign: Array
    seen: Seen
    x: Array
    counts: Array


@partial(jax.jit, static_argnums=(3, 4))
def lessons(
    network: Guess, groups: tuple[TaughtPlants, ...], key: PRNGKeyArray, num: int, num_steps: int
) -> tuple[TaughtPlants, Lesson]:
    """TaughtPlants that the student runs, some of each group, and steps of them."""
    pick, run = jax.random.split(key)
    chosen = []
    for group, share, each in zip(groups, _SHARES, jax.random.split(pick, len(groups))):
        rows = jax.random.randint(each, (round(share * num),), 0, len(group.A))
        chosen.append(jax.tree.map(lambda a, rows=rows: a[rows], group))
    loops = jax.tree.map(lambda *a: jnp.concatenate(a), *chosen)
    keys = jax.random.split(run, len(loops.A))
    found = jax.vmap(partial(_run, network, num_steps=num_steps))(jnp.arange(len(keys)), loops, keys)
    return loops, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)


def _run(network: Guess, which: Array, loop: TaughtPlants, key: PRNGKeyArray, *, num_steps: int) -> Lesson:
    """One loop from x0 ~ N(0, I). Of some the noise is told too small or not at all, some are pushed, and of some the
    inputs reverse."""
    start, noise, late, rare, when, push = jax.random.split(key, 6)
    mask, told = loop.told.state_mask.astype(float), loop.told
    x0 = jax.random.normal(start, (N_MAX,), float) * mask
    w = jax.random.normal(noise, (num_steps, N_MAX), float) * (mask * told.noise)[None]
    chance = jax.random.uniform(rare, (3,), float)
    turn, hit = jax.random.randint(when, (2,), 20, num_steps)
    w = w.at[hit].add(jnp.where(chance[1] < _PUSHED, mask, 0.0) * jax.random.normal(push, (N_MAX,), float))
    sign = jnp.where((chance[2] < _REVERSED) & (jnp.arange(num_steps) >= turn), -1.0, 1.0)
    share = jnp.where(chance[0] > _UNTOLD, 1.0, jnp.where(chance[0] > _UNTOLD / 2, 0.2, 0.0))
    told = dataclasses.replace(told, noise=share * told.noise)
    known = with_guess(network)

    def step(state: tuple, given: tuple[Array, Array]) -> tuple[tuple, Lesson]:
        (x, memory, lost), (w, sign) = state, given
        after, u = regulators.step(known, 2, told, memory, x)
        seen = beliefs.seen(beliefs.likeliest(after.belief), known, told, memory.t)
        lesson = Lesson(which, sign, seen, x, ~lost)
        moved = loop.A @ x + sign * loop.B @ u + w
        lost = lost | ~(jnp.max(jnp.abs(moved)) < _FAR)
        return (jnp.where(lost, x, moved), after, lost), lesson

    begin = (x0, regulators.begin(known, told), jnp.zeros((), bool))
    _, found = jax.lax.scan(step, begin, (w, sign))
    later = _EARLY + jax.random.permutation(late, num_steps - _EARLY)[:_LATE]
    return jax.tree.map(lambda a: a[jnp.concatenate([jnp.arange(_EARLY), later])], found)


def _loss(network: Guess, loop: TaughtPlants, lesson: Lesson) -> Array:
    """What the gain that is best for the network's plant, and the true cost to go, costs above the optimal one: for
    this state and for all directions alike, as logarithms; and the errors of θ and of the cost to go that follows."""
    told, caution = loop.told, prior().caution
    lesson = jax.tree.map(jnp.nan_to_num, lesson)  # what is not a number would spoil all gradients
    exists, position = told.state_mask.astype(float), prior().components(told)[3]
    theta, spread = network(told, position, lesson.seen)
    B, K, P = lesson.sign * loop.B, lesson.sign * loop.K, loop.P
    rows = jnp.stack([position, exists - position])
    doubt = caution * jnp.tensordot(rows @ jnp.diagonal(P), spread, 1)
    error = regulators.greedy(theta @ P @ theta.T + doubt + jnp.eye(Z)) - K
    S, u = jnp.eye(M_MAX) + B.T @ P @ B, error @ lesson.x
    least = lesson.x @ P @ lesson.x + told.noise**2 * jnp.trace(P) + 1e-9
    everywhere = jnp.sum((error.T @ S) * error.T) / jnp.trace(P)
    true, still = jnp.concatenate([loop.A.T, B.T]), jnp.concatenate([jnp.diag(exists), jnp.zeros((M_MAX, N_MAX))])
    off = jnp.sum((theta - true) ** 2) / (jnp.sum((true - still) ** 2) + 1e-6)
    unsettled = jnp.linalg.norm(regulators.improved(theta, jnp.eye(Z), P, 0) * exists[:, None] * exists[None] - P)
    loss = jnp.log1p(u @ S @ u / least) + 0.5 * jnp.log1p(everywhere) + 0.1 * jnp.log1p(off)
    miss = jnp.sum(((network.said(told, position, lesson.seen)[0] - true) / _size(lesson.seen, rows)) ** 2)
    loss = loss + 0.2 * jnp.log1p(unsettled / jnp.trace(P)) + 0.05 * jnp.log1p(miss)
    return jnp.where(lesson.counts & jnp.isfinite(loss), loss, 0.0)


def _size(seen: Seen, rows: Array) -> Array:
    """Standard deviations of the entries of θ before any data; infinite where nothing is unknown."""
    size = jnp.einsum("gz,gn->zn", jnp.sqrt(seen.before), rows)
    return jnp.where(size > 0, size, jnp.inf)


class StudentProgress(NamedTuple):
    """All that training goes on from."""

    network: Guess
    optimizer: Any
    mean: Guess
    round: Array


_OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


@jax.jit
def taught(
    progress: StudentProgress, loops: TaughtPlants, found: Lesson, rate: Array, key: PRNGKeyArray
) -> tuple[StudentProgress, Array]:
    """After each lesson has been gone through once; and the mean loss."""
    num = max(len(found.loop) // _BATCH, 1)
    order = jax.random.permutation(key, len(found.loop))[: num * _BATCH].reshape(num, -1)

    def mean_loss(network: Guess, some: Lesson) -> Array:
        return jnp.mean(jax.vmap(partial(_loss, network))(jax.tree.map(lambda a: a[some.loop], loops), some))

    def step(state: StudentProgress, rows: Array) -> tuple[StudentProgress, Array]:
        loss, slope = jax.value_and_grad(mean_loss)(state.network, jax.tree.map(lambda a: a[rows], found))
        slope = jax.tree.map(jnp.nan_to_num, slope)
        with jax.numpy_dtype_promotion("standard"):  # Adam takes powers of its decay by a count of steps
            change, optimizer = _OPTIMIZER.update(slope, state.optimizer)
        network = jax.tree.map(lambda a, d: a - rate.astype(a.dtype) * d, state.network, change)
        mean = jax.tree.map(lambda a, b: a + 0.002 * (b - a), state.mean, network)
        return StudentProgress(network, optimizer, mean, state.round), loss

    progress, losses = jax.lax.scan(step, progress, order)
    return progress._replace(round=progress.round + 1), jnp.mean(losses)


def train(
    file: Path | None,
    *,
    rounds: int = 1000,
    loops: int = 4096,
    num_steps: int = 100,
    width: int = 512,
    num: int = 12000,
    seed: int = 0,
) -> Guess:
    """The student after so many rounds; with a file it is saved every ten, and goes on from there.

    Args:
        file: of what has been trained; None for none.
        rounds: in each of them the student runs, and learns from what it came to: ten minutes on a GPU.
        loops: of a round.
        num_steps: of a loop.
        width: of the network.
        num: plants of a group.
        seed: of plants, loops and weights.

    Raises:
        ValueError: the file holds a student that was trained otherwise.

    Source: S. Ross, G. Gordon, D. Bagnell, A reduction of imitation learning and structured prediction to no-regret
    online learning, AISTATS 2011 (DAgger).
    """
    network = Guess.untrained(jax.random.key(seed), width)
    progress = StudentProgress(network, _OPTIMIZER.init(network), network, jnp.zeros((), int))
    leaves, tree = jax.tree.flatten(progress)
    settings = f"{rounds} rounds, {loops} loops, {num_steps} steps, width {width}, {num} plants, seed {seed}, "
    settings += f"recipe {_RECIPE}"
    if file is not None and file.exists():
        with np.load(file) as kept:
            if str(kept["settings"]) != settings:
                raise ValueError(f"file: {file} holds a student of {kept['settings']}, not {settings}; remove it")
            progress = jax.tree.unflatten(tree, [jnp.asarray(kept[f"{i}"], a.dtype) for i, a in enumerate(leaves)])
    groups = plants(num, seed)
    while (done := int(progress.round)) < rounds:
        key = jax.random.fold_in(jax.random.key(seed + 1), done)
        rate = 1e-3 * min(1.0, (done + 1) / (0.02 * rounds)) * (0.505 + 0.495 * np.cos(np.pi * done / rounds))
        progress, loss = taught(
            progress, *lessons(progress.network, groups, key, loops, num_steps), jnp.asarray(rate), key
        )
        if file is not None and (done % 10 == 9 or done + 1 == rounds):
            print(f"round {done + 1} of {rounds}: loss {float(loss):.4f}", flush=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            arrays: Any = {f"{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(progress))}
            np.savez(packed := io.BytesIO(), settings=settings, **arrays)
            write_atomic(file, packed.getvalue())
    return progress.mean

"""A student of the optimum that sees the history alone: a network in the place of a prior of known families.

What it sees is the regression of the history by the adaptive regulator's plants at large, which holds all that a
linear plant's history says of it; what it says is the plant, as far as the regression leaves it open. It is trained on
its own loops (DAgger), of ten families, of plants like those and of random systems, by what its gains cost above the
optimal ones.
"""

import dataclasses
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from benchmarks.adaptive_prior import TRAINED, variants
from benchmarks.measurement import Parts, main
from benchmarks.unknown_plants import FULL, NOISES, QUICK, Size, UnknownRow, bench_unknown
from lqrlab import learning
from lqrlab.compute import pytree
from lqrlab.compute.files import write_atomic
from lqrlab.dataset import random_systems
from lqrlab.evaluation import unknown_problem
from lqrlab.learning.adaptive import policy as regulators
from lqrlab.learning.adaptive.belief import Belief
from lqrlab.learning.adaptive.policy import AdaptivePolicy, Memory
from lqrlab.learning.adaptive.prior import Z
from lqrlab.simulation import Problem, Told
from lqrlab.systems import M_MAX, N_MAX

FILE = Path("data/benchmarks/student.npz")
_KINDS = 5  # of plants at large
_SEEN, _SAID = 2 * Z * N_MAX + 3 * Z + 2 * N_MAX + _KINDS + 3, 2 * Z * N_MAX + N_MAX + 1
_RESERVED = -4.0  # log odds of its guess against the regression, before training
_FAR = 1e3  # a state at which a loop ends
_EARLY, _LATE = 16, 8  # steps of a loop that are learned from: the first, and some of the others
_BATCH = 2048
_SHARES = (0.45, 0.2, 0.35)  # of loops: families, plants like them, random systems


@pytree
@dataclasses.dataclass(frozen=True)
class Network:
    """A perceptron; each layer's weights with a row of biases. The second layer is added to what it sees."""

    first: Float[Array, "seen width"]
    second: Float[Array, "hidden width"]
    last: Float[Array, "hidden said"]

    @classmethod
    def untrained(cls, key: PRNGKeyArray, width: int) -> Self:
        """One that says almost nothing."""

        def layer(key: PRNGKeyArray, size: int, to: int, gain: float) -> Array:
            kernel = gain * jax.random.normal(key, (size, to), jnp.float32) / size**0.5
            return jnp.concatenate([kernel, jnp.zeros((1, to), jnp.float32)])

        one, two, three = jax.random.split(key, 3)
        return cls(layer(one, _SEEN, width, 1.4), layer(two, width, width, 1.4), layer(three, width, _SAID, 0.01))

    def __call__(self, seen: Float[Array, " seen"]) -> Float[Array, " said"]:
        """What it says of one plant."""
        seen = seen.astype(jnp.float32)
        hidden = jax.nn.gelu(seen @ self.first[:-1] + self.first[-1])
        hidden = hidden + jax.nn.gelu(hidden @ self.second[:-1] + self.second[-1])
        return (hidden @ self.last[:-1] + self.last[-1]).astype(float)


class Regression(NamedTuple):
    """What the history says of one plant: mean and covariances of the likeliest kind ``theta``, ``spread``, weights
    of the kinds, variance of the noise, steps taken."""

    theta: Array
    spread: Array
    kinds: Array
    variance: Array
    t: Array

    @classmethod
    def of(cls, belief: Belief, t: Array) -> Self:
        """Of the belief at one level of the noise."""
        kind = jnp.argmax(belief.odds)
        return cls(belief.theta[kind], belief.spread[kind], jax.nn.softmax(belief.odds), belief.variance, t)


def corrected(network: Network, prior: learning.Prior, told: Told, seen: Regression) -> tuple[Array, Array]:
    """θ and covariances of its rows, as the network has them.

    It pulls the mean of the prior, which fades as data come in, and gives a guess and a weight for each row, which
    count as far as noise leaves doubt in the regression.
    """
    theta, spread, kinds, variance, t = seen
    exists, inputs = told.state_mask.astype(float), told.input_mask.astype(float)
    live, kind = jnp.concatenate([exists, inputs]), jnp.argmax(kinds)
    means, spreads, _, position = prior.components(told)
    before = jnp.diagonal(spreads[kind], axis1=1, axis2=2)
    precision = jnp.where(before > 0, 1 / jnp.where(before > 0, before, 1.0), 0.0)
    left = jnp.sqrt(jnp.maximum(jnp.diagonal(spread, axis1=1, axis2=2) * precision, 0.0) + 1e-8)
    moved = (theta - jnp.concatenate([jnp.diag(exists), jnp.zeros((M_MAX, N_MAX))])).ravel()
    half, i = (jnp.sum(exists) // 2).astype(int), jnp.arange(N_MAX)
    steps = jnp.sum(jnp.where((i[None, :] == i[:, None] + half) & (i[:, None] < half), told.steps, 0.0), axis=1)
    level = jnp.stack([jnp.log10(variance) / 4 + 1, *jnp.exp(-t.astype(float) / jnp.array([10.0, 40.0]))])
    entries = [3 * moved, jnp.arcsinh(30 * moved), left.ravel(), jnp.arcsinh(10 * steps), position, live, kinds, level]
    said = network(jnp.concatenate(entries))
    rows = jnp.stack([position, exists - position])
    size = jnp.einsum("gz,gn->zn", jnp.sqrt(before), rows)
    mean, guess = said[: 2 * Z * N_MAX].reshape(2, Z, N_MAX) * size[None]
    pull = jnp.einsum("gzy,gy,yn,gn->zn", spread, precision, mean, rows)
    doubtful = jnp.minimum(1.0, 2 * (left @ live / jnp.sum(live)) @ rows)
    weight = (jax.nn.sigmoid(said[2 * Z * N_MAX : -1] + _RESERVED) * doubtful)[None]
    doubt = jnp.exp(jnp.clip(said[-1], -2.0, 1.0))
    return (1 - weight) * (theta + pull) + weight * (means[kind] + guess), doubt * spread


@pytree
@dataclasses.dataclass(frozen=True)
class Student(AdaptivePolicy):
    """The adaptive regulator with a network's hypothesis, at the noise that it is told."""

    network: Network = None  # type: ignore[assignment]

    def init(self, batch_shape: tuple[int, ...]) -> Memory:
        """The prior, for each loop, at one level of the noise."""
        memory = super().init(batch_shape)
        return _of_told_noise(memory, len(batch_shape))

    def step(self, told: Told, memory: Memory, x: Array) -> tuple[Memory, Array]:
        """One plant, one step."""

        def hypotheses(belief: Belief, t: Array) -> tuple[Array, Array, Array]:
            theta, spread = corrected(self.network, self.prior, told, Regression.of(belief, t))
            return jnp.ones(1), theta[None], spread

        return regulators.step(self.prior, self.doublings, told, memory, x, hypotheses)


def _of_told_noise(memory: Memory, axis: int = 0) -> Memory:
    belief = jax.tree.map(lambda a: jax.lax.slice_in_dim(a, 0, 1, axis=axis), memory.belief)
    return dataclasses.replace(memory, belief=belief)


def prior() -> learning.Prior:
    """The plants at large that come with the package, without any family."""
    with jax.ensure_compile_time_eval():
        return dataclasses.replace(learning.pretrained("adaptive"), known=None)


class Loops(NamedTuple):
    """Plants, scaled, with their optimum for Q = R = I, and what is told of them ``[num, …]``."""

    told: Told
    A: Array
    B: Array
    K: Array
    P: Array

    @classmethod
    def of(cls, problem: Problem, moderate: float = np.inf) -> Self:
        """Each plant under each noise; those without an optimum, or with larger gains than ``moderate``, left out."""
        gain = np.abs(np.asarray(problem.K)).max((-1, -2))
        problem = problem[np.flatnonzero(np.asarray(problem.has_optimum) & (gain < moderate))]
        each = [
            cls(problem.disturbed(noise=noise).told("units"), problem.A, problem.B, problem.K, problem.P)
            for noise in NOISES
        ]
        return jax.tree.map(lambda *a: jnp.concatenate(a), *each)


def plants(num: int, seed: int) -> tuple[Loops, Loops, Loops]:
    """Families ±20 %, plants like them, and random systems, none of them in a test."""
    families = unknown_problem([variants(name, 121 + seed, -(-num // 40)) for name in TRAINED])
    drawn = random_systems(jax.random.key(77 + seed), 2 * num, dense=True).astype(float)
    random = Loops.of(drawn.limited((-20.0, 20.0)), 10.0)
    # they have no units: where a state moves another, that is what its unit would have told
    told = dataclasses.replace(random.told, steps=jnp.where(random.A > 0.02, random.A, 0.1))
    alike = Loops.of(_alike(families, np.random.default_rng(seed), num), 10.0)
    return Loops.of(families), alike, random._replace(told=told)


def _alike(families: Problem, rng: np.random.Generator, num: int) -> Problem:
    """Plants that are like those of families and of none: what is not kinematics is multiplied entry by entry."""
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
    undesigned: Any = dict.fromkeys(("K", "P", "plant"))
    return dataclasses.replace(some, A=jnp.asarray(A), B=jnp.asarray(B), **undesigned).solved(check=False)


class Lesson(NamedTuple):
    """A step of a loop: which loop, what is known, the state, whether it counts."""

    loop: Array
    seen: Regression
    x: Array
    counts: Array


@partial(jax.jit, static_argnums=(3, 4))
def lessons(
    network: Network, groups: tuple[Loops, ...], key: PRNGKeyArray, num: int, num_steps: int
) -> tuple[Loops, Lesson]:
    """Loops that the student runs, some of each group, and steps of them."""
    pick, run = jax.random.split(key)
    chosen = []
    for group, share, each in zip(groups, _SHARES, jax.random.split(pick, len(groups))):
        rows = jax.random.randint(each, (round(share * num),), 0, len(group.A))
        chosen.append(jax.tree.map(lambda a, rows=rows: a[rows], group))
    loops = jax.tree.map(lambda *a: jnp.concatenate(a), *chosen)
    keys = jax.random.split(run, len(loops.A))
    found = jax.vmap(partial(_run, network, num_steps=num_steps))(jnp.arange(len(keys)), loops, keys)
    return loops, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)


def _run(network: Network, which: Array, loop: Loops, key: PRNGKeyArray, *, num_steps: int) -> Lesson:
    """One loop from x0 ~ N(0, I)."""
    start, noise, late = jax.random.split(key, 3)
    mask, told = loop.told.state_mask.astype(float), loop.told
    x0 = jax.random.normal(start, (N_MAX,), float) * mask
    w = jax.random.normal(noise, (num_steps, N_MAX), float) * (mask * told.noise)[None]
    student = Student(prior(), told, M_MAX, network=network)

    def step(state: tuple, w: Array) -> tuple[tuple, Lesson]:
        x, memory, lost = state
        after, u = student.step(told, memory, x)
        belief = jax.tree.map(lambda a: a[0], after.belief)
        lesson = Lesson(which, Regression.of(belief, memory.t), x, ~lost)
        moved = loop.A @ x + loop.B @ u + w
        lost = lost | ~(jnp.max(jnp.abs(moved)) < _FAR)
        return (jnp.where(lost, x, moved), after, lost), lesson

    memory = _of_told_noise(regulators.begin(student.prior, told))
    _, found = jax.lax.scan(step, (x0, memory, jnp.zeros((), bool)), w)
    later = _EARLY + jax.random.permutation(late, num_steps - _EARLY)[:_LATE]
    return jax.tree.map(lambda a: a[jnp.concatenate([jnp.arange(_EARLY), later])], found)


def _loss(network: Network, loop: Loops, lesson: Lesson) -> Array:
    """What the gain that is best for the network's plant, and the true cost to go, costs above the optimal one: for
    this state and for all directions alike, as logarithms; and the error of θ."""
    told, prior_ = loop.told, prior()
    lesson = jax.tree.map(jnp.nan_to_num, lesson)  # what is not a number would spoil all gradients
    theta, spread = corrected(network, prior_, told, lesson.seen)
    exists, position = told.state_mask.astype(float), prior_.components(told)[3]
    rows = jnp.stack([position, exists - position])
    doubt = prior_.caution * jnp.tensordot(rows @ jnp.diagonal(loop.P), spread, 1)
    error = regulators.greedy(theta @ loop.P @ theta.T + doubt + jnp.eye(Z)) - loop.K
    S, u = jnp.eye(M_MAX) + loop.B.T @ loop.P @ loop.B, error @ lesson.x
    least = lesson.x @ loop.P @ lesson.x + told.noise**2 * jnp.trace(loop.P) + 1e-9
    everywhere = jnp.sum((error.T @ S) * error.T) / jnp.trace(loop.P)
    true, still = jnp.concatenate([loop.A.T, loop.B.T]), jnp.concatenate([jnp.diag(exists), jnp.zeros((M_MAX, N_MAX))])
    off = jnp.sum((theta - true) ** 2) / (jnp.sum((true - still) ** 2) + 1e-6)
    loss = jnp.log1p(u @ S @ u / least) + 0.5 * jnp.log1p(everywhere) + 0.1 * jnp.log1p(off)
    return jnp.where(lesson.counts & jnp.isfinite(loss), loss, 0.0)


class Progress(NamedTuple):
    """All that training goes on from."""

    network: Network
    optimizer: Any
    mean: Network
    round: Array


_OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


@jax.jit
def taught(progress: Progress, loops: Loops, found: Lesson, rate: Array, key: PRNGKeyArray) -> tuple[Progress, Array]:
    """After each lesson has been gone through once; and the mean loss."""
    num = max(len(found.loop) // _BATCH, 1)
    order = jax.random.permutation(key, len(found.loop))[: num * _BATCH].reshape(num, -1)

    def mean_loss(network: Network, some: Lesson) -> Array:
        return jnp.mean(jax.vmap(partial(_loss, network))(jax.tree.map(lambda a: a[some.loop], loops), some))

    def step(state: Progress, rows: Array) -> tuple[Progress, Array]:
        loss, slope = jax.value_and_grad(mean_loss)(state.network, jax.tree.map(lambda a: a[rows], found))
        slope = jax.tree.map(jnp.nan_to_num, slope)
        with jax.numpy_dtype_promotion("standard"):  # Adam takes powers of its decay by a count of steps
            change, optimizer = _OPTIMIZER.update(slope, state.optimizer)
        network = jax.tree.map(lambda a, d: a - rate.astype(a.dtype) * d, state.network, change)
        mean = jax.tree.map(lambda a, b: a + 0.002 * (b - a), state.mean, network)
        return Progress(network, optimizer, mean, state.round), loss

    progress, losses = jax.lax.scan(step, progress, order)
    return progress._replace(round=progress.round + 1), jnp.mean(losses)


def train(file: Path | None, rounds: int, loops: int, num_steps: int, width: int, num: int, seed: int = 0) -> Network:
    """The student after so many rounds; with a file it is saved every ten, and goes on from there.

    Raises:
        ValueError: the file holds a student that was trained otherwise.

    Source: S. Ross, G. Gordon, D. Bagnell, A reduction of imitation learning and structured prediction to no-regret
    online learning, AISTATS 2011 (DAgger).
    """
    network = Network.untrained(jax.random.key(seed), width)
    progress = Progress(network, _OPTIMIZER.init(network), network, jnp.zeros((), int))
    leaves, tree = jax.tree.flatten(progress)
    settings = f"{rounds} rounds, {loops} loops, {num_steps} steps, width {width}, {num} plants, seed {seed}"
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


def bench_student(
    size: Size = FULL,
    file: Path | None = FILE,
    rounds: int = 450,
    loops: int = 1024,
    num_steps: int = 80,
    width: int = 320,
    num: int = 6000,
) -> Iterator[UnknownRow]:
    """Train the student, half an hour on two cores, or go on where it was cut off; then its score, as in
    ``benchmarks.unknown_plants``, with the adaptive regulator's plants at large alone beside it."""
    network = train(file, rounds, loops, num_steps, width, num)

    def student(problem: Problem) -> Student:
        return Student(prior(), problem.told("units"), problem.m, n=problem.n, network=network)

    yield from bench_unknown(size, {"student": student, "no family": partial(learning.adaptive, prior=prior())})


_SECONDS = {"rounds": 1, "loops": 20, "num_steps": 25, "width": 8, "num": 40}
PARTS: Parts = {"student": (bench_student, {"size": QUICK, "file": None, **_SECONDS})}

if __name__ == "__main__":
    main(PARTS)

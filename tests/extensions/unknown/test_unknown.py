"""Unknown plants: beliefs against dense posteriors from NumPy and SciPy, loops against what must hold of any."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from refusals import refused
from scipy_oracle import gain

from lqrlab import learning, simulation, systems, unknown
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown.prior import Guess
from lqrlab.extensions.unknown.regret import ConstantGain
from lqrlab.extensions.unknown.unknown_baselines import SETTINGS, baseline
from lqrlab.learning import weight_files
from lqrlab.simulation import Problem
from lqrlab.systems import N_MAX

KEY = jax.random.key(3)
FAMILIES = ("pendulum", "cart_pole")


def sampled(name, num, seed=0):
    return systems.sample(name, key=jax.random.key(seed), num=num)


def one(plant, noise=0.0):
    """What a controller is told of one plant that nobody describes, in scaled coordinates."""
    problem = Problem.of(plant, linear=True, optimum=False)
    return problem.disturbed(noise=noise * problem.scale_x).scaled().told("units")


def described(plant):
    return Problem.of(plant, linear=True, optimum=False).told()


@pytest.fixture(scope="module")
def plants():
    return unknown.problem_of([sampled(name, 2) for name in FAMILIES], noise=0.02)


@pytest.fixture(scope="module")
def training():
    """Described plants of two families, of which no test plant is one."""
    return [described(sampled(name, 12, seed=1)) for name in FAMILIES]


def pushed(num, farthest=np.inf):
    """States and inputs of a cart-pole that is pushed about, and what is told of it."""
    rng = np.random.default_rng(0)
    d = described(sampled("cart_pole", 1)[0])
    A, B = np.asarray(d.A), np.asarray(d.B)
    x, zs, xs = np.pad(rng.normal(size=4), (0, 8)), [], []
    for _ in range(num):
        u = np.pad(rng.normal(size=1), (0, 5))
        zs.append(np.concatenate([x, u]))
        x = np.clip(A @ x + B @ u + 0.02 * np.pad(rng.normal(size=4), (0, 8)), -farthest, farthest)
        xs.append(x)
    return np.array(zs), np.array(xs), one(systems.make("cart_pole"), noise=0.02)


@pytest.fixture(scope="module")
def seen():
    return pushed(12)


def learned(prior, seen, level=0):
    """The first and the last belief at one level of the noise, with odds relative to those of the first level."""
    zs, xs, told = seen
    first = belief = beliefs.start(prior, told)
    learn = jax.jit(beliefs.learn)
    for z, x in zip(zs, xs):
        belief = learn(belief, prior, told, jnp.asarray(z), jnp.asarray(x))
    return jax.tree.map(lambda a: a[level], (first, belief))


ROWS, COLUMNS = np.arange(4), np.array([0, 1, 2, 3, 12])  # of a cart-pole that are no padding


@pytest.fixture(scope="module", params=[0, 2], ids=["noise as told", "a louder level"])
def at_large(seen, request):
    """The belief in plants at large, and for each component and row (mean, covariance, log evidence) from NumPy."""
    first, belief = learned(unknown.wide(), seen, request.param)
    variance, dense = (0.02**2 + 1e-4**2) ** (1 - request.param / 4) * 0.1 ** (request.param / 2), {}
    for k in range(len(first.theta)):
        for i in ROWS:
            prior_mean = np.asarray(first.theta)[k, COLUMNS, i]
            S = np.asarray(first.spread)[k, 0 if i < 2 else 1][np.ix_(COLUMNS, COLUMNS)]
            Z, target = seen[0][:, COLUMNS], seen[1][:, i]
            precision = np.linalg.inv(S) + Z.T @ Z / variance
            mean = np.linalg.solve(precision, np.linalg.solve(S, prior_mean) + Z.T @ target / variance)
            expected = Z @ S @ Z.T + variance * np.eye(len(Z))
            evidence = scipy.stats.multivariate_normal(Z @ prior_mean, expected).logpdf(target)
            dense[k, int(i)] = mean, np.linalg.inv(precision), evidence
    return first, belief, dense, variance


def spoken(seed, loud=30.0, prior=None):
    """A prior whose network says whatever it happens to."""
    network = Guess.untrained(jax.random.key(seed), 8)
    return dataclasses.replace(prior or unknown.wide(), guess=dataclasses.replace(network, last=loud * network.last))


@pytest.mark.parametrize("seed", range(2))
def test_what_a_network_guesses_counts_as_one_measurement_of_each_column(seen, seed):
    """Beside the posterior of both, from NumPy: row by row, by precisions."""
    prior = spoken(seed, loud=300.0)
    _, belief = learned(prior, tuple(part[:2] if i < 2 else part for i, part in enumerate(seen)))
    told, t = seen[2], jnp.array(2)
    shown = beliefs.seen(belief, prior, told, t)
    guess, certain, doubt = (np.asarray(a) for a in prior.guess.said(told, belief.position, shown))
    found = beliefs.guessed(belief, prior, told, t)
    theta, spread = (np.asarray(getattr(found, name))[0] for name in ("theta", "spread"))
    for i in ROWS:
        group = 0 if i < 2 else 1
        S = np.asarray(shown.spread)[group][np.ix_(COLUMNS, COLUMNS)]
        both = np.linalg.inv(np.linalg.inv(S) + np.diag(certain[group, COLUMNS]))
        mean = np.linalg.solve(S, np.asarray(shown.theta)[COLUMNS, i]) + certain[group, COLUMNS] * guess[COLUMNS, i]
        np.testing.assert_allclose(theta[COLUMNS, i], both @ mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(spread[group][np.ix_(COLUMNS, COLUMNS)], doubt[group] * both, rtol=1e-6, atol=1e-12)
    assert np.abs(theta - np.asarray(shown.theta)).max() > 0.002
    assert not theta[4:12].any()
    assert not theta[13:].any()


@pytest.fixture(scope="module")
def sure():
    """A prior whose network is certain of one cart-pole whatever it sees, that cart-pole, and what is told of it."""
    prior, plant = unknown.wide(), systems.make("cart_pole")
    told, d, network = one(plant), described(plant), Guess.untrained(jax.random.key(0), 4)
    shown = beliefs.seen(beliefs.likeliest(beliefs.start(prior, told)), prior, told, jnp.array(0))
    size = np.sqrt(np.asarray(shown.before))[np.where(np.arange(12) < 2, 0, 1)].T
    off = np.concatenate([np.asarray(d.A).T, np.asarray(d.B).T]) - np.asarray(shown.mean)
    bias = np.concatenate([np.where(size > 0, off / np.where(size > 0, size, 1), 0).ravel(), np.full(36, 30), [-9.0]])
    last = jnp.zeros_like(network.last).at[-1].set(jnp.asarray(bias, jnp.float32))
    return dataclasses.replace(prior, guess=dataclasses.replace(network, last=last)), plant, told


def saying(prior, certain, doubt):
    """The same guess, with so much certainty and doubt."""
    last = prior.guess.last.at[-1, 12 * 18 : -1].set(certain).at[-1, -1].set(doubt)
    return dataclasses.replace(prior, guess=dataclasses.replace(prior.guess, last=last))


def test_a_guessed_plant_brings_its_cost_to_go_and_one_that_nothing_is_known_of_does_not(sure):
    """Beside SciPy's, for the weights that doubt adds to."""
    _, plant, told = sure

    def first(prior):
        policy = unknown.adaptive(plant, prior)
        return np.asarray(policy(policy.init(()), jnp.ones(4))[0].P)[:4, :4]

    prior = saying(sure[0], 5.5, 0.0)
    P = first(prior)
    belief = beliefs.guessed(beliefs.likeliest(beliefs.start(prior, told)), prior, told, jnp.array(0))
    theta, spread = (np.asarray(a[0]) for a in (belief.theta, belief.spread))
    A, B, spread = theta[:4, :4].T, theta[12:13, :4].T, spread[:, COLUMNS][:, :, COLUMNS]
    doubt = 0.1 * (np.diag(P)[:2].sum() * spread[0] + np.diag(P)[2:].sum() * spread[1])
    assert doubt.max() > 0.005
    weight = np.eye(5) + doubt
    optimum = scipy.linalg.solve_discrete_are(A, B, weight[:4, :4], weight[4:, 4:], s=weight[:4, 4:])
    np.testing.assert_allclose(P, optimum, rtol=1e-4)
    np.testing.assert_allclose(A, np.asarray(described(plant).A)[:4, :4], atol=0.05)
    assert np.trace(P) > 150
    # the same guess with much doubt, for which iteration settles too, at a trace of 1419
    for nothing in (unknown.wide(), spoken(0, loud=1.0), saying(prior, 2.0, 1.0)):
        assert np.trace(first(nothing)) < 80


@pytest.mark.parametrize(("certain", "known"), [(5.9, False), (6.1, True)])
def test_a_plant_that_counts_as_known_has_its_own_cost_to_go_at_any_step(sure, certain, known):
    prior, plant, told = saying(sure[0], certain, -9.0), *sure[1:]
    policy = unknown.adaptive(plant, prior)
    memory = dataclasses.replace(policy.init(()), t=jnp.array(40))
    P = np.asarray(jax.jit(lambda m, x: policy(m, x))(memory, jnp.ones(4))[0].P)[:4, :4]
    belief = beliefs.guessed(beliefs.likeliest(memory.belief), prior, told, memory.t)
    theta = np.asarray(belief.theta[0])
    optimum = scipy.linalg.solve_discrete_are(theta[:4, :4].T, theta[12:13, :4].T, np.eye(4), np.eye(1))
    assert (np.abs(P - optimum).max() < 1e-3 * optimum.max()) == known


@pytest.mark.parametrize(("certain", "known"), [(5.9, False), (6.1, True)])
@pytest.mark.parametrize("group", [0, 1], ids=["positions", "rates"])
def test_rows_of_which_the_network_is_certain_on_average_are_not_doubted(sure, group, certain, known):
    _, _, told = sure
    said = np.full(36, -30.0, np.float32)
    said[18 * group + COLUMNS] = certain + np.array([2, 0, 0, 0, -2])  # those of padding do not count
    prior = saying(sure[0], said, 0.0)
    belief = beliefs.guessed(beliefs.likeliest(beliefs.start(prior, told)), prior, told, jnp.array(0))
    left = np.diagonal(belief.spread[0], axis1=1, axis2=2)[:, COLUMNS]
    assert (left[group] == 0).all() == known
    assert (left[1 - group] > 0).all()


def test_certainty_beyond_its_limit_is_held_and_still_has_a_slope(sure):
    """Else training could not bring it back."""
    prior, _, told = sure
    shown = beliefs.seen(beliefs.likeliest(beliefs.start(prior, told)), prior, told, jnp.array(0))
    position = prior.components(told)[3]

    def certainty(last):
        return jnp.sum(dataclasses.replace(prior.guess, last=last).said(told, position, shown)[1][1] * shown.before[1])

    value, slope = jax.value_and_grad(certainty)(prior.guess.last)  # says 27, of 6 at most
    np.testing.assert_allclose(value, 5 * np.exp(6), rtol=1e-5)
    np.testing.assert_allclose(slope[-1, 12 * 18 + 18 + COLUMNS], 0.1 * np.exp(6), rtol=1e-5)


def test_who_guesses_right_is_near_the_optimum_from_the_first_step_on_also_looking_ahead(sure):
    prior, plant, _ = sure
    problem = unknown.problem_of(plant)
    excess = {}
    for name, prior_ in (("guess", prior), ("none", unknown.wide())):
        policy = unknown.adaptive(problem, prior_)
        ahead = unknown.look_ahead(policy, num=4, steps=5, until=5)
        run = partial(unknown.score, key=KEY, num_initial=1, num_steps=100)
        excess[name] = [float(run(lambda _, p=p: p, problem).ratio[0, 0]) - 1 for p in (policy, ahead)]
    assert max(excess["guess"]) < 0.1
    assert min(excess["none"]) > 0.2


def test_looking_ahead_expects_what_the_network_guesses(sure):
    prior, (_, plant, told) = spoken(0, loud=100.0), sure
    policy = unknown.look_ahead(unknown.adaptive(told, prior), num=4, steps=5, until=5)
    memory, x, move = policy.init(()), np.pad([1.0, 0.5, -0.3, 0.2], (0, 8)), jax.jit(lambda m, x: policy(m, x))
    d = described(plant)
    for _ in range(4):
        memory, u = move(memory, jnp.asarray(x))
        x = np.asarray(d.A) @ x + np.asarray(d.B) @ np.asarray(u)
    belief = beliefs.guessed(beliefs.likeliest(memory.belief), prior, told, jnp.array(3))
    np.testing.assert_allclose(memory.expected, np.asarray(belief.theta)[0].T @ np.asarray(memory.z), atol=1e-9)
    assert abs(memory.z[12]) > 0.01


def test_a_network_with_and_without_families_is_the_same_for_a_plant_alone_and_among_others(training):
    """Plants of one, two, three and four states; and a loop has a gradient."""
    names = ("cruise_control", "pendulum", "dc_motor", "cart_pole")
    alone = [unknown.problem_of(systems.make(name), noise=0.01) for name in names]
    together = unknown.problem_of([systems.make(name) for name in names], noise=0.01)
    xs = jax.random.normal(KEY, (6, 4, 12)) * together.told("units").state_mask[None]
    for prior in (spoken(0), spoken(1, prior=unknown.wide(unknown.families(training)))):
        us = _answers(unknown.adaptive(together, prior), xs)
        assert np.isfinite(us).all()
        for i, problem in enumerate(alone):
            found = _answers(unknown.adaptive(problem, prior), xs[:, i : i + 1])
            np.testing.assert_allclose(found[:, 0], us[:, i], rtol=1e-4, atol=1e-5)  # the network has float32
        nothing = dataclasses.replace(prior, dense=prior.dense[:0], kinematic=prior.kinematic[:0])
        assert prior.known is None or np.isfinite(_answers(unknown.adaptive(together, nothing), xs)).all()
    moved = lambda caution: unknown.adaptive(alone[1], dataclasses.replace(prior, caution=caution))  # noqa: E731
    slope = jax.grad(lambda caution: _answers(moved(caution), xs[:, 1:2]).sum())(0.1)
    assert np.isfinite(slope)
    assert slope != 0


@jax.jit
def _answers(policy, xs):
    return jax.lax.scan(lambda memory, x: policy(memory, x), policy.init(xs.shape[1:2]), xs)[1]


def test_plants_at_large_are_entries_of_either_size_and_positions_that_their_rates_move():
    """Of three states, four and one: an odd one out is no position."""
    prior = dataclasses.replace(unknown.wide(), half=jnp.array(0.7))
    for plant in ("dc_motor", "two_link_arm", "cruise_control"):
        told = one(systems.make(plant))
        n, m = (int(np.sum(a)) for a in (told.state_mask, told.input_mask))
        half = n // 2
        theta, spread, odds, position = (np.asarray(a) for a in prior.components(told))
        assert position.tolist() == [1.0] * half + [0.0] * (12 - half)
        steps = [float(told.steps[i, i + half]) for i in range(half)]
        shorter = 0.5 * sum(steps) / max(half, 1) * 0.7
        for k in range(5):
            mean, sizes = np.zeros((18, 12)), np.zeros((2, 18))
            mean[:n, :n] = np.eye(n)
            row = np.zeros(18)
            if k < 2:
                entry, push, log_odds = np.asarray(prior.dense)[k]
                row[:n], row[12 : 12 + m] = entry, push
                sizes[:] = row
            else:
                place, rate, push, log_odds = np.asarray(prior.kinematic)[k - 2]
                row[:half], row[half:n], row[12 : 12 + m] = place, rate, push
                sizes[0, :n], sizes[0, 12 : 12 + m] = (shorter * row[a] + 1e-4 for a in (slice(n), slice(12, 12 + m)))
                sizes[1] = row
                for i in range(half):
                    mean[i + half, i] += steps[i]
                log_odds = log_odds if half else -np.inf
            np.testing.assert_allclose(theta[k], mean, rtol=1e-12)
            np.testing.assert_allclose(spread[k], [np.diag(a**2) for a in sizes], rtol=1e-12)
            assert odds[k] == log_odds


def test_regression_step_by_step_is_the_dense_posterior_and_odds_are_normal_densities(at_large):
    first, belief, dense, _ = at_large
    for (k, i), (mean, covariance, _) in dense.items():
        np.testing.assert_allclose(np.asarray(belief.theta)[k, COLUMNS, i], mean, atol=1e-6)
        spread = np.asarray(belief.spread)[k, 0 if i < 2 else 1][np.ix_(COLUMNS, COLUMNS)]
        np.testing.assert_allclose(spread, covariance, rtol=1e-4, atol=1e-9)
    evidence = np.array([sum(dense[k, int(i)][2] for i in ROWS) for k in range(len(first.theta))])
    expected = np.asarray(first.odds) + evidence
    found = np.asarray(belief.odds)
    np.testing.assert_allclose(found - found.max(), expected - expected.max(), atol=1e-5)


def test_the_level_of_the_noise_that_there_is_becomes_the_likeliest():
    zs, xs, told = pushed(60, farthest=3.0)
    quieter = dataclasses.replace(told, noise=told.noise / 100)
    _, belief = learned(unknown.wide(), (zs, xs, quieter), slice(None))
    assert 0.01 < float(beliefs.likeliest(belief).variance) ** 0.5 < 0.04


def test_a_family_is_learned_as_a_normal_density_of_its_coefficients(training, seen, at_large):
    *_, dense, variance = at_large
    families = unknown.families(training, rank=4)
    first, belief = learned(unknown.wide(families), seen, 0 if variance < 1e-3 else 2)
    which = int(np.argmax(np.asarray(belief.family) == 1))  # the cart-poles
    mean, directions = (np.asarray(a)[1] for a in (families.mean, families.directions))
    zs, xs, _ = seen
    H = np.einsum("rzn,tz->tnr", directions, zs)[:, ROWS].reshape(-1, 4)
    error = (xs - zs @ mean)[:, ROWS].ravel()
    noise = np.repeat(variance + float(families.rest[1]) * (zs**2).sum(1), 4)
    W = np.asarray(first.W)[which]
    live = np.diag(W) > 0
    covariance = np.linalg.inv(np.linalg.inv(W[np.ix_(live, live)]) + (H[:, live].T / noise) @ H[:, live])
    w = covariance @ (H[:, live].T / noise) @ error
    np.testing.assert_allclose(np.asarray(belief.w)[which][live], w, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(np.asarray(belief.W)[which][np.ix_(live, live)], covariance, rtol=1e-4, atol=1e-12)
    large = len(first.theta)
    evidence = scipy.stats.multivariate_normal(np.zeros(len(H)), H @ W @ H.T + np.diag(noise)).logpdf(error)
    found = np.asarray(belief.odds)[large + which] - np.asarray(belief.odds)[0]
    expected = np.asarray(first.odds)[large + which] + evidence - np.asarray(first.odds)[0]
    expected -= sum(dense[0, int(i)][2] for i in ROWS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    exists = jnp.zeros(N_MAX).at[np.asarray(ROWS)].set(1.0)
    usual, _ = beliefs._FamilyStep(first, families, exists, jnp.asarray(zs[0]), jnp.asarray(xs[0])).likelihoods()
    spread = np.sqrt(noise[:4] + np.einsum("ni,ij,nj->n", H[:4], W, H[:4]))
    alone = scipy.stats.norm(0, spread).logpdf(error[:4]).sum() + 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(usual[which], alone, rtol=1e-6)


def test_a_plant_that_is_known_is_regulated_by_scipys_gain(training):
    """A family of twins leaves nothing to learn; from no cost to go on the design still ends at the optimum."""
    d = training[1][np.array([0, 0])]
    families = unknown.families([d])
    families = dataclasses.replace(families, cost=jnp.zeros_like(families.cost))
    prior = dataclasses.replace(
        unknown.wide(families), dense=jnp.zeros((0, 3)), kinematic=jnp.zeros((0, 4)), caution=jnp.array(0.0)
    )
    A, B = (np.asarray(a)[0] for a in (d.A, d.B))
    policy = unknown.adaptive(one(systems.make("cart_pole")), prior)
    x = jnp.asarray(np.pad(np.ones(4), (0, 8)))
    step = jax.jit(lambda carry, x: policy(carry, x))
    carry = policy.init(())
    for _ in range(60):
        carry, u = step(carry, x)
        x, before = jnp.asarray(A) @ x + jnp.asarray(B) @ u, x
    A, B = A[:4, :4], B[:4, :1]
    K, _ = gain(A, B, np.eye(4), np.eye(1))
    np.testing.assert_allclose(u[:1], -K @ np.asarray(before)[:4], rtol=1e-4)


def test_the_regulator_probes_plants_at_large_and_no_family_that_it_recognises(training):
    """At rest the input is the probe alone, of the size that the prior says."""
    prior, told = unknown.wide(unknown.families(training)), one(systems.make("cart_pole"))
    policy = unknown.adaptive(told, prior)
    ask, memory = jax.jit(lambda memory, x: policy(memory, x)), policy.init(())
    large = len(prior.dense) + len(prior.kinematic)
    is_large = jnp.arange(memory.belief.odds.shape[-1]) < large
    probes = []
    for recognised in (True, False):
        odds = jnp.where(is_large == recognised, memory.belief.odds - 100.0, memory.belief.odds)
        sure = dataclasses.replace(memory, belief=dataclasses.replace(memory.belief, odds=odds))
        probes.append(np.asarray(ask(sure, jnp.zeros(N_MAX))[1]))
    np.testing.assert_allclose(probes[0], 0.0, atol=1e-9)
    np.testing.assert_allclose(np.abs(probes[1]), [prior.probe[0], 0, 0, 0, 0, 0], rtol=1e-9, atol=1e-9)


def test_a_step_whose_measurement_is_missing_teaches_nothing_and_the_loop_is_regulated_on():
    """The belief against NumPy's dense posterior of the steps that were measured, with the inputs that were sent."""
    A, B = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.0], [0.1]])
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=np.eye(2), R=np.eye(1), dt=0.1)
    limit, prior = 0.8, unknown.wide()
    policy = unknown.adaptive(plant, prior, limit=limit)
    first = memory = policy.init(())
    ask = jax.jit(lambda memory, x: policy(memory, x))
    # from the start, before the plant is known; one overflows where it is squared
    wrong = {2: np.nan, 3: np.inf, 5: np.nan, 9: 1e200, 15: np.nan}
    x, pairs, last, sent = np.array([1.0, 0.5]), [], None, []
    for t in range(150):
        memory, u = ask(memory, jnp.asarray(np.where((t in wrong) & (np.arange(2) == t % 2), wrong.get(t, 0), x)))
        assert all(not np.isnan(a).any() for a in jax.tree.leaves(memory))
        np.testing.assert_array_equal(memory.z[N_MAX : N_MAX + 1], u)
        sent.append(float(u[0]))
        if last is not None and t < 20 and t not in wrong:
            pairs.append((last, x))
        last = None if t in wrong else np.concatenate([x, u])
        x = A @ x + B @ np.asarray(u)
        if t == 19:
            belief = memory.belief
    assert len(pairs) == 10
    assert np.isfinite(sent).all()
    assert max(np.abs(sent)) == limit
    assert np.abs(x).max() < 1e-3
    Z, after = (np.array(a) for a in zip(*pairs))
    columns = np.array([0, 1, N_MAX])
    for i in range(2):
        S = np.asarray(first.belief.spread)[0, 0, 1][np.ix_(columns, columns)]
        prior_mean = np.asarray(first.belief.theta)[0, 0, columns, i]
        precision = np.linalg.inv(S) + Z.T @ Z / 1e-8
        mean = np.linalg.solve(precision, np.linalg.solve(S, prior_mean) + Z.T @ after[:, i] / 1e-8)
        np.testing.assert_allclose(np.asarray(belief.theta)[0, 0, columns, i], mean, atol=1e-6)


def test_a_loop_in_si_units_is_the_padded_one_whose_padding_stays_zero_and_one_of_a_batch_is_the_same_alone(plants):
    """Of the adaptive regulator on the pendulums, without noise."""
    quiet = plants[:2].disturbed()
    x0 = jax.random.normal(KEY, (2, 3, N_MAX), float) * quiet.coordinates.state_mask[:, None]
    expected = simulation.rollout(quiet.limited(None), unknown.adaptive(quiet, unknown.wide()), x0, 20)
    assert not np.any(expected.xs[..., 2:])
    assert not np.any(expected.us[..., 1:])
    assert np.any(expected.us[..., 0])
    pendulums = sampled("pendulum", 2)
    scale_x, scale_u = (np.asarray(s).reshape(-1, 1, 1, s.shape[-1]) for s in pendulums.scales)
    policy = unknown.adaptive(pendulums, unknown.wide(), limit=20.0)
    run = simulation.rollout(pendulums, policy, np.asarray(x0)[..., :2] * scale_x[:, 0], 20, linear=True)
    np.testing.assert_allclose(np.asarray(run.xs) / scale_x, expected.xs[..., :2], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(np.asarray(run.us) / scale_u, expected.us[..., :1], rtol=1e-6, atol=1e-9)
    alone = plants.disturbed()[1]
    run = simulation.rollout(alone.limited(None), unknown.adaptive(alone, unknown.wide()), x0[1, 2], 20)
    np.testing.assert_allclose(run.us, expected.us[1, 2], rtol=1e-8, atol=1e-10)


def gains(plants, times=1.0):
    """A controller that knows too much: the optimal gains, multiplied."""
    K = plants.K * jnp.asarray(times, float).reshape(-1, 1, 1)
    return lambda problem: ConstantGain(K)


def test_the_exact_gain_has_ratio_one_and_nothing_to_learn_whatever_the_noise(plants):
    regret = unknown.score(gains(plants), plants, key=KEY, num_initial=3, num_steps=30)
    assert regret.ratio.shape == (4, 3)
    np.testing.assert_allclose(regret.ratio, 1.0, atol=1e-12)
    np.testing.assert_allclose(regret.regret, 0.0, atol=1e-12)
    np.testing.assert_allclose(regret.excess, 0.0, atol=1e-12)
    assert not regret.steps_until().any()
    assert not any(regret.summary().values())


def test_without_noise_the_excess_from_the_first_step_on_is_the_regret(plants):
    """The cost-difference lemma: cost above x0ᵀP x0 is what the inputs were off, squared."""
    quiet = plants.disturbed()
    regret = unknown.score(gains(quiet, 1.2), quiet, key=KEY, num_initial=3, num_steps=30)
    assert float(regret.ratio.min()) > 1.0001
    np.testing.assert_allclose(1 + regret.excess[..., 0], regret.ratio, rtol=1e-9)
    assert float(jnp.diff(regret.regret).min()) >= -1e-9


def test_the_excess_from_a_step_on_is_over_what_can_then_be_expected_to_be_paid(plants):
    """Against sums in NumPy: what is expected is xᵀPx and, for each step that is left, the noise's share."""
    T, K = 12, np.asarray(1.2 * plants.K)
    regret = unknown.score(gains(plants, 1.2), plants, key=KEY, num_initial=2, num_steps=T)
    start, noise = jax.random.split(KEY)
    x0 = jax.random.normal(start, (len(plants), 2, N_MAX)) * plants.coordinates.state_mask[:, None]
    run = simulation.rollout(plants, ConstantGain(jnp.asarray(K)), x0, T, key=noise)
    B, P, optimal = (np.asarray(a) for a in (plants.B, plants.P, plants.K))
    for v in range(len(plants)):
        S = np.eye(6) + B[v].T @ P[v] @ B[v]
        for xs, us, found in zip(run.xs[v], run.us[v], regret.excess[v]):
            off = np.asarray(us) + np.asarray(xs)[:-1] @ optimal[v].T
            above = np.einsum("ti,ij,tj->t", off, S, off)
            for t in range(T):
                least = np.asarray(xs)[t] @ P[v] @ np.asarray(xs)[t] + (T - t) * 0.02**2 * np.trace(P[v])
                np.testing.assert_allclose(found[t], above[t:].sum() / least, rtol=1e-6)


@pytest.mark.parametrize("factor", [-40.0, np.nan], ids=["wrong sign", "no number"])
def test_a_loop_that_diverges_counts_and_leaves_its_neighbours_alone(plants, factor):
    expected = unknown.score(gains(plants), plants, key=KEY, num_initial=2, num_steps=60)
    regret = unknown.score(gains(plants, [1.0, factor, 1.0, 1.0]), plants, key=KEY, num_initial=2, num_steps=60)
    assert regret.diverged.tolist() == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    np.testing.assert_array_equal(regret.failed, regret.diverged)
    assert np.isinf(regret.ratio[1]).all()
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(regret.ratio[others], expected.ratio[others])
    summary = regret.summary()
    assert (summary["diverged"], summary["failed"], summary["p95"]) == (25.0, 25.0, np.inf)
    assert (regret.steps_until()[1] == 60).all()


def test_steps_until_learned_end_after_the_last_step_that_cost_too_much():
    excess = jnp.array([[[0.5, 0.05, 0.2, 0.01], [0.0, 0.0, 0.0, 0.0], [9.0, 9.0, 9.0, jnp.nan]]])
    verdict, failed = jnp.zeros((1, 3), jnp.int8), jnp.zeros((1, 3), bool)
    regret = unknown.Regret(jnp.ones((1, 3)), verdict, failed, excess, excess)
    assert regret.steps_until().tolist() == [[3, 0, 4]]
    assert regret.steps_until(0.3).tolist() == [[1, 0, 4]]


def test_families_are_joined_and_taken_apart_again(plants):
    alone = unknown.problem_of(sampled("cart_pole", 2), noise=0.02)
    jax.tree.map(np.testing.assert_array_equal, plants[2:], alone)
    twice = plants[np.array([3, 3])].disturbed(noise=[[0.0], [0.1]], sensor_noise=0.2)
    np.testing.assert_allclose(twice.told("units").noise, [0.0, 0.1], rtol=1e-12)
    np.testing.assert_allclose(twice.told("units").sensor_noise, [0.2, 0.2], rtol=1e-12)
    np.testing.assert_array_equal(twice.A[0], plants.A[3])


def test_the_controller_sees_the_measured_state(plants):
    noisy = plants.disturbed(sensor_noise=0.3)
    regret = unknown.score(gains(noisy), noisy, key=KEY, num_initial=2, num_steps=10)
    np.testing.assert_allclose(regret.ratio, 1.0, atol=1e-12)  # as the reference does
    assert float(regret.excess.min()) > 0  # but the state's optimum pays less


def test_an_optimum_that_is_excited_has_not_failed(plants):
    excited = plants.disturbed(excitation=10.0)
    regret = unknown.score(gains(excited), excited, key=KEY, num_initial=8, num_steps=20)
    np.testing.assert_array_equal(regret.verdict, simulation.Verdict.BOUNDED)
    np.testing.assert_array_equal(regret.ratio, 1.0)


PENDULUM, PENDULUMS = systems.make("pendulum"), sampled("pendulum", 2)
NO_PLANT_AT_LARGE = dataclasses.replace(unknown.wide(), dense=jnp.zeros((0, 3)), kinematic=jnp.zeros((0, 4)))


def ahead(**settings):
    return unknown.look_ahead(unknown.adaptive(PENDULUM, unknown.ridge()), **settings)


WRONG = [
    (lambda: unknown.problem_of([]), "plants: expected a plant, or a list"),
    (lambda: unknown.problem_of(PENDULUMS, noise=-1.0), "noise: expected finite numbers ≥ 0"),
    (lambda: unknown.problem_of(PENDULUMS, noise=[[0.1]] * 3), r"noise: expected leading axes \(2,"),
    (lambda: unknown.problem_of(PENDULUMS, limit=0.0), "limit: expected a number > 0"),
    (
        lambda: unknown.score(simulation.no_control, Problem.of(PENDULUMS), key=KEY),
        r"plants: expected plants or a problem of unknown\.problem_of, but found another",
    ),
    (lambda: unknown.score(lambda p: p, PENDULUMS, key=KEY), "but found Problem"),
    (lambda: unknown.Regret(*[jnp.ones((1, 1, 1))] * 5).steps_until(0.0), "excess: expected a number > 0"),
    (
        lambda: unknown.look_ahead(unknown.adaptive(PENDULUM, NO_PLANT_AT_LARGE)),
        "policy: its prior knows families alone",
    ),
    *(
        (partial(unknown.adaptive, PENDULUM, unknown.ridge(), **{name: bad}), f"{name}: expected {words}")
        for name, bad, words in (
            *((name, bad, "finite numbers ≥ 0") for name in ("noise", "sensor_noise") for bad in (np.nan, -1.0)),
            *(("limit", bad, "numbers ≥ 0") for bad in (np.nan, -1.0)),
            *((name, np.ones(3), "one number") for name in ("noise", "sensor_noise", "limit")),
            ("doublings", -1, "a whole number"),
        )
    ),
    (lambda: unknown.adaptive(Problem.of(PENDULUM), unknown.ridge(), noise=0.1), "noise: expected that of the problem"),
    *((partial(ahead, **{name: 0}), f"{name}: expected a whole number") for name in ("num", "steps", "until")),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_wrong_arguments_are_refused_in_words(call, words):
    refused(words, call)
    with pytest.raises(TypeError, match="policy: expected an adaptive regulator"):
        unknown.look_ahead(unknown.score)


def test_no_control_is_a_baseline_and_loses_all(training, plants):
    found = unknown.baselines(training)
    assert found.keys() == {"no control", *SETTINGS}
    assert unknown.score(found["no control"], plants, key=KEY, num_initial=2, num_steps=60).failed.all()


@pytest.mark.parametrize("name", SETTINGS)
def test_each_baseline_regulates_the_families_that_it_knows(training, plants, name):
    regret = unknown.score(baseline(name, training), plants, key=KEY, num_initial=2, num_steps=60)
    assert float(jnp.median(regret.ratio)) < (5.0 if "ridge" in name else 1.3)
    assert not regret.failed.any()


def test_a_root_of_a_covariance_is_one():
    half = np.random.default_rng(0).normal(size=(6, 4))
    S = half @ half.T  # of rank 4
    L = np.asarray(beliefs._root(jnp.asarray(S)))
    np.testing.assert_allclose(L @ L.T, S, atol=1e-9)


def test_weights_come_back_from_a_file_and_a_strangers_file_is_refused(tmp_path, training):
    families = unknown.wide(unknown.families(training))
    for prior in (unknown.wide(), families, spoken(0, prior=families), spoken(1)):
        weight_files.write(tmp_path / "prior.safetensors", prior, {"limits": "none"})
        back = weight_files.read(tmp_path / "prior.safetensors")
        jax.tree.map(partial(np.testing.assert_array_equal, strict=True), prior, back)
    second, last = prior.guess.second, prior.guess.last.astype(float)
    for wrong in ({"first": prior.guess.first[1:]}, {"second": second[1:], "last": last[1:]}, {"last": 1e300 * last}):
        bad = dataclasses.replace(prior.guess, **wrong)
        weight_files.write(tmp_path / "prior.safetensors", dataclasses.replace(prior, guess=bad), {})
        refused(f"guess/{next(iter(wrong))}: expected", weight_files.read, tmp_path / "prior.safetensors")

    refused("name: expected one of", learning.pretrained, "nothing")


def transformer(**settings):
    sizes = {"window": 3, "width": 8, "depth": 1, "heads": 2}
    return learning.models.build(learning.ModelConfig(kind="transformer", **sizes, **settings))


def test_a_policy_bound_to_one_family_controls_no_other():
    adaptive, of_problem = (unknown.adaptive(plant, unknown.wide()) for plant in (PENDULUM, Problem.of(PENDULUM)))
    for policy in (learning.policy(transformer(), PENDULUM), adaptive, of_problem):
        assert simulation.rollout(PENDULUM, policy, jnp.full(2, 0.1), 3).us.shape == (3, 1)
        words = "expected the 2 states .* bound to, but found 4; bind it"
        refused(words, simulation.rollout, systems.make("cart_pole"), policy, jnp.full(4, 0.1), 3)


def test_a_network_with_a_history_sees_the_last_state_again_where_none_is_measured():
    policy = learning.policy(transformer(), PENDULUMS)
    ask = jax.jit(lambda memory, x: policy(memory, x))
    gaps, again = policy.init((2,)), policy.init((2,))
    states = np.random.default_rng(0).normal(size=(8, 2, 2))
    for t, x in enumerate(states):
        x[0] = states[2, 0] if t in (3, 4) else x[0]
        gaps, found = ask(gaps, np.where((t in (3, 4)) & (np.arange(2) == 0)[:, None], np.nan, x))
        again, expected = ask(again, x)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(np.unique(found)) == 2


def test_a_network_without_a_description_enters_the_table(plants):
    blind = transformer(description=False)
    regret = unknown.score(partial(learning.policy, blind), plants, key=KEY, num_initial=1, num_steps=10)
    assert regret.ratio.shape == (4, 1)
    # an untrained one answers as it does to plants whose matrices it is not told either
    units = Problem.of(PENDULUMS, linear=True, optimum=False).told("units")
    told, untold = learning.policy(blind, PENDULUMS), learning.policy(blind, units)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2)))
    u = told(told.init((2,)), x)[1]
    padded = untold(untold.init((2,)), jnp.pad(x, ((0, 0), (0, 10))))[1]
    np.testing.assert_allclose(padded[:, :1], u, rtol=1e-5)

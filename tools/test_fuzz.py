"""Calls with wrong arguments, in small numbers: ``make fuzz`` makes thousands of them."""

import collections
import inspect
import re

import fuzz
import jax
import numpy as np
import pytest
from fuzz_calls import CALLS, NOT_CALLED
from jaxtyping import TypeCheckError

from lqrlab import control, dataset, evaluation, predictive, simulation, systems, tuning
from lqrlab.compute import checks

QUICK = (
    *("compute.Backend", "tuning.StepSpecs", "tuning.inverse_lqr", "control.lqr", "control.margins"),
    *("control.modes", "control.place", "control.stage_weight", "control.zeros", "dataset.DataConfig"),
    *("dataset.open", "evaluation.settling_steps", "learning.TrainConfig", "simulation.check_policy"),
    *("simulation.bind", "simulation.Problem.of", "simulation.Problem.from_matrices", "simulation.rollout"),
    *("systems.from_matrices", "systems.make", "systems.pad_matrix", "systems.sample"),
)
"""Functions that compile little."""


@pytest.mark.parametrize("room", [control, systems, simulation, evaluation], ids=lambda room: room.__name__)
def test_each_public_function_is_called_with_wrong_arguments(room):
    functions = {
        f"{room.__name__.removeprefix('lqrlab.')}.{name}"
        for name in room.__all__
        if inspect.isroutine(getattr(room, name))
    }
    called = {name.partition(",")[0] for name in CALLS}
    assert functions - called - {*NOT_CALLED} == set()
    assert not called & {*NOT_CALLED}


# hypothesis blames a strategy where a thread of the process has drawn from random meanwhile
@pytest.mark.filterwarnings("default::hypothesis.errors.HypothesisDeprecationWarning")
def test_wrong_arguments_are_answered_or_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcomes, wrong = collections.Counter(), []
    last = ""

    def say(row):
        nonlocal last
        last = row.get("call", last)
        outcomes[row.get("outcome")] += 1
        if row.get("outcome") in ("wrong", "cryptic"):
            wrong.append((last, row["words"]))

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users have it
        for name in QUICK:
            fuzz.make_calls(name, 5, 7, say, refusals=TypeCheckError)
    assert not wrong
    assert outcomes["right"] + outcomes["refused"] == 5 * len(QUICK) >= 100


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (checks.flag, 0, "expected True or False, but found 0 (int)"),
        (checks.flag, np.ones(2), "expected True or False, but found array([1., 1.]) (ndarray)"),
        (checks.text, 3, "expected a text, but found 3 (int)"),
        (checks.path, None, "expected a path, but found None (NoneType)"),
        (checks.function, "x", "expected a function, but found 'x' (str)"),
        (checks.whole, 10**30, f"expected a whole number ≥ 1 that fits into 64 bits, but found {10**30}"),
        (lambda name, value: checks.choice(name, value, ["a"]), np.ones(2), "expected one of a, but found"),
    ],
)
def test_a_check_names_the_argument_what_was_expected_and_what_came(check, value, words):
    with pytest.raises(ValueError, match="^given: " + re.escape(words)):
        check("given", value)


VARIANTS, GAIN = (systems.sample("pendulum", key=jax.random.key(0), num=2), simulation.LinearPolicy(np.ones((1, 2))))
STARTS = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: simulation.rollout(VARIANTS, GAIN, np.zeros(2), 3), r"x0: expected shape \[2, …, 2\]"),
        (lambda: simulation.rollout(VARIANTS, GAIN, STARTS, 10**30), "num_steps: expected a whole number"),
        (lambda: simulation.Problem.of(VARIANTS, noise=np.ones((3, 2))), "noise: expected leading axes"),
        (lambda: evaluation.attraction(VARIANTS[0], GAIN, STARTS * np.nan), "x0: expected finite numbers"),
        (lambda: evaluation.settling_steps([0.5], shortest=2, longest=1), "shortest, longest: expected"),
        (lambda: control.delayed(*[np.eye(1)] * 4, 0.1, 1e6), r"delay: expected .* in \[0, 500\]"),
        (lambda: control.settling_time(np.zeros(0)), "poles: expected at least one"),
        (lambda: control.unsaturated_level(np.ones((1, 2)), np.eye(2), np.nan), "limit: expected numbers"),
        (lambda: control.c2d(np.eye(2), np.eye(2), []), "dt: expected a sample time"),
        (lambda: control.c2d(np.ones((2, 1, 1)), np.eye(1), [0.1] * 3), "dt: expected one sample time, or"),
        (lambda: control.settling_time(np.ones((2, 1)), np.ones(3)), "dt: expected one sample time, or"),
        (lambda: control.ctrb(np.eye(0), np.ones((0, 1))), "A: expected at least one row and column"),
        (lambda: control.margins(np.eye(1), [[1e300]], [[1e300]]), "K: the loop A − BK is not stable"),
        (lambda: tuning.inverse_lqr(np.eye(1), [[1e300]], [[1e300]]), "K: the loop A − BK is not stable"),
        (lambda: tuning.step_info(np.ones((0, 1)), 0.1, [1.0]), "ys: expected outputs"),
        (lambda: control.sensitivity(-np.eye(2), np.eye(2), np.eye(2), 1.0), "frequencies: expected an array"),
        (lambda: tuning.step_info(np.ones((3, 1)), 0.1, [1.0], within=np.nan), "within: expected a share"),
        (lambda: tuning.step_info(np.ones((3, 1)), 0.1, [1.0], within=1e30), "within: expected a share"),
        (lambda: control.spectral_radius("A"), "A: expected real numbers"),
        (lambda: control.spectral_radius(np.eye(2), squarings=10**9), "squarings: expected a whole number"),
        (lambda: simulation.bind(simulation.LinearPolicy(None), VARIANTS), "controller: expected real numbers"),
        (lambda: simulation.rollout(VARIANTS, GAIN, STARTS, 3, keep=()), "keep: expected a tuple of some of"),
        (lambda: control.stage_weight(*[np.eye(2)] * 3, np.eye(3)), "K: expected shape"),
        (lambda: control.stage_weight(*[np.eye(2)] * 3, np.eye(2) * 1j), "K: expected real numbers"),
        (lambda: predictive.ilqr(len, [0.0], [[1.0]], [[1.0]], 2, dt=0.1), "f: fails on a state"),
        (lambda: systems.pad_matrix(np.eye(2), 1, 2), "rows: expected a whole number ≥ 2"),
        (lambda: systems.from_matrices(np.eye(2), np.eye(2), Q=np.zeros((0, 2))), r"Q: expected \(2, 2\)"),
        (lambda: systems.check_parameter(type(VARIANTS), "lenght", 1.0), "lenght: pendulum has no such"),
        (lambda: systems.with_rates("x ± 1 m", time=0.0), "time: expected a time above 0 s"),
        (lambda: VARIANTS.initial_state(key=jax.random.key(0), num=-1), "num: expected a whole number"),
        (lambda: dataset.random_systems(jax.random.key(0), 0), "num: expected a whole number"),
    ],
)  # fmt: skip
def test_what_a_call_cannot_take_is_refused_in_words(call, words):
    with pytest.raises((ValueError, TypeCheckError), match=f"^{words}"):
        call()


def test_where_an_eigenvalue_algorithm_fails_the_margins_say_so(monkeypatch):
    def fails(*args):
        raise np.linalg.LinAlgError("no convergence")

    monkeypatch.setattr("lqrlab.control.analysis.system_norms._hamiltonian", fails)
    with pytest.raises(ValueError, match=r"^A, B, C, D: expected numbers nearer to one.*no convergence"):
        control.margins([[0.0]], [[1.0]], [[2.0]])


def test_a_schedule_over_a_plant_that_is_not_finite_says_where():
    A = np.array([[[0.0]], [[np.inf]]])
    with pytest.raises(ValueError, match=r"^grid: 1 of 2 points.* at 2: A is not finite"):
        tuning.gain_schedule(np.array([1.0, 2.0]), A, np.ones((1, 1)), np.eye(1), np.eye(1))

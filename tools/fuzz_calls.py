"""Correct calls of the public functions, and what their answers are checked by."""

import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from fuzz_damage import KEY, Made, anything, gain, residual, starts_at_x0

from lqrlab import (
    classical,
    compute,
    control,
    dataset,
    deployment,
    evaluation,
    learning,
    predictive,
    robots,
    robust,
    simulation,
    systems,
    tuning,
    unknown,
)

A, B, C, D = (np.array([[0.0, 1.0], [2.0, -0.5]]), np.array([[0.0], [1.0]]), np.array([[1.0, 0.0]]), np.array([[0.0]]))
Q, R, N, DT = np.eye(2), np.array([[1.0]]), np.array([[0.1], [0.0]]), 0.1
F, G, K = scipy.linalg.expm(A * DT), np.array([[0.005], [0.1]]), np.array([[5.0, 3.0]])
STABLE = np.array([[-1.0, 0.5], [0.0, -2.0]])
PENDULUM = systems.make("pendulum")
LINEAR = systems.linearise(PENDULUM)
VARIANTS = systems.sample("pendulum", key=KEY, num=2)
GAIN = simulation.LinearPolicy(control.lqrd(*PENDULUM.matrices(), *PENDULUM.weights(), PENDULUM.dt).K)
SPECS = tuning.StepSpecs(settling=3.0)
DATA = dataset.DataConfig(families=("pendulum",), variants=4, trajectories=2, num_steps=16)
MODEL = learning.ModelConfig(kind="transformer", window=2, width=4, depth=1, heads=1, hidden=4)
TRAIN = learning.TrainConfig(num_steps=2, batch_size=4, plants=2, horizon=2, report_every=1, checkpoint_every=1)
FOLDER = tempfile.TemporaryDirectory()
RUN = Path(FOLDER.name) / "run"


def field(x, u):
    """A pendulum without units."""
    return jnp.stack([x[1], jnp.sin(x[0]) + u[0]])


def read(x):
    """The parameter of the schedule."""
    return x[..., :1]


def keeps_to_gamma(found, given) -> str:
    """Of a robust controller: the loop is stable and its norm is no larger than promised."""
    stable = np.abs(found.poles).max() < 1 if given.get("dt") is not None else found.poles.real.max() < 0
    return "" if stable and found.norm <= found.gamma else f"poles {found.poles}, norm {found.norm}, γ {found.gamma}"


# Things that take a while to be made: once, when a call needs them -------------------------------------------


@functools.cache
def data() -> dataset.Dataset:
    """A data set on disk."""
    return dataset.generate(DATA, Path(FOLDER.name) / "data")


@functools.cache
def source(kind: str = "resident") -> dataset.Source:
    """Its windows."""
    return dataset.source(data(), kind=kind, batch_size=4, window=2)


def learner() -> unknown.AdaptivePolicy:
    """Which is told nothing of a pendulum."""
    return unknown.adaptive(PENDULUM, unknown.ridge())


@functools.cache
def trained() -> learning.Fit:
    """A network after two steps; its run is in the folder ``run``."""
    return learning.fit(source(), MODEL, TRAIN, RUN)


@functools.cache
def a_file() -> Path:
    """A plant on disk."""
    np.savez(file := Path(FOLDER.name) / "plant.npz", A=A, B=B)
    return file


@functools.cache
def a_robot() -> Path:
    """A lever with a motor, in MuJoCo's format."""
    (file := Path(FOLDER.name) / "lever.xml").write_text(
        '<mujoco><worldbody><body><joint name="pivot"/><geom size=".1" pos="1 0 0" mass="2"/></body></worldbody>'
        '<actuator><motor name="motor" joint="pivot"/></actuator></mujoco>'
    )
    return file


@functools.cache
def firmware() -> Path:
    """A controller in C."""
    return deployment.to_c(GAIN, PENDULUM, Path(FOLDER.name) / "code")


def a_folder() -> Path:
    """A folder that is not there yet."""
    return Path(tempfile.mkdtemp(dir=FOLDER.name)) / "made"


@functools.cache
def schedule() -> tuning.Schedule:
    """Gains over one parameter."""
    return tuning.gain_schedule([_w], np.stack([A, A]), np.stack([B, B]), Q, R)


@functools.cache
def plan() -> predictive.ILQR:
    """A planned trajectory."""
    return predictive.ilqr(PENDULUM.dynamics, _x0, Q, R, 5, dt=PENDULUM.dt)


# Public functions that take more than plain arguments, by plain arguments -------------------------------------


def cost_to_go(A, B, Q, R, N, K):
    """control.cost_to_go of a problem by its matrices."""
    return control.cost_to_go(control.Sampled(A, B, Q, R, N), K)


def with_rates(text, time):
    """systems.with_rates of one line of a data sheet."""
    return systems.with_rates(text, time=time)


def register(cls, name):
    """systems.register; what it has entered is taken out again."""
    before = systems.names()
    try:
        return systems.register(cls, name=name)
    finally:
        for entered in {*systems.names()} - {*before}:
            systems.families.FAMILIES.pop(entered)


def declared(default, unit, about, low, high):
    """A plant class with one parameter, checked."""

    class Declared(systems.Plant):
        states, inputs = systems.signals("level ± 1 m"), systems.signals("flow ± 1 m³/s")
        dt, source = 0.1, "none"
        area: jax.Array = systems.param(default, unit, about, low, high)

        def dynamics(self, x, u):
            return u / self.area

    return systems.check(Declared)


def rolled_out(x0, K, num_steps):
    """A rollout under a gain."""
    return simulation.rollout(PENDULUM, simulation.LinearPolicy(K), x0, num_steps)


def windows(data, **settings):
    """A batch of dataset.source."""
    return dataset.source(data, **settings).windows(0, 1)


def objective(config):
    """learning.objective of the network."""
    return learning.objective(learning.models.split(trained().model)[0], config)


def setup(x64, cache):
    """compute.setup, undone."""
    try:
        compute.setup(x64=x64, cache=cache)
    finally:
        compute.setup()


# Calls ------------------------------------------------------------------------------------------------------

_generalized = {"A": A, "B": np.hstack([C.T, B]), "C": np.vstack([C, C]), "D": np.array([[0.0, 1.0], [1.0, 0.0]]),
                "nmeas": 1, "ncon": 1, "dt": DT}  # fmt: skip
_ab, _abc, _design = {"A": A, "B": B}, {"A": STABLE, "B": B, "C": C}, {"A": A, "B": B, "Q": Q, "R": R}
_sampled = {"A": F, "B": G, "Q": Q, "R": R}
_loop, _costs = {"A": A, "B": B, "K": K}, {"Q": Q, "R": R, "N": N, "K": K}
_run = {"plant": PENDULUM, "controller": GAIN, "x0": np.array([0.1, 0.0]), "num_steps": 5}
_w, _x0, _d = np.array([0.5, 1.0]), np.array([0.1, 0.0]), _abc | {"D": D}
_noise = {"noise": 0.1, "sensor_noise": 0.1, "excitation": np.array([0.1]), "key": KEY}
_kalman = {"C": C, "W": Q, "V": R}
_step = {"A": F, "B": G, "C": C, "K": K, "r": np.ones(1), "num_steps": 4}
_ys = {"ys": np.array([[0.0], [0.5], [1.0]]), "dt": DT, "r": np.ones(1), "within": 0.02}
_grid = {"grid": [_w], "A": np.stack([A, A]), "B": np.stack([B, B]), "Q": Q, "R": R}
_plan = {"f": field, "x0": _x0, "Q": Q, "R": R, "num_steps": 5, "dt": DT}
_tune = {"A": A, "B": B, "C": C, "Q": Q, "R": R, "dt": DT, "specs": SPECS, "r": 1.0, "seed": 0}
_specs = {"settling": 1.0, "overshoot": 0.1, "effort": 2.0, "margin": 0.5, "within": 0.02}
_front = _design | {"dt": DT, "Qs": np.stack([Q, 2 * Q]), "Rs": np.stack([R, R]), "X0": Q}
_plant = {"f": field, "x_eq": np.zeros(2), "u_eq": np.zeros(1), "Q": Q, "R": R, "dt": DT}
_given = _abc | {"Q": Q, "R": R, "dt": DT, "states": ["angle [rad]", "rate [rad/s]"]}
_score = {"controller": GAIN, "plants": PENDULUM, "key": KEY, "num_initial": 2, "num_steps": 20, "linear": True}
_score_x0 = _score | {"x0": _x0[None]}
_region = {"plant": PENDULUM, "controller": GAIN, "x0": _x0[None], "num_steps": 20, "limits": (-9.0, 9.0)}
_data = {"families": ("pendulum",), "variants": 3, "spread": 0.2, "trajectories": 2, "num_steps": 5, "seed": 0,
         "excitation": 0.1, "linear": True}  # fmt: skip
_windows = {"kind": "auto", "split": "train", "batch_size": 2, "window": 2, "seed": 0, "pool_bytes": 10**6}
_problem = {"plants": PENDULUM, "dt": DT, "linear": False, "limits": (-9.0, 9.0), "noise": 0.1, "substeps": 2}
_declared = {"default": 1.0, "unit": "m²", "about": "area", "low": 0.1, "high": 10.0}
_length = {"cls": type(PENDULUM), "key": "length", "value": 0.5}
_scheduled = {"plant": PENDULUM, "schedule": Made(schedule), "read": read}
_stored = {"folder": Made(lambda: trained() and RUN / "checkpoints"), "which": "last"}
_model = {"kind": "transformer", "window": 8, "width": 32, "heads": 4, "description": True, "seed": 0}
_train = {"num_steps": 20, "batch_size": 8, "learning_rate": 1e-3, "warmup": 0.05, "loss": "masked_mse", "plants": 4,
          "random_systems": 0}  # fmt: skip
_backend = {"device": "cpu", "mesh": "", "dtype": "float32", "jit": True, "seed": 0}
_fit = {"source": Made(source), "model": MODEL, "config": TRAIN}

_pid = {"process": (STABLE, B, C), "rule": "max_ki", "kind": "pi", "dt": DT, "delay": 0.2, "ms": 1.5, "b": 0.5,
        "tracking_time": 1.0}  # fmt: skip
_lag = {"model": classical.ProcessModel(1.0, 2.0, 0.5), "kind": "pi"}
_limited = {"x0": np.array([0.3, 0.1]), "num_steps": 3}

CALLS = {
    "control.lqr": (control.lqr, _design | {"N": N}, gain()),
    "control.dlqr": (control.dlqr, _sampled | {"N": N}, gain(discrete=True)),
    "control.lqrd": (control.lqrd, _design | {"dt": DT, "N": N}, gain(sampled=True)),
    "control.care": (control.care, _design, anything),
    "control.dare": (control.dare, _sampled, anything),
    "control.lyap": (control.lyap, {"A": STABLE, "Q": Q}, residual(lambda a, X, q: a @ X + X @ a.T + q)),
    "control.dlyap": (control.dlyap, {"A": F / 2, "Q": Q}, residual(lambda a, X, q: a @ X @ a.T - X + q)),
    "control.c2d": (control.c2d, _ab | {"dt": DT}, anything),
    "control.discretize": (control.discretize, _design | {"dt": DT, "N": N}, anything),
    "control.cost_to_go": (cost_to_go, _sampled | _costs, anything),
    "control.stage_weight": (control.stage_weight, _costs, anything),
    "control.finite_horizon": (control.finite_horizon, _sampled | {"num_steps": 3, "Qf": Q}, anything),
    "predictive.constrained_lqr": (
        lambda low, high, **given: predictive.constrained_lqr(**given, limits=simulation.Limits(u=(low, high))),
        _sampled | _limited | {"low": -1.0, "high": 1.0}, anything,
    ),
    "predictive.mpc": (
        lambda problem, low, high, **given: predictive.mpc(
            simulation.Problem.limited(problem, simulation.Limits(u=(low, high), x=(-2.0, 2.0)))
            if isinstance(problem, simulation.Problem)
            else problem,
            **given,
        ),
        {"problem": Made(lambda: simulation.Problem.of(PENDULUM)), "low": -1.0, "high": 1.0, "horizon": 3}, anything,
    ),
    "control.delayed": (control.delayed, _design | {"dt": DT, "delay": 0.05}, anything),
    "control.delay_cost": (control.delay_cost, _design | {"dt": DT, "delay": 0.05}, anything),
    "control.lqrd_delayed": (control.lqrd_delayed, _design | {"dt": DT, "delay": 0.05}, anything),
    "control.diagnose": (control.diagnose, _design, anything),
    "control.lqe": (control.lqe, {"A": A} | _kalman, anything),
    "control.dlqe": (control.dlqe, {"A": F} | _kalman, anything),
    "control.lqg": (control.lqg, _design | _kalman, anything),
    "control.lqi": (control.lqi, _design | {"C": C, "Qi": R}, anything),
    "control.policy_iteration": (control.policy_iteration, _sampled | {"N": N, "K": K}, anything),
    "control.sampled_noise": (control.sampled_noise, {"A": A, "W": Q, "dt": DT}, anything),
    "control.spectral_radius": (control.spectral_radius, {"A": F, "squarings": 20}, anything),
    "control.feedforward": (control.feedforward, _abc | {"discrete": False}, anything),
    "control.ctrb": (control.ctrb, _ab, anything),
    "control.obsv": (control.obsv, {"A": A, "C": C}, anything),
    "control.gram": (control.gram, {"A": STABLE, "B": B}, anything),
    "control.h2_norm": (control.h2_norm, _abc, anything),
    "control.hinf_norm": (control.hinf_norm, _d, anything),
    "control.zeros": (control.zeros, _d, anything),
    "robust.hinfsyn": (robust.hinfsyn, _generalized, keeps_to_gamma),
    "robust.h2syn": (robust.h2syn, _generalized, keeps_to_gamma),
    "robust.hinfstruct": (robust.hinfstruct, _generalized | {"starts": 2}, keeps_to_gamma),
    "robust.mixsyn": (robust.mixsyn, {"G": (A, B, C, D), "W1": (-R, R, R, R), "W2": 0.1}, keeps_to_gamma),
    "robust.ncfsyn": (robust.ncfsyn, {"A": A, "B": B, "C": C, "D": D, "dt": DT}, keeps_to_gamma),
    "robust.balred": (robust.balred, {"A": STABLE / 3, "B": B, "C": C, "D": D, "order": 1, "dt": DT}, anything),
    "robust.mu": (robust.mu, {"M": A, "blocks": [1, -1]}, anything),
    "robust.musyn": (robust.musyn, _generalized | {"blocks": [(1, 1)], "order": 1, "rounds": 1}, anything),
    "control.modes": (control.modes, {"A": A, "dt": DT}, anything),
    "control.margins": (control.margins, _loop, anything),
    "control.sensitivity": (control.sensitivity, _loop | {"frequencies": _w}, anything),
    "control.frequency_response": (control.frequency_response, _abc | {"frequencies": _w}, anything),
    "tuning.step_response": (tuning.step_response, _step, anything),
    "tuning.step_info": (tuning.step_info, _ys, anything),
    "control.settling_time": (control.settling_time, {"poles": np.array([0.5, 0.2]), "dt": DT}, anything),
    "control.settling_steps": (control.settling_steps, {"poles": np.array([0.9, 0.5]), "times": 2.0, "shortest": 100,
                                                        "longest": 2000}, anything),
    "classical.pid": (classical.pid, _pid, anything),
    "classical.pid, plant": (classical.pid, {"process": PENDULUM, "rule": "optimal", "num_starts": 4, "seed": 0},
                             anything),
    "classical.simc": (classical.simc, _lag | {"tau_c": 1.0}, anything),
    "classical.amigo": (classical.amigo, _lag, anything),
    "classical.ziegler_nichols": (classical.ziegler_nichols, _lag, anything),
    "classical.cohen_coon": (classical.cohen_coon, _lag, anything),
    "classical.ProcessModel": (classical.ProcessModel, {"gain": 1.0, "time_constant": 2.0, "delay": 0.5, "second": 1.0},
                             anything),
    "classical.ProcessModel.of_record": (
        classical.ProcessModel.of_record, {"u": np.ones(9), "y": np.arange(9.0), "dt": DT},
                                       anything),
    "control.place": (control.place, _ab | {"poles": np.array([-1.0, -2.0])}, anything),
    "tuning.inverse_lqr": (tuning.inverse_lqr, _loop, anything),
    "tuning.gain_schedule": (tuning.gain_schedule, _grid, anything),
    "control.unsaturated_level": (control.unsaturated_level, {"K": K, "P": Q, "limit": 1.0}, anything),
    "tuning.pareto": (tuning.pareto, _front, anything),
    "tuning.tune": (tuning.tune, _tune, anything),
    "predictive.ilqr": (predictive.ilqr, _plan, anything),
    "tuning.StepSpecs": (tuning.StepSpecs, _specs, anything),
    "systems.family": (systems.family, {"name": "pendulum"}, anything),
    "systems.make": (systems.make, {"name": "pendulum", "length": 0.5}, anything),
    "systems.sample": (systems.sample, {"name": "pendulum", "key": KEY, "num": 3, "spread": 0.2}, anything),
    "systems.from_matrices": (systems.from_matrices, _given, anything),
    "systems.from_dynamics": (systems.from_dynamics, _plant, anything),
    "systems.load": (systems.load, {"path": Made(a_file), "dt": DT}, anything),
    "deployment.to_c": (
        deployment.to_c,
        {"controller": GAIN, "problem": PENDULUM, "folder": Path(FOLDER.name) / "firmware"},
        anything,
    ),
    "deployment.load_c": (deployment.load_c, {"folder": Made(firmware), "single": False}, anything),
    "deployment.CoSimulation": (deployment.CoSimulation, {"path": Made(a_file), "dt": DT, "trusted": True}, anything),
    "robots.from_mujoco": (
        robots.from_mujoco,
        {"model": Made(a_robot), "at": [0.1], "actuated": ["pivot"], "fixed": [], "dt": DT, "name": "lever"},
        anything,
    ),
    "deployment.realtime": (
        deployment.realtime,
        {"controller": K, "plant": PENDULUM, "rate": 50.0, "seconds": 0.1, "x0": [0.1, 0.0], "clock": "simulated"},
        anything,
    ),
    "deployment.to_fmu": (
        deployment.to_fmu,
        {"controller_or_plant": K, "path": Path(FOLDER.name) / "gain.fmu", "problem": PENDULUM},
        anything,
    ),
    "deployment.save": (deployment.save, {"thing": K, "path": Path(FOLDER.name) / "gain.mat"}, anything),
    "deployment.load": (deployment.load, {"path": Made(a_file)}, anything),
    "systems.linearise": (systems.linearise, {"plant": PENDULUM}, anything),
    "systems.pad": (systems.pad, {"plant": LINEAR, "n": 3, "m": 2}, anything),
    "systems.pad_matrix": (systems.pad_matrix, {"a": Q, "rows": 3, "columns": 4, "diagonal": 1.0}, anything),
    "control.modes_in_words": (control.modes_in_words, {"plant": PENDULUM}, anything),
    "systems.check": (systems.check, {"cls": type(PENDULUM)}, anything),
    "systems.check_parameter": (systems.check_parameter, _length, anything),
    "systems.parameter_fields": (systems.parameter_fields, {"cls": type(PENDULUM)}, anything),
    "systems.register": (register, {"cls": LINEAR, "name": "my_plant"}, anything),
    "systems.param": (declared, _declared, anything),
    "systems.signals": (lambda text: systems.signals(text), {"text": "x, y = 0.1 ± 0.5 m"}, anything),
    "systems.with_rates": (with_rates, {"text": "x ± 1 m", "time": 0.5}, anything),
    "systems.initial_state": (PENDULUM.initial_state, {"key": KEY, "num": 2}, anything),
    "simulation.Problem.of": (simulation.Problem.of, _problem, anything),
    "simulation.Problem.from_matrices": (
        simulation.Problem.from_matrices, _sampled | {"N": N, "limits": (-1.0, 1.0)}, anything),
    "simulation.bind": (simulation.bind, {"controller": K, "problem": PENDULUM}, anything),
    "simulation.rollout": (simulation.rollout, _run | {"dt": DT, "substeps": 2}, starts_at_x0),
    "simulation.rollout, linear": (simulation.rollout, _run | {"linear": True, "keep": ("xs",)} | _noise, starts_at_x0),
    "simulation.rollout, gain": (rolled_out, {"x0": _x0, "K": K, "num_steps": 5}, starts_at_x0),
    "simulation.no_control": (simulation.no_control, {"plant": PENDULUM}, anything),
    "tuning.scheduled": (tuning.scheduled, _scheduled, anything),
    "simulation.tracking": (simulation.tracking, {"plant": PENDULUM, "plan": Made(plan)}, anything),
    "simulation.outputs": (simulation.outputs, {"plant": PENDULUM}, anything),
    "simulation.check_policy": (simulation.check_policy, {"policy": GAIN, "x": _x0, "m": 1}, anything),
    "evaluation.evaluate": (evaluation.evaluate, _score, anything),
    "evaluation.evaluate, x0": (evaluation.evaluate, _score_x0, anything),
    "evaluation.attraction": (evaluation.attraction, _region, anything),
    "unknown.problem_of": (unknown.problem_of, {"plants": VARIANTS, "noise": 0.01, "sensor_noise": 0.0,
                                                                "limit": 20.0}, anything),
    "evaluation.certify": (evaluation.certify, {"controller": GAIN, "plants": PENDULUM}, anything),
    "evaluation.settling_steps": (evaluation.settling_steps, {"poles": np.array([0.9, 0.5]), "times": 2.0,
                                                              "shortest": 100, "longest": 2000}, anything),
    "dataset.DataConfig": (dataset.DataConfig, _data, anything),
    "dataset.random_systems": (dataset.random_systems, {"key": KEY, "num": 2}, anything),
    "dataset.generate": (dataset.generate, {"config": DATA, "path": Made(a_folder)}, anything),
    "dataset.open": (dataset.open, {"path": Made(lambda: data().path)}, anything),
    "dataset.verify": (dataset.verify, {"path": Made(lambda: data().path), "again": True}, anything),
    "dataset.source": (windows, {"data": Made(data)} | _windows, anything),
    "learning.ModelConfig": (learning.ModelConfig, _model, anything),
    "learning.TrainConfig": (learning.TrainConfig, _train, anything),
    "unknown.look_ahead": (unknown.look_ahead, {"policy": Made(learner), "num": 2, "steps": 2, "until": 2}, anything),
    "learning.learning_rate": (learning.learning_rate, {"config": TRAIN}, anything),
    "learning.optimizer": (learning.optimizer, {"config": TRAIN}, anything),
    "learning.objective": (objective, {"config": TRAIN}, anything),
    "learning.fit": (learning.fit, _fit | {"folder": Made(a_folder)}, anything),
    "learning.load": (learning.load, _stored, anything),
    "learning.policy": (learning.policy, {"model": Made(lambda: trained().model), "plants": PENDULUM}, anything),
    "learning.stop": (learning.stop, {"folder": Made(lambda: trained() and RUN)}, anything),
    "compute.Backend": (compute.Backend, _backend, anything),
    "compute.setup": (setup, {"x64": True, "cache": False}, anything),
    "compute.timeit": (lambda repeats: compute.timeit(list, repeats=repeats), {"repeats": 2}, anything),
}  # fmt: skip

SLOW = {
    "tuning.tune": 20,
    "predictive.constrained_lqr": 20,
    "classical.pid": 4,
    "classical.pid, plant": 20,
    "dataset.random_systems": 4,
    "learning.fit": 20,
    "learning.load": 4,
    "dataset.generate": 4,
}
"""Functions that are called so many times less often than the others."""

NOT_CALLED = {
    "systems.names": "takes nothing",
    "systems.check_plant": "all that takes a plant calls it",
    "systems.check_size": "all that pads plants calls it",
    "systems.gravity": "is systems.param with one argument",
    "systems.register_file": "names families for the whole process",
    "control.lq_tracking": "its sequences of matrices are refused in words in test_control_designs",
    **dict.fromkeys(
        ("simulation.delayed", "simulation.estimated", "simulation.integrating", "classical.pid_loops"),
        "takes a design, which is called; another plant's is refused in words in test_simulation_policies",
    ),
    "predictive.optimum": "is predictive.mpc, which is called, for several horizons",
    "predictive.nonlinear_mpc": "takes a problem, which is called; its limits are those of predictive.mpc",
    "predictive.filtered": "takes a problem and a controller, which are called; its limits are in test_mpc",
    **dict.fromkeys(
        ("simulation.extended_kalman", "simulation.unscented_kalman"),
        "takes a problem and a policy, which are called; see test_simulation_policies",
    ),
    **dict.fromkeys(
        (
            "evaluation.judge",
            "evaluation.suite",
            "evaluation.published",
            "robust.robust_stability",
            "robust.worst_case_gain",
            "unknown.score",
            "unknown.baselines",
        ),
        "takes seconds to minutes a call; wrong arguments are in tests of their own",
    ),
    "simulation.is_policy": "is asked of anything, and answers",
    "simulation.measured_or": "is jnp.where with words, for policies in a trace",
    "simulation.sent_or": "is jnp.where with words, for policies in a trace",
    "simulation.record": "checks nothing: rollout without its checks, for generation",
    "simulation.step": "checks nothing: the body of rollout's scan",
}
"""Public functions of control, systems, simulation and evaluation that are not among the calls, and why."""

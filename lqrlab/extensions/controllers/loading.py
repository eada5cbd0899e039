"""Controllers by a name, or from the file that holds them, for :func:`lqrlab.evaluation.judge`."""

import dataclasses
import functools
import importlib.util
import inspect
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import control, learning, simulation, systems
from lqrlab.compute import checks, one_program, pytree
from lqrlab.evaluation import FamilyGain
from lqrlab.extensions import classical, deployment, environments, predictive, unknown
from lqrlab.extensions.controllers.processes import parted
from lqrlab.extensions.deployment.c_loading import ExportedPolicy
from lqrlab.extensions.deployment.fmu_import import described
from lqrlab.installation import of_extra
from lqrlab.simulation import Policy, Problem
from lqrlab.systems import Plant

Design = Callable[[Problem], Any]


def one_family(make: Design) -> Design:
    """A controller that is made for one family at a time, of its plants as they are, not padded."""

    @functools.wraps(make)
    def made(problem: Problem) -> Any:
        if problem.plant is None:
            raise ValueError("it needs the plant's equations, states and inputs, which are unknown here")
        return make(problem)

    return made


def _clipped(problem: Problem) -> object:
    """The LQR's input, cut at the limits."""
    K, none = problem.K, np.zeros((0, 0))
    if problem.limits is None:
        return K
    static = control.StateSpace(none, np.zeros((0, problem.n)), np.zeros((problem.m, 0)), -K)
    return simulation.LinearController.of(static, problem)


def _lqg(problem: Problem) -> Policy:
    """LQG of the plant's outputs, for noise of 0.01 of the scales on the state of a sample and on the outputs."""
    plant: Any = problem.plant
    A, B, Q, R, N = problem.sampled
    W, V = (np.diag([(0.01 * s.scale) ** 2 for s in signals]) for signals in (plant.states, plant.outputs))
    design = control.lqg(A, B, plant.output_matrix(), Q, R, W, V, N, discrete=True)
    return dataclasses.replace(simulation.estimated(problem, design), sensor=simulation.outputs(plant))


def _mpc(horizon: str) -> Design:
    steps = checks.whole("mpc:N", int(horizon) if horizon.isdigit() else horizon or 20)
    planned = one_family(lambda problem: predictive.mpc(problem, steps))
    # without limits the plan of any horizon is the LQR's
    return lambda problem: problem.K if problem.limits is None else planned(problem)


def _pid(rule: str) -> Design:
    @functools.cache
    def tuned(family: str) -> object:
        """Tuned on the family's default parameters; kept, for the best takes seconds."""
        if family not in systems.names():
            raise ValueError("PID is tuned on the default parameters of a family, but this plant has no family")
        plant = systems.make(family)
        return classical.pid(plant, rule or "optimal", pairs=[(i, i) for i in range(plant.m)])

    return one_family(lambda problem: tuned(problem.name))


def _adaptive(problem: Problem) -> object:
    if not problem.in_scales:
        raise ValueError("it is judged where A and B are unknown: its cost is Σ |x|² + |u|² in scales")
    return unknown.adaptive(problem, learning.pretrained("adaptive"))


_MAKERS: dict[str, Callable[[str], object]] = {
    "lqr": lambda _: lambda problem: problem.K,
    "lqg": lambda _: one_family(_lqg),
    "clipped": lambda _: _clipped,
    "mpc": _mpc,
    "pid": _pid,
    "nominal": lambda _: FamilyGain(),
    "adaptive": lambda _: _adaptive,
    "network": lambda name: learning.pretrained(name or "regulator"),
    "none": lambda _: lambda problem: jnp.zeros_like(problem.K),
}
"""Built-in name → what makes the controller, given what stands behind a colon (``mpc:20``, ``pid:simc``)."""


def load(word: str, *, dt: float | None = None) -> object:
    """The controller of a name or file, for :func:`lqrlab.evaluation.judge`.

    C code, functional mock-up units and agents are for plants of their own size and sample time; others they refuse.
    C code and units are given the absolute states (or outputs) of the plant at hand, and their inputs are absolute:
    they hold the equilibrium that they were made with, also where that of a variant is another.

    Args:
        word: a built-in name (:data:`BUILT_IN`); the folder of a run or of C code; a ``.json``, ``.mat`` or ``.npz`` of
            ``deployment.save``; ``my_controller.py[:name]``, a gain, a design or a function from a problem to one; a
            ``.fmu``; the ``.zip`` of an agent of Stable-Baselines3 or SBX. Code in them is executed.
        dt: sample time [s] of a ``.fmu`` that does not say its own; its plant's if left out.

    >>> found = evaluation.judge({"mine": controllers.load("clipped")}, systems.make("pendulum"), key=jax.random.key(0))
    >>> found.summary()["pendulum"]["mine"]["worst"] < 1e-6
    True
    """
    path, name = parted(word)
    if path is None:
        kind, _, rest = word.partition(":")
        return _MAKERS[kind](rest)
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".py":
        return _of_python(path, name)
    if path.suffix == ".zip":
        return _of_agent(path)
    if path.suffix == ".fmu":
        return _of_unit(path, dt)
    found = deployment.load(path)
    if isinstance(found, Plant | dict):
        kind = "a log" if isinstance(found, dict) else "a plant"
        raise ValueError(f"{path}: expected a gain or a controller, but found {kind}")
    return _of_design(found)


@dataclasses.dataclass(frozen=True, eq=False)
class SizedGain:
    """One gain for all plants of its size; raises ValueError for others."""

    K: np.ndarray
    why: str

    def gains(self, names: Sequence[str], problem: Problem) -> Float[Array, "V 6 12"]:
        """The gain for each plant of a padded problem; not a number for those of another size."""
        (m, n), unit = self.K.shape, problem.coordinates
        fits = (np.sum(unit.input_mask, -1) == m) & (np.sum(unit.state_mask, -1) == n)
        padded = np.pad(self.K, ((0, problem.m - m), (0, problem.n - n)))
        return jnp.asarray(np.where(fits[:, None, None], padded, np.nan))


def _of_design(found: Any) -> object:
    """A gain, a design, or what makes them."""
    if isinstance(found, control.LQR):
        found = found.K
    if isinstance(found, np.ndarray | jax.Array | list | tuple):
        K = np.asarray(checks.real("K", found, finite=True), float)
        if K.ndim != 2 or not K.size or K.shape[0] > systems.M_MAX or K.shape[1] > systems.N_MAX:
            raise ValueError(f"K: expected one gain [m, n], at most 6 inputs by 12 states, but found shape {K.shape}")
        return SizedGain(K, f"its gain has the shape {K.shape}, inputs by states in the plant's own units")
    simulation.binding.check_controller(found)
    if isinstance(found, simulation.LinearController):
        return one_family(lambda problem: _measuring(found, np.shape(found.system.D)[::-1], problem))
    kept = simulation.is_policy(found) or simulation.binding.recognised(found)
    return one_family(lambda problem: found) if kept else _of_function(found)


class _ManyFamilies:
    """A problem of plants of many families: one that a function asks for names or sizes of which it gets by family."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        if name in ("plant", "name", "n", "m"):
            raise ValueError(f"{name}: of many families there are many")
        return getattr(self._problem, name)


@pytree
@dataclasses.dataclass(frozen=True)
class _EachPlant:
    """Policies of plants, stacked: each is given the loops of its own plant, whatever it makes of leading axes."""

    policies: Any

    def init(self, batch_shape: tuple[int, ...]) -> Any:
        """Memories ``[V, *rest]`` of as many plants."""
        return jax.vmap(lambda policy: policy.init(batch_shape[1:]))(self.policies)

    @one_program
    def __call__(self, carry: Any, x: Array) -> tuple[Any, Array]:
        """Memories and inputs of states ``[V, *rest, n]``."""
        return jax.vmap(lambda policy, *loops: policy(*loops))(self.policies, carry, x)


def _of_function(make: Any) -> Design:
    """Somebody's function: where it asks what plant it has, it is asked about the plants of one family at a time.

    Policies with arrays for each plant are made plant by plant: ``K @ x[..., None]`` of ``K [V, m, n]`` and ``x [V, S,
    n]`` takes the start for the plant where there are as many.
    """

    @functools.wraps(make)
    def made(problem: Problem, *more: Any) -> Any:
        def of(some: Problem) -> Any:
            many = some.plant is None and not some.in_scales
            return make(_ManyFamilies(some) if many else some, *more)

        found, batch = of(problem), problem.batch_shape
        if len(batch) != 1 or not simulation.is_policy(found) or simulation.binding.recognised(found):
            return found
        if all(np.shape(leaf)[:1] != batch for leaf in jax.tree.leaves(found)):
            return found
        return _EachPlant(jax.tree.map(lambda *a: jnp.stack(a), *(of(problem[i]) for i in range(*batch))))

    return made


def _measuring(policy: Any, sizes: tuple[int, ...], problem: Problem) -> Policy:
    """A policy that is given p numbers and answers with m, as the plant's: its states, or its outputs."""
    assert problem.plant is not None
    outputs = simulation.outputs(problem.plant)
    if sizes not in ((problem.n, problem.m), (outputs.shape[-2], problem.m)):
        raise ValueError(
            f"it maps {sizes[0]} numbers to {sizes[1]}, but {problem.name} has {problem.n} states, "
            f"{outputs.shape[-2]} outputs and {problem.m} inputs"
        )
    return policy if sizes[0] == problem.n else simulation.Measured(policy, outputs)


def _absolute(controller: Any, problem: Problem, sensor: np.ndarray | None = None) -> Policy:
    """The policy of what computes in absolute signals, about the equilibrium of the plant at hand."""
    assert problem.plant is not None
    sizes, y_eq = (controller.num_measured, controller.num_inputs), problem.x_eq
    if sensor is not None and sensor.shape[-1] == problem.n:
        y_eq = y_eq @ sensor.T
    elif sizes[0] != problem.n:
        y_eq = problem.plant.output(y_eq)
    policy = ExportedPolicy(y_eq, problem.u_eq, controller)
    found = _measuring(policy, sizes, problem) if sensor is None else simulation.Measured(policy, jnp.asarray(sensor))
    policy.check_step(problem.dt)
    return found


def _of_python(path: Path, name: str) -> object:
    called = f"judged_{path.stem}"  # in the place of no other module: a file may be called copy.py
    spec = importlib.util.spec_from_file_location(called, path)
    module: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[called] = module
    sys.path.insert(0, str(path.resolve().parent))  # what it imports stands beside it
    module.__loader__.exec_module(module)
    own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    made = [key for key, value in own.items() if inspect.isfunction(value) and value.__module__ == called]
    made = made or [key for key, value in own.items() if isinstance(value, np.ndarray | jax.Array | control.LQR)]
    made = made or [key for key, value in own.items() if isinstance(value, list)]
    name = name or (made[0] if len(made) == 1 else "")
    if name not in own:
        raise ValueError(f"{path}: expected {name or 'one controller'}, but found {', '.join(own)}; write {path}:NAME")
    return _of_design(own[name])


def _of_folder(path: Path) -> object:
    if not any(path.glob("*.c")):
        checkpoints = path / "checkpoints"
        return learning.load(checkpoints if checkpoints.is_dir() else path)
    exported = deployment.load_c(path)
    return one_family(lambda problem: _absolute(exported, problem, exported.sensor))


def _of_agent(path: Path) -> object:
    model = _loaded_agent(path)
    spaces = model.observation_space, model.action_space
    wanted = [one.shape for one in spaces]

    def agent(problem: Problem) -> object:
        assert problem.plant is not None
        plant: Any = problem.name if problem.name in systems.names() else problem.plant[(0,) * len(problem.batch_shape)]
        times, rest = divmod(wanted[0][-1], problem.n + problem.m)
        observe, step = "state" if rest else f"history:{times}", float(np.ravel(problem.dt)[0])
        for units in ("limits", "physical", "scaled"):
            env = environments.make(plant, units=units, observe=observe, dt=step)
            shapes = [env.observation_space.shape, env.action_space.shape]
            if shapes == wanted and np.allclose(env.action_high, spaces[1].high, rtol=1e-4):
                return environments.AgentPolicy.of(env, model)
        raise ValueError(
            f"the agent was trained on observations and actions of shapes {wanted}, these up to {spaces[1].high}, but "
            f"{problem.name} has {shapes}, up to {env.action_high}"
        )

    return one_family(agent)


def _loaded_agent(path: Path) -> Any:
    """A model of Stable-Baselines3 or SBX, by the algorithm of which its policy is."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
        library, algorithm, *_ = data["policy_class"]["__module__"].split(".")
        if library not in ("stable_baselines3", "sbx", "sb3_contrib"):
            raise ValueError(library)
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{path}: expected an agent of Stable-Baselines3 or SBX, but found none ({error})") from None
    if algorithm == "common":  # which several share
        algorithm = "ppo" if "clip_range" in data else "a2c"
    package = {"sbx": "sbx-rl", "sb3_contrib": "sb3-contrib"}.get(library, "stable-baselines3")
    module = of_extra(library, package, f"the agent in {path.name}")
    return next(value for key, value in vars(module).items() if key.lower() == algorithm).load(path, device="cpu")


class SteppedUnit:
    """A functional mock-up unit as compiled C code is: steps from measurements to inputs; an instance for each loop."""

    def __init__(self, path: Path, dt: float) -> None:
        self.dt, self.new = dt, functools.partial(deployment.CoSimulation, path, dt, trusted=True)
        self.running = [self.new()]  # refuses what it cannot run
        self.num_measured, self.num_inputs = len(self.running[0].inputs), len(self.running[0].outputs)

    def start(self) -> np.ndarray:
        """No step taken: then the instances are new."""
        return np.zeros(1, np.uint8)

    def step(self, memory: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step of many loops."""
        flat = np.asarray(y).reshape(-1, y.shape[-1])
        if not memory.any():
            self.running = [self.new() for _ in flat]
        answers = [one(each) for one, each in zip(self.running, flat)]
        return np.ones_like(memory), np.asarray(answers).reshape(*y.shape[:-1], -1)


def _of_unit(path: Path, dt: float | None) -> object:
    says = getattr(described(path, True).defaultExperiment, "stepSize", None)
    step = float(says) if says else dt
    first = SteppedUnit(path, step or 0.01)
    return one_family(lambda problem: _absolute(first if step else SteppedUnit(path, float(problem.dt.min())), problem))

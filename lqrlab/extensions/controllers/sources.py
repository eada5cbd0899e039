"""Controllers to be judged, by a name or by the file that holds them."""

import dataclasses
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import learning, systems
from lqrlab.compute import checks, files, pytree
from lqrlab.compute.linalg import expand_batch, matvec
from lqrlab.evaluation import FamilyGain
from lqrlab.simulation import LinearPolicy, Policy, Problem

RUNS_CODE = (".py", ".zip", ".fmu")
"""Endings of files that execute what is in them; a folder of C code does too."""
_MOST_UNITS = 256  # loops of a functional mock-up unit, each an instance of it


@pytree
@dataclasses.dataclass(frozen=True)
class ClippedPolicy:
    """The LQR's input, cut at the limits."""

    K: Float[Array, "*batch m n"]
    low: Float[Array, "*batch m"]
    high: Float[Array, "*batch m"]

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """−K x within the limits."""
        low, high = (expand_batch(a.astype(x.dtype), x.ndim) for a in (self.low, self.high))
        return None, jnp.clip(-matvec(self.K.astype(x.dtype), x), low, high)


def clipped(problem: Problem) -> Policy:
    """The LQR that keeps the limits of the inputs; without limits the LQR."""
    return LinearPolicy(problem.K) if problem.low is None else ClippedPolicy(problem.K, problem.low, problem.high)


class EachFamily(Mapping[str, Callable[[Problem], object]]):
    """A controller that is made for one family at a time, of its plants as they are, not padded."""

    def __init__(self, make: Callable[[str, Problem], object]) -> None:
        self.make = make

    def __getitem__(self, family: str) -> Callable[[Problem], object]:
        return lambda problem: self.make(family, problem)

    def __contains__(self, family: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(systems.names())

    def __len__(self) -> int:
        return len(systems.names())


def _mpc(horizon: str) -> object:
    from lqrlab.extensions import predictive

    steps = checks.whole("mpc:N", int(horizon) if horizon.isdigit() else horizon or 20)
    # without limits the plan of any horizon is the LQR's
    return EachFamily(lambda family, problem: predictive.mpc(problem, steps) if problem.limits else problem.K)


def _pid(rule: str) -> object:
    from lqrlab.extensions import classical

    designs: dict[str, object] = {}

    def tuned(family: str, problem: Problem) -> object:
        """Tuned on the family's default parameters; kept, for the best takes seconds."""
        if family not in systems.names():
            raise ValueError("PID is tuned on the default parameters of a family, and this is of none")
        if family not in designs:
            plant = systems.make(family)
            designs[family] = classical.pid(plant, rule or "optimal", pairs=[(i, i) for i in range(plant.m)])
        return designs[family]

    return EachFamily(tuned)


def _adaptive(_: str) -> object:
    from lqrlab.extensions import unknown

    def make(problem: Problem) -> object:
        if not problem.in_scales:
            raise ValueError("the adaptive regulator is for plants of which A and B are not told")
        return unknown.adaptive(problem, learning.pretrained("adaptive"))

    return make


BUILT_IN: dict[str, Callable[[str], object]] = {
    "lqr": lambda _: lambda problem: problem.K,
    "clipped": lambda _: clipped,
    "mpc": _mpc,
    "pid": _pid,
    "nominal": lambda _: FamilyGain(),
    "adaptive": _adaptive,
    "network": lambda name: learning.pretrained(name or "regulator"),
    "none": lambda _: lambda problem: jnp.zeros_like(problem.K),
}
"""Name → what makes the controller of it, given what stands behind a colon (``mpc:20``, ``pid:simc``)."""


def contender(word: str, *, dt: float | None = None) -> object:
    """The controller that a word names, for :func:`lqrlab.evaluation.judge`.

    Args:
        word: a built-in name (:data:`BUILT_IN`); the folder of a run, of checkpoints, or of C code; a file that
            ``deployment.save`` wrote (``.json``, ``.mat``, ``.npz``); ``my_controller.py[:name]``; a ``.fmu``; the
            ``.zip`` of an agent of Stable-Baselines3 or SBX. Code in them is executed: name what you would run.
        dt: sample time [s] of a ``.fmu``; its plant's if left out.

    Raises:
        ValueError: what it is not, in words.
    """
    name, _, rest = word.partition(":")
    if name in BUILT_IN:
        return BUILT_IN[name](rest)
    path, attribute = _parted(word)
    if not path.exists():
        known = ", ".join(BUILT_IN)
        raise ValueError(f"CONTROLLER: expected one of {known}, or a file or folder that is there, but found {word}")
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".py":
        return _of_python(path, attribute)
    if path.suffix == ".zip":
        return _of_agent(path)
    from lqrlab.extensions import deployment

    if path.suffix == ".fmu":
        return EachFamily(lambda family, problem: UnitPolicy(path, problem))
    return deployment.load(path)


def foreign(word: str) -> bool:
    """True of a word whose controller executes code that is not ours."""
    path, _ = _parted(word)
    named = word.partition(":")[0] in BUILT_IN
    return not named and (path.suffix in RUNS_CODE or (path / "controller.c").exists())


def identity(word: str) -> str:
    """The word, and the digest of the file that it names: another file is another contender."""
    path, _ = _parted(word)
    named = word.partition(":")[0] in BUILT_IN or not path.is_file()
    return word if named else f"{word} {files.digest(path)[:16]}"


def _parted(word: str) -> tuple[Path, str]:
    """File and name of ``my_controller.py:name``."""
    file, colon, attribute = word.rpartition(":")
    return (Path(file), attribute) if colon and file.endswith(".py") else (Path(word), "")


def _of_folder(path: Path) -> object:
    if (path / "controller.c").exists():
        from lqrlab.extensions import deployment

        exported = deployment.load_c(path)
        return EachFamily(lambda family, problem: exported)
    checkpoints = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    return learning.load(checkpoints)


def _of_python(path: Path, attribute: str) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not attribute:
        own = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and getattr(value, "__module__", path.stem) == path.stem
            and (inspect.isfunction(value) or isinstance(value, np.ndarray | jax.Array))
        ]
        if len(own) != 1:
            raise ValueError(
                f"{path}: expected one function or gain, but found {', '.join(own) or 'none'}; say which: {path}:NAME"
            )
        (attribute,) = own
    if not hasattr(module, attribute):
        raise ValueError(f"{path}: there is no {attribute} in it")
    return getattr(module, attribute)


def _of_agent(path: Path) -> object:
    from lqrlab.extensions import environments

    model = _loaded_agent(path)

    def agent(family: str, problem: Problem) -> object:
        env = environments.make(family, dt=float(np.asarray(problem.dt).ravel()[0]))
        seen, wanted = env.observation_space.shape, model.observation_space.shape
        if seen != wanted:
            raise ValueError(f"the agent was trained on observations of shape {wanted}, but {family} shows {seen}")
        return environments.AgentPolicy.of(env, model)

    return EachFamily(agent)


def _loaded_agent(path: Path) -> Any:
    """A model of Stable-Baselines3 or SBX; which algorithm it is the file does not say, so they are tried."""
    tried = []
    for library, algorithm in itertools.product(("stable_baselines3", "sbx"), ("PPO", "SAC", "TD3", "A2C", "DQN")):
        if importlib.util.find_spec(library) is None:
            tried.append(f"{library} is not installed")
            continue
        kind = getattr(importlib.import_module(library), algorithm, None)
        try:
            return kind.load(path, device="cpu") if kind is not None else None
        except Exception as error:  # of another algorithm
            tried.append(f"{algorithm}: {error}")
    raise ValueError(f"{path}: expected an agent of Stable-Baselines3 or SBX, but found none ({tried[0]:.200})")


class UnitPolicy:
    """A functional mock-up unit as a policy: an instance for each loop, called in the order of the samples."""

    def __init__(self, path: Path, problem: Problem) -> None:
        self.path, self.problem = path, problem
        self.units: list[Any] = []

    def init(self, batch_shape: tuple[int, ...]) -> Array:
        """The number of samples taken."""
        return jnp.zeros((), int)

    def __call__(self, carry: Array, x: Array) -> tuple[Array, Array]:
        """What the units answer to the states."""
        result = jax.ShapeDtypeStruct((*x.shape[:-1], self.problem.m), x.dtype)
        return carry + 1, jax.experimental.io_callback(self._called, result, carry, x, ordered=True)

    def _called(self, count: Any, x: Any) -> np.ndarray:
        from lqrlab.extensions import deployment

        states = np.asarray(x).reshape(-1, x.shape[-1])
        if len(states) > _MOST_UNITS:
            raise ValueError(f"{self.path}: expected at most {_MOST_UNITS} loops, but found {len(states)}")
        if int(count) == 0:
            dt = float(np.asarray(self.problem.dt).ravel()[0])
            self.units = [deployment.CoSimulation(self.path, dt, trusted=True) for _ in states]
        x_eq, u_eq = (np.asarray(a).reshape(-1, np.shape(a)[-1])[0] for a in (self.problem.x_eq, self.problem.u_eq))
        answers = [unit(state + x_eq) - u_eq for unit, state in zip(self.units, states)]
        return np.asarray(answers, x.dtype).reshape(*x.shape[:-1], -1)

"""Gymnasium's interfaces: one environment, and thousands as one compiled program."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, PRNGKeyArray
from PIL import Image, ImageDraw

from lqrlab.compute import checks
from lqrlab.extensions.environments.actions import refuse
from lqrlab.extensions.environments.core import Environment, State, Step
from lqrlab.extensions.environments.factory import make
from lqrlab.extensions.environments.settings import Discrete, as_of, for_learning
from lqrlab.extensions.environments.vectorised import advance_batch, batch_reset, chosen, renewed
from lqrlab.systems import Plant, drawing

_MODES = (None, "rgb_array")
_SEEDS = 2**31
_COLOURS = {"body": "#30475e", "accent": "#d1495b", "ground": "#8a8a8a", "faint": "#cfd6dd", "fluid": "#7fb2d9"}
_MARGIN = 24
_SHARP = 2  # times the size, scaled down at the end: smooth edges


def _numbers(env: Environment, info: dict[str, Any]) -> dict[str, Any]:
    found = {name: np.asarray(info[name]) for name in ("cost", "ratio", "optimum", "violation") if name in info}
    return found | {"optimal_return": np.asarray(env.optimal_return(found["optimum"]))}


class PlantEnv(gymnasium.Env):
    """A plant as a ``gymnasium.Env``; ``info["ratio"]`` is the episode's cost over the optimum.

    Actions are within ±1, shares of the limits; observations are in scales, rewards minus the cost over ten times the
    mean optimum. Episodes are truncated after ``horizon=200`` steps, and terminate where the cost to go is ten times
    that of the start. :class:`Settings` has other ``units``, ``reward``, ``terminate``; ``units="physical"`` alone is
    the task in SI units that :func:`make` has. ``info["optimal_return"]`` is the optimum's return.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, plant: Any = None, *, render_mode: str | None = None, **settings: Any):
        checks.choice("render_mode", render_mode, _MODES)
        self.core = _made(plant, settings)
        self.observation_space = as_of(gymnasium.spaces, self.core.observation_space)
        self.action_space = as_of(gymnasium.spaces, self.core.action_space)
        self.render_mode = render_mode
        step = float(self.core.pool.dt[0])
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(min(max(1 / step, 1), 60))}
        self._state: State | None = None
        self._u = np.zeros(self.core.m)
        self._bounds: tuple[float, ...] | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A new episode; the same seed begins the same one."""
        super().reset(seed=seed)
        obs, self._state = self.core.reset(self._key())
        self._u = np.zeros(self.core.m)
        return np.asarray(obs), _numbers(self.core, {"optimum": self._state.optimum})

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One sample time."""
        if self._state is None:
            raise ValueError("step: the environment has no state yet; call reset() first")
        given = _given(self.core, action, ())
        obs, self._state, reward, terminated, truncated, info = self.core.step_env(self._key(), self._state, given)
        self._u = np.asarray(given) * self.core.unit_u if not self.core.settings.levels else self._u
        return np.asarray(obs), float(reward), bool(terminated), bool(truncated), _numbers(self.core, info)

    def _key(self) -> PRNGKeyArray:
        return jax.random.key(int(self.np_random.integers(_SEEDS)))

    def render(self) -> np.ndarray | None:
        """The plant's drawing: ``[height, width, 3]`` bytes."""
        if self.render_mode is None or self._state is None:
            return None
        first = jax.tree.map(lambda a: a[int(self._state.variant)], self.core.pool)  # type: ignore[union-attr]
        plant: Plant = first.plant
        x = np.asarray(self._state.x, float) + first.x_eq
        if self._bounds is None:  # of the equilibrium, and of large deviations to either side
            poses = [plant.drawing(first.x_eq + side * first.scale_x) for side in (-2, 0, 2)]
            poses.append(plant.drawing(x))
            self._bounds = drawing.bounds(*poses)
        return _frame_of(plant, x, self._u + first.u_eq, self._bounds)


class PlantVectorEnv(gymnasium.vector.VectorEnv):
    """Many environments as one compiled program, with each of Gymnasium's three ways to reset.

    Args:
        num_envs: how many.
        plant: a family's name, a plant, a batch of plants, a file.
        autoreset_mode: ``NEXT_STEP`` (the step after the end resets, its action is not used), ``SAME_STEP`` (at once,
            with ``final_obs`` and ``final_info``), or ``DISABLED`` (``reset`` takes a ``reset_mask``).
        settings: as of :class:`PlantEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        plant: Any = None,
        *,
        autoreset_mode: Any = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **settings: Any,
    ):
        checks.choice("render_mode", render_mode, (None,))
        self.num_envs = checks.whole("num_envs", num_envs)
        self.core = _made(plant, settings)
        self.mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space = as_of(gymnasium.spaces, self.core.observation_space)
        self.single_action_space = as_of(gymnasium.spaces, self.core.action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._state: State | None = None
        self._obs: Array | None = None
        self._over = jnp.zeros(num_envs, bool)
        self._count, self._root = 0, jax.random.key(0)

    def reset(self, *, seed: Any = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """New episodes in all environments, or where ``options["reset_mask"]``, a truth value for each, is True.

        ``seed`` is one number (environment i has the seed + i), or one for each.
        """
        if options is not None:
            checks.instance("options", options, dict, "a dictionary, such as {'reset_mask': mask}")
        keys = self._seeded(seed)
        obs, state = batch_reset(self.core, keys)
        mask = None if options is None else options.get("reset_mask")
        if mask is not None:
            if self._state is None:
                raise ValueError("reset_mask: there is no state yet; reset all environments first")
            where = np.asarray(mask)
            if where.shape != (self.num_envs,) or where.dtype != bool or not where.any():
                raise ValueError(f"reset_mask: expected {self.num_envs} truth values, some True, but found {mask!r}")
            obs, state = chosen(jnp.asarray(where), (obs, state), (self._obs, self._state))
            self._over = self._over & ~where
        else:
            self._over = jnp.zeros(self.num_envs, bool)
        self._obs, self._state = obs, state
        return np.asarray(obs), _numbers(self.core, {"optimum": state.optimum})

    def _seeded(self, seed: Any) -> Array:
        if seed is None and self._state is None:
            seed = int(np.random.default_rng().integers(_SEEDS))
        if seed is None:
            self._count += 1
            return jax.random.split(jax.random.fold_in(self._root, self._count), self.num_envs)
        seeds = seed if np.ndim(seed) else [checks.whole("seed", seed, None) + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected one number, or {self.num_envs} of them, but found {len(seeds)}")
        seeds = [
            int(np.random.default_rng().integers(_SEEDS)) if s is None else checks.whole("seed", s, None) for s in seeds
        ]
        self._root, self._count = jax.random.key(seeds[0]), 0
        return jax.vmap(jax.random.key)(jnp.asarray(np.array(seeds) % _SEEDS, jnp.uint32))

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One sample time in all environments."""
        if self._state is None:
            raise ValueError("step: the environments have no state yet; call reset() first")
        if self.mode is AutoresetMode.DISABLED and bool(self._over.any()):
            raise ValueError("step: some episodes are over; reset them with options={'reset_mask': ...} first")
        given = _given(self.core, actions, (self.num_envs,))
        self._count += 1
        out, over, last = _vector_step(self.core, self.mode, self._root, self._count, self._state, given, self._over)
        obs, self._state, reward, terminated, truncated, info = out
        self._obs, self._over = obs, over
        infos: dict[str, Any] = _numbers(self.core, info)
        ended = np.asarray(over)
        if self.mode is AutoresetMode.SAME_STEP and ended.any():
            infos |= {"final_obs": np.asarray(last["final_observation"]), "_final_obs": ended}
            infos |= {"final_info": _numbers(self.core, last), "_final_info": ended}
        return np.asarray(obs), *(np.asarray(a) for a in (reward, terminated, truncated)), infos  # type: ignore[return-value]


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=4)
def _vector_step(
    env: Environment, mode: AutoresetMode, root: PRNGKeyArray, count: Any, state: State, given: Any, over: Array
) -> tuple[Step, Array, dict[str, Array]]:
    """A step, where an episode is over, and the information on the step of the episodes that were under way in it."""
    keys = jax.random.split(jax.random.fold_in(root, count), len(over))
    if mode is AutoresetMode.SAME_STEP:
        obs, new, reward, terminated, truncated, info = advance_batch(env, keys, state, given, stop=False)
        ended = terminated | truncated
        return (obs, new, reward, terminated, truncated, _begun(ended, new, info)), ended, info
    obs, new, reward, terminated, truncated, info = jax.vmap(env._advance)(keys, state, given)
    if mode is AutoresetMode.DISABLED:
        return (obs, new, reward, terminated, truncated, info), over | terminated | truncated, info
    obs, new = renewed(env, keys, over, obs, new)
    reward = jnp.where(over, jnp.zeros_like(reward), reward)
    terminated, truncated = terminated & ~over, truncated & ~over
    last, info = info, _begun(over, new, info) | {"invalid": info["invalid"] & ~over}
    return (obs, new, reward, terminated, truncated, info), terminated | truncated, last


def _begun(over: Array, state: State, info: dict[str, Array]) -> dict[str, Array]:
    """The information on a step, of the new episodes where ``over`` is True."""
    optimum = state.optimum
    cost, violation = (jnp.where(over, 0, info[name]) for name in ("cost", "violation"))
    ratio = jnp.where(over, 1 + 0 * optimum, info["ratio"])  # NaN where no optimum is known
    return info | {"cost": cost, "ratio": ratio, "optimum": optimum, "violation": violation}


def _made(plant: Any, settings: dict[str, Any]) -> Environment:
    if plant is None:
        raise ValueError("plant: expected a family's name, a plant or a file; gymnasium.make(id, plant=...)")
    return make(plant, **for_learning(settings))


def _given(env: Environment, action: Any, lead: tuple[int, ...]) -> Any:
    """Gymnasium's action as the core takes it; a wrong shape is refused in words."""
    space = env.action_space
    array = checks.real("action", action)
    if array.shape != lead + space.shape:
        raise ValueError(f"action: expected shape {lead + space.shape}, but found {array.shape}")
    if isinstance(space, Discrete) and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"action: expected whole numbers from 0 to {space.n - 1}, but found {array.dtype}")
    if env.settings.on_error == "raise":  # before it changes any state
        within = (array >= 0) & (array < space.n) if isinstance(space, Discrete) else np.isfinite(array)
        if not np.all(within):
            refuse()
    return array.astype(space.dtype)


def _frame_of(
    plant: Plant, x: np.ndarray, u: np.ndarray, bounds: tuple[float, ...], size: tuple[int, int] = (480, 360)
) -> np.ndarray:
    """The plant at the absolute state x [n] and input u [m] as ``[height, width, 3]`` bytes."""
    shapes = plant.drawing(*(np.nan_to_num(a, nan=0.0, posinf=1e3, neginf=-1e3) for a in (x, u)))
    wide, high = (_SHARP * side for side in size)
    left, right, bottom, top = bounds
    room = 2 * _SHARP * _MARGIN
    scale = min((wide - room) / (right - left), (high - room) / (top - bottom))
    middle = np.array([(left + right) / 2, (bottom + top) / 2])
    image = Image.new("RGB", (wide, high), "white")
    canvas = ImageDraw.Draw(image)

    def pixels(points: object) -> list[tuple[float, float]]:
        at = (np.asarray(points, float).reshape(-1, 2) - middle) * (scale, -scale) + (wide / 2, high / 2)
        return [tuple(p) for p in np.clip(at, -10 * wide, 10 * wide).tolist()]

    for shape in shapes:
        _paint(canvas, shape, pixels, scale)
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS))


def _paint(canvas: ImageDraw.ImageDraw, shape: drawing.Shape, pixels: Callable, scale: float) -> None:
    colour, line = _COLOURS.get(shape.ink, "#000000"), 3 * _SHARP
    match shape:
        case drawing.Line(points, _, width, _):
            canvas.line(pixels(points), colour, round(1.5 * _SHARP * float(width)), joint="curve")
        case drawing.Box(centre, width, height, angle, _, filled):
            half, across = drawing.axes(angle, width / 2)[0], drawing.axes(angle, height / 2)[1]
            corners = [half + across, across - half, -half - across, half - across]
            at = pixels(np.asarray(centre, float) + np.array(corners))
            canvas.polygon(at, colour if filled else None, colour, line)
        case drawing.Disc(centre, radius, _, filled):
            ((x, y),) = pixels(centre)
            r = abs(float(radius)) * scale
            canvas.ellipse((x - r, y - r, x + r, y + r), colour if filled else None, colour, line)
        case drawing.Spring(a, b, radius, coils):
            canvas.line(pixels(drawing.zigzag(a, b, radius, coils)), colour, line, joint="curve")
        case drawing.Arrow(a, b):
            start, end = (np.array(p) for p in pixels([a, b]))
            canvas.line([tuple(start), tuple(end)], colour, line)
            along = (end - start) / max(float(np.hypot(*(end - start))), 1.0) * 12 * _SHARP
            side = 0.5 * np.array([-along[1], along[0]])
            canvas.polygon([tuple(end), tuple(end - along + side), tuple(end - along - side)], colour)
        case drawing.Text(at, text):
            canvas.text(pixels(at)[0], text, colour, anchor="mm", font_size=12 * _SHARP)

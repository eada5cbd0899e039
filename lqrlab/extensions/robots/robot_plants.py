"""Plants from MuJoCo's models: where they rest, what their signals and parameters are called."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute import checks
from lqrlab.extensions.robots import geometry, model_checks, model_files, resting_pose
from lqrlab.extensions.robots.multibody import Multibody
from lqrlab.extensions.robots.resting_pose import Rest
from lqrlab.systems.declaration import Signal, param
from lqrlab.systems.declaration_checks import check
from lqrlab.systems.plant import Plant, parameter_fields

_ORDINARY = 0.3
"""Scale of an angle [rad], and of a displacement as a share of the robot's extent."""


def from_mujoco(
    model: Any,
    *,
    at: str | Sequence[float] | None = None,
    actuated: Sequence[str] = (),
    fixed: Sequence[str] = (),
    dt: float | None = None,
    name: str = "",
) -> Plant:
    """A robot from a file, in MuJoCo's format or URDF, as a plant; or from a ``mujoco.MjModel``.

    States are the joints' positions, then their rates; inputs are the actuators' controls within their ``ctrlrange``;
    measured are the positions. Masses, dampings, gears and gravity are parameters. Motion is smooth: contacts, stops
    and dry friction are left out (``plant.limits`` names them), and a warning says which would act at rest.

    Args:
        model: a file ending in ``.xml``, ``.mjcf`` or ``.urdf``, or a compiled model.
        at: where to control around: a key frame's name, or the joints' positions; the first key frame, or the pose in
            which the model is drawn, if left out. The inputs that hold it are solved for.
        actuated: joints that a motor is added to, limited by their ``effort``; a URDF file has no actuators.
        fixed: joints that are left out, with what acts on them: their bodies stand as drawn.
        dt: sample time [s], 0.01 if left out.
        name: what the plant is called; as the file, or the model, if left out.

    Raises:
        ValueError: not readable, not a tree of hinges and slides driven at its joints, or not held at rest there.
        ImportError: without the package ``mujoco``, which the extra ``robots`` installs.

    >>> import mujoco
    >>> lever = '''<mujoco><worldbody>
    ... <body><joint name="pivot"/><geom size=".1" pos="1 0 0" mass="2"/></body></worldbody>
    ... <actuator><motor name="motor" joint="pivot"/></actuator></mujoco>'''
    >>> plant = robots.from_mujoco(mujoco.MjModel.from_xml_string(lever), dt=0.02)
    >>> [signal.label for signal in (*plant.states, *plant.inputs)]
    ['pivot [rad]', 'pivot rate [rad/s]', 'motor [N·m]']
    """
    m, file, seen = model_files.read_model(model, actuated, fixed)
    step = 0.01 if dt is None else checks.number("dt", dt, "a sample time above 0 s", above=0)
    try:
        model_checks.check_supported(m)
        rest = resting_pose.solve(m, at)
        cls = _class_of(m, seen(), rest, name, file, step)
        check(cls)
        plant = cls(**{key: jnp.asarray(f.default, float) for key, f in parameter_fields(cls).items()})
        _compare(m, plant)
    except ValueError as error:
        raise ValueError(f"{file}: {error}" if file else str(error)) from error
    acting = model_checks.left_out(m, rest.q)[1]
    if acting:
        warnings.warn(
            f"{plant.name}: {'; '.join(acting)} where the robot is to be held; lqrlab leaves that out: A, B and all "
            "simulations are those of the smooth motion alone",
            stacklevel=2,
        )
    if turning := model_checks.in_degrees(m):
        warnings.warn(f"{plant.name}: {turning}", stacklevel=2)
    return plant


def _unique(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """The names, with numbers added to those that are taken."""
    given: list[str] = []
    for name in names:
        other, number = name, 2
        while other in given or other in taken:
            other, number = f"{name}_{number}", number + 1
        given.append(other)
    return given


def _signals(m: Any, rest: Rest) -> tuple[tuple[Signal, ...], tuple[Signal, ...]]:
    """States and inputs by the model's names; their scales follow from ranges, extent and inertia."""
    tree = model_files.tree_of(m)
    usual = np.array([_ORDINARY * (m.stat.extent if joint.slides else 1) for joint in tree.joints])
    scale = np.minimum(usual, np.where(m.jnt_limited.astype(bool), np.ptp(m.jnt_range, axis=1), np.inf) / 4)
    units = ["m" if joint.slides else "rad" for joint in tree.joints]
    names = _unique([model_files.name_of(m, "jnt", i) for i in range(m.njnt)])
    states = [Signal(*row) for row in zip(names, units, scale.tolist(), rest.q.tolist())]
    rates = _unique([f"{name}_rate" for name in names], names)
    states += [Signal(name, f"{s.unit}/s", 2 * s.scale) for name, s in zip(rates, states)]

    inputs = []
    for i, joint in enumerate(m.actuator_trnid[:, 0]):
        strength = abs(rest.drive[joint, i]) or 1.0
        low, high = tree.input_limits[:, i]
        normalised = bool(strength != 1 and high == -low == 1)
        kind, unit, large = _kind(tree.gain[i], tree.bias[i], units[joint], normalised=normalised)
        size, room = scale[joint] * rest.effort[joint] / strength, (high - low) / 4
        large *= scale[joint] * abs(m.actuator_gear[i, 0])
        size = large or (room if np.isfinite(room) else size)
        name = model_files.name_of(m, "actuator", i)
        name = name if name not in names else f"{name}_{kind}"
        inputs.append(Signal(name, unit, float(min(size, room)), float(rest.u[i])))
    given = _unique([s.name for s in inputs], [s.name for s in states])
    return tuple(states), tuple(Signal(n, s.unit, s.scale, s.at) for n, s in zip(given, inputs))


def _kind(gain: np.ndarray, bias: np.ndarray, unit: str, *, normalised: bool) -> tuple[str, str, float]:
    """Kind of an actuator's input, its unit, and the input of a servo for one large unit of its joint (else 0)."""
    for kind, slope, large, per in (("target", bias[1], 1.0, ""), ("target_rate", bias[2], 2.0, "/s")):
        if slope and gain[0]:
            plain = bool(np.isclose(gain[0], -slope) and not gain[1:].any())
            return kind, f"{unit}{per}" if plain else "1", float(large * abs(slope / gain[0]))
    force = "force" if unit == "m" else "torque"
    plain = not normalised and gain.tolist() == [1, 0, 0]
    return force, {"m": "N", "rad": "N·m"}[unit] if plain else "1", 0.0


def _parameters(m: Any) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Declared parameters, and which of them are masses, dampings, gears."""
    tree = model_files.tree_of(m)
    declared: dict[str, Any] = {}
    groups: dict[str, tuple[str, ...]] = {}
    movable = tree.moves().any(axis=1) & (tree.mass > 0)
    bodies = _unique([f"mass_{model_files.name_of(m, 'body', b)}" for b in range(1, m.nbody)])
    groups["masses"] = tuple(name if moves else "" for name, moves in zip(bodies, movable))
    for name, value in zip(groups["masses"], tree.mass.tolist()):
        if name:
            about = f"mass of {name[5:]}; its inertia changes with it"
            declared[name] = param(value, "kg", about, value / 10, value * 10)
    groups["dampings"] = tuple(_unique([f"damping_{model_files.name_of(m, 'jnt', i)}" for i in range(m.njnt)]))
    for name, joint, value in zip(groups["dampings"], tree.joints, m.dof_damping.tolist()):
        unit = "N·s/m" if joint.slides else "N·m·s/rad"
        declared[name] = param(value, unit, f"viscous friction of {name[8:]}", 0.0, max(1.0, 10 * value))
    groups["gears"] = tuple(_unique([f"gear_{model_files.name_of(m, 'actuator', i)}" for i in range(m.nu)]))
    for name, value in zip(groups["gears"], m.actuator_gear[:, 0].tolist()):
        low, high = sorted((value / 10, value * 10)) if value else (-1.0, 1.0)
        declared[name] = param(value, "1", f"transmission of {name[5:]}", low, high)
    strength = float(np.linalg.norm(m.opt.gravity))
    declared["gravity"] = param(strength, "m/s²", "gravitational acceleration", 0.0, 30.0, vary=False)
    return declared, groups


def _class_of(m: Any, seen: Any, rest: Rest, name: str, file: str, dt: float) -> type[Plant]:
    """The class of a robot's variants, with the robot's own values for defaults."""
    mujoco = model_files.library()
    checks.text("name", name)
    declared, groups = _parameters(m)
    states, inputs = _signals(m, rest)
    view, outlines = geometry.view(m, rest.q), geometry.outlines(seen)
    named = m.names[: m.names.index(b"\0")].decode()
    called = re.sub(r"\W+", "_", name or (Path(file).stem if file else named)).strip("_")
    title = (named if named and named != "MuJoCo Model" else called).replace("_", " ")
    kinds = model_checks.left_out(m, rest.q)[0]
    about = f"{title}.\n\nSource: {file or 'a model'} (MuJoCo {mujoco.__version__})"
    if kinds:
        about += f"\n\nLimits: the motion is smooth; left out of the model are its {kinds}"
    free = [inputs[i].name for i in rest.inputs] + [states[i].name for i in rest.coordinates]

    def draw(self: Multibody, x: np.ndarray, u: np.ndarray) -> geometry.Drawing:
        return geometry.drawing(seen, x[: m.nq], view, outlines)

    cls: Any = type(
        "Robot",
        (Multibody,),
        declared
        | groups
        | {
            "__annotations__": dict.fromkeys(declared, Array),
            "__module__": __name__,
            "__doc__": about,
            "states": states,
            "inputs": inputs,
            "dt": dt,
            "solve_for": tuple(free),
            "tree": model_files.tree_of(m),
            "draw": draw,
        },
    )
    cls.name = called if called.isidentifier() else f"robot_{called}"
    return cls


def _compare(m: Any, plant: Plant) -> None:
    """Refuse a model in which something acts that the tables do not hold, found by MuJoCo's own accelerations."""
    mujoco, random = model_files.library(), np.random.default_rng(0)
    data = mujoco.MjData(m)
    x_eq, u_eq = (np.array([s.at for s in signals]) for signals in (plant.states, plant.inputs))
    scales = (np.array([s.scale for s in signals]) for signals in (plant.states, plant.inputs))
    xs, us = (a + size * random.normal(size=(4, len(a))) for a, size in zip((x_eq, u_eq), scales))
    found, expected = np.asarray(plant.dynamics(jnp.asarray(xs), jnp.asarray(us)))[:, m.nq :], []
    with model_files.smooth(m):
        for x, u in zip(xs, us):
            data.qpos[:], data.qvel[:], data.ctrl[:] = x[: m.nq], x[m.nq :], u
            mujoco.mj_forward(m, data)
            expected.append(data.qacc.copy())
    close = 1e-6 if found.dtype == np.float64 else 1e-2
    if not np.allclose(found, expected, rtol=close, atol=close * np.abs(expected).max()):
        raise ValueError(
            f"model: its accelerations differ from MuJoCo's by {np.abs(found - expected).max():.2g}: "
            f"{model_checks.suspects(m)}"
        )

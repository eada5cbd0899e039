"""Rest of a robot: the inputs that hold a configuration, solved for on MuJoCo's forces."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lqrlab.compute import checks
from lqrlab.extensions.robots import model_checks, model_files
from lqrlab.extensions.robots.multibody import Tree


class Rest(NamedTuple):
    """A configuration in which a robot is held.

    Attributes:
        q, u: joints' positions [q], actuators' controls [m].
        inputs, coordinates: which of them move to hold a variant.
        drive: generalised force for each control [q, m].
        effort: generalised force that a large unit of a joint's deviation costs: its weight and spring, and its
            inertia when its rate changes as far in half a second.
    """

    q: np.ndarray
    u: np.ndarray
    inputs: list[int]
    coordinates: list[int]
    drive: np.ndarray
    effort: np.ndarray


def solve(m: Any, at: str | Sequence[float] | None) -> Rest:
    """Solve for the inputs that hold a pose, or raise an error that names the joint."""
    import scipy.linalg  # not when lqrlab starts

    key_frames = {m.key(i).name or f"key frame {i + 1}": (m.key_qpos[i], m.key_ctrl[i]) for i in range(m.nkey)}
    drawn = (m.qpos0, np.zeros(m.nu))
    if at is None:
        start, u = next(iter(key_frames.values()), drawn)
    elif isinstance(at, str):
        if not key_frames:
            raise ValueError(f"at: the model has no key frames; give positions, as at={np.round(m.qpos0, 6).tolist()}")
        start, u = key_frames[checks.choice("at", at, key_frames, "a key frame:")]
    else:
        start, u = checks.real("at", at), drawn[1]
        if start.shape != (m.nq,) or not np.isfinite(start).all():
            raise ValueError(f"at: expected {m.nq} positions, one a joint, but found {at!r}")
    q = np.array(start, float)
    _check_inertia(m, q)
    for _ in range(30):
        force, drive, slope = _statics(m, q, u)
        undriven = scipy.linalg.null_space(drive.T, rcond=1e-9)  # directions in which no actuator acts
        left, moves = undriven.T @ force, undriven.T @ slope
        dq = np.linalg.lstsq(moves, -left, rcond=1e-9)[0] if left.size else np.zeros(m.nv)
        q = q + np.clip(dq, -0.3, 0.3)
        u = u - np.linalg.lstsq(drive, force + slope @ dq, rcond=1e-9)[0]
    force, drive, slope = _statics(m, q, u)
    found = np.abs(force).max() <= 1e-9 * (1 + np.abs(slope).max())
    moved = np.abs(q - start)
    worst = int(np.argmax(moved))
    if not found or moved[worst] > 0.01:
        raise ValueError(_not_held(m, start, q if found else None))
    _check_limits(m, q, u)
    effort = np.abs(np.diagonal(slope)) + 4 * np.diagonal(_mass_matrix(m, q))
    return Rest(q, u, _independent(drive), _independent(undriven.T @ slope), drive, effort)


def _check_limits(m: Any, q: np.ndarray, u: np.ndarray) -> None:
    """Refuse a pose that takes more than the actuators have, naming the limit."""
    tree, gear = model_files.tree_of(m), m.actuator_gear[:, 0]
    gain, bias = _at_rest(m, tree, q)
    pull = gain * u + bias
    for kind, limit, limits, values in (
        ("actuator", "ctrlrange", tree.input_limits, u),
        ("actuator", "forcerange", tree.force_limits, pull),
        ("jnt", "actuatorfrcrange", tree.joint_limits, tree.acts_on @ (gear * pull)),
    ):
        for i, (low, value, high) in enumerate(zip(limits[0], values, limits[1])):
            if not low <= value <= high:
                what = "joint" if kind == "jnt" else kind
                raise ValueError(
                    f"{what} {model_files.name_of(m, kind, i)!r}: holding the robot at rest takes {value:.4g}, but "
                    f"its {limit} is [{low:g}, {high:g}]; widen it, or choose another pose by at="
                )


def _at_rest(m: Any, tree: Tree, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actuators of a robot at rest: force of each for a unit of its input, and without input [m]."""
    motion = np.stack([np.ones(m.nu), m.actuator_gear[:, 0] * (q @ tree.acts_on)])
    return np.sum(tree.gain[:, :2].T * motion, 0), np.sum(tree.bias[:, :2].T * motion, 0)


def _mass_matrix(m: Any, q: np.ndarray) -> np.ndarray:
    """M(q) [q, q], which MuJoCo does not have to factorise for it."""
    mujoco, columns = model_files.library(), np.zeros((m.nv, m.nv))
    data = mujoco.MjData(m)
    data.qpos[:] = q
    mujoco.mj_kinematics(m, data)
    mujoco.mj_comPos(m, data)
    (mujoco.mj_makeM if hasattr(mujoco, "mj_makeM") else mujoco.mj_crb)(m, data)
    for column, unit in zip(columns, np.eye(m.nv)):
        mujoco.mj_mulM(m, data, column, unit)
    return columns


def _check_inertia(m: Any, q: np.ndarray) -> None:
    """Refuse joints that move nothing, or the same as others: MuJoCo itself only warns, into a file of its own."""
    M = _mass_matrix(m, q)
    root = np.sqrt(np.maximum(np.diagonal(M), 1e-300))
    sizes, directions = np.linalg.eigh(M / root / root[:, None])
    if np.diagonal(M).min() > 0 and sizes[0] > 1e-9:
        return
    alike = np.flatnonzero(np.abs(directions[:, 0]) > 0.1)
    names = " and ".join(f"joint {model_files.name_of(m, 'jnt', i)!r}" for i in alike)
    raise ValueError(
        f"{names}: no inertia opposes a motion of them; remove a joint that moves what another one moves, or give it "
        "an armature"
    )


def _statics(m: Any, q: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Generalised forces [q] at rest, their derivatives with the inputs [q, m], and with the positions [q, q]."""
    mujoco, tree = model_files.library(), model_files.tree_of(m)
    data, gear = mujoco.MjData(m), m.actuator_gear[:, 0]

    def driving(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (gain, bias), arm = _at_rest(m, tree, q), tree.acts_on * gear
        return arm * gain, arm @ bias

    def net(q: np.ndarray) -> np.ndarray:
        data.qpos[:], data.qvel[:] = q, 0
        mujoco.mj_forward(m, data)
        drive, bias = driving(q)
        return data.qfrc_smooth + bias + drive @ u

    with model_files.smooth(m, ["ACTUATION"]):
        steps = 1e-6 * np.eye(m.nv)
        slope = np.stack([(net(q + step) - net(q - step)) / 2e-6 for step in steps], axis=1)
        return net(q), driving(q)[0], slope


def _independent(columns: np.ndarray) -> list[int]:
    """Columns of a matrix that span all of them."""
    import scipy.linalg

    if not columns.size:
        return []
    _, R, order = scipy.linalg.qr(columns, mode="economic", pivoting=True)
    sizes = np.abs(np.diagonal(R))
    return sorted(order[: int(np.sum(sizes > 1e-9 * max(sizes[0], 1e-300)))].tolist())


def _not_held(m: Any, start: np.ndarray, near: np.ndarray | None) -> str:
    """The joint that no input holds, and where the robot could be held, in words."""
    force, drive, _ = _statics(m, np.array(start, float), np.zeros(m.nu))
    left = force - drive @ np.linalg.lstsq(drive, force, rcond=1e-9)[0]
    worst = int(np.argmax(np.abs(left)))
    joint = model_files.name_of(m, "jnt", worst)
    hint = f"choose another pose by at=, or {model_checks.held(m, worst)}"
    if near is not None:
        hint = f"near it, at={np.round(near, 6).tolist()} can be held"
    ground = "; the ground does not either, since contacts are left out" if model_checks.touches(m) else ""
    return (
        f"no input holds the robot at {np.round(start, 6).tolist()}: {np.abs(left).max():.3g} N·m (or N) at joint "
        f"{joint!r} are left, and no actuator can carry them{ground}; {hint}"
    )

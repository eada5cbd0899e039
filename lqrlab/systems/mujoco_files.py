"""Robots' files, in MuJoCo's format (MJCF) or URDF: read, refused in words, put into tables."""

import contextlib
import copy
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from lqrlab.compute import checks
from lqrlab.systems.multibody import Body, Joint, Tree

SUFFIXES = (".xml", ".mjcf", ".urdf")
"""What a robot's file may end in."""
_MOST_BYTES = 64 * 2**20


def library() -> ModuleType:
    """MuJoCo, or a sentence that says how to install it."""
    try:
        import mujoco
    except ImportError as error:
        raise ImportError(
            "from_mujoco: robots are read by the package mujoco, which is not installed; pip install 'lqrlab[mujoco]' "
            "brings it"
        ) from error
    return mujoco


def read(model: Any, actuated: Sequence[str] = ()) -> tuple[Any, str]:
    """A compiled ``mujoco.MjModel``, and the name of its file.

    Args:
        model: a file, or an ``MjModel``.
        actuated: joints of a file that a motor is added to.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    mujoco = library()
    named = isinstance(actuated, list | tuple) and all(isinstance(name, str) for name in actuated)
    if not named:
        raise ValueError(f"actuated: expected names of joints, as ['pivot'], but found {actuated!r}")
    if isinstance(model, mujoco.MjModel):
        if actuated:
            raise ValueError(
                "actuated: motors are added to a file, not to a compiled model; add them to its MjSpec"
            )
        return copy.copy(model), ""  # what the caller does to it later changes no plant
    file = checks.path("model", model)
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{file}: expected a robot ending in {', '.join(SUFFIXES)}, but found {file.suffix!r}"
        )
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{file}: expected a robot, but found {file.stat().st_size / 2**20:.0f} MiB")
    with _told(str(file)):
        spec = mujoco.MjSpec.from_file(str(file))
    for name in actuated:
        _add_motor(mujoco, spec, name)
    with _told(str(file)):
        return spec.compile(), file.name


@contextlib.contextmanager
def _told(file: str) -> Iterator[None]:
    """MuJoCo's complaint of a file in one line."""
    try:
        yield
    except ValueError as error:
        words = " ".join(str(error).split())
        raise ValueError(f"{file}: is no robot that MuJoCo can read: {words}") from error


def _add_motor(mujoco: ModuleType, spec: Any, name: str) -> None:
    """A motor on a joint, limited by what the file says of the joint (``effort`` in URDF)."""
    joints = {joint.name: joint for joint in spec.joints}
    checks.choice("actuated", name, joints, "a joint:")
    motor = spec.add_actuator(name=f"{name}_motor", target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    low, high = joints[name].actfrcrange
    if low < high:
        motor.ctrlrange, motor.ctrllimited = (low, high), True


def name_of(m: Any, kind: str, number: int | np.integer) -> str:
    """A joint's, body's or actuator's name in the model as an identifier; its kind and number if it has none."""
    named = re.sub(r"\W+", "_", getattr(m, kind)(number).name).strip("_")
    return named or f"{dict(jnt='joint').get(kind, kind)}{number + 1}"


def check_supported(m: Any) -> None:
    """Refuse what is no tree of hinges and slides with motors on them, naming the joint or actuator.

    Raises:
        ValueError: says what the model has, and the way out.
    """
    mujoco = library()
    loose = {int(mujoco.mjtJoint.mjJNT_FREE): "a free", int(mujoco.mjtJoint.mjJNT_BALL): "a ball"}
    for number, kind in enumerate(map(int, m.jnt_type)):
        if kind in loose:
            way = (
                "leave the joint out, so that the body stands fixed"
                if "free" in loose[kind]
                else ("replace it by up to three hinges")
            )
            raise ValueError(
                f"joint {name_of(m, 'jnt', number)!r}: is {loose[kind]} joint, whose orientation is a quaternion, not "
                f"a state that can deviate freely; {way}, or give the body slides and hinges along its axes"
            )
    if not m.njnt:
        raise ValueError("model: has no joints, so nothing moves; add a hinge or a slide")
    if not m.nu:
        joints = ", ".join(repr(m.jnt(i).name) for i in range(m.njnt))
        raise ValueError(
            f"model: has no actuators, so nothing can be controlled; name the joints that a motor drives, as "
            f"actuated=[{joints}]"
        )
    _check_actuators(m)
    if m.neq and np.any(m.eq_active0):
        raise ValueError(
            "model: has equality constraints, which close loops or couple joints; lqrlab takes trees of bodies alone: "
            "remove <equality>, or deactivate its members"
        )


def _check_actuators(m: Any) -> None:
    mujoco = library()
    stateless = {int(mujoco.mjtDyn.mjDYN_NONE)}
    on_joint = {int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)}
    gains = {int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE)}
    biases = {int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE)}
    for kinds, known, found in (
        (
            m.actuator_dyntype,
            stateless,
            "has a state of its own (a filter, an integrator, a muscle's activation)",
        ),
        (m.actuator_trntype, on_joint, "acts on no joint, but on a tendon, a site or a body"),
        (m.actuator_gaintype, gains, "has a force that is not affine in its input"),
        (m.actuator_biastype, biases, "has a force that is not affine in its input"),
    ):
        for number, kind in enumerate(kinds):
            if int(kind) not in known:
                raise ValueError(
                    f"actuator {name_of(m, 'actuator', number)!r}: {found}; replace it by a <motor>, <position> or "
                    "<velocity> on a joint"
                )


def left_out(m: Any, q: np.ndarray) -> tuple[str, list[str]]:
    """What the model has besides smooth motion, in words, and which of that acts at rest at ``q``."""
    mujoco = library()
    kinds, acting = [], []
    if m.ngeom > 1 and np.any(m.geom_contype) and np.any(m.geom_conaffinity):
        kinds.append("contacts")
        data = mujoco.MjData(m)
        data.qpos[:] = q
        mujoco.mj_forward(m, data)
        for contact in data.contact[: data.ncon]:
            names = [name_of(m, "body", m.geom_bodyid[g]) for g in contact.geom if g >= 0]
            acting.append(f"{' and '.join(names)} touch")
    if np.any(m.jnt_limited):
        kinds.append("stops at the ends of the joints' ranges")
        for i in np.flatnonzero(m.jnt_limited):
            low, high = m.jnt_range[i]
            if not low < q[m.jnt_qposadr[i]] < high:
                acting.append(f"joint {name_of(m, 'jnt', i)!r} is at its stop")
    if np.any(m.dof_frictionloss):
        kinds.append("dry friction")
        rubs = [name_of(m, "jnt", m.dof_jntid[i]) for i in np.flatnonzero(m.dof_frictionloss)]
        acting.append(f"dry friction acts in {', '.join(rubs)}")
    return ", ".join(kinds), acting


@contextlib.contextmanager
def smooth(m: Any, disable: Sequence[str] = ()) -> Iterator[None]:
    """Leave contacts, stops, dry friction, and what else is named, out of the model for a while."""
    mujoco, before = library(), int(m.opt.disableflags)
    for name in ("CONSTRAINT", *disable):
        m.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}"))
    try:
        yield
    finally:
        m.opt.disableflags = before


def tree_of(m: Any) -> Tree:
    """The tables of a model that :func:`check_supported` let pass."""
    mujoco = library()

    def turn(quaternion: np.ndarray) -> np.ndarray:
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, quaternion)
        return matrix.reshape(3, 3)

    def limits(given: np.ndarray, limited: np.ndarray) -> np.ndarray:
        return np.where(limited.astype(bool)[:, None], given, [-np.inf, np.inf]).T

    joints = tuple(
        Joint(
            m.jnt_type[i] == mujoco.mjtJoint.mjJNT_SLIDE,
            m.jnt_axis[i].copy(),
            m.jnt_pos[i].copy(),
            float(m.qpos0[i]),
        )
        for i in range(m.njnt)
    )
    bodies = tuple(
        Body(
            int(m.body_parentid[b]),
            m.body_pos[b].copy(),
            turn(m.body_quat[b]),
            tuple(np.flatnonzero(m.jnt_bodyid == b).tolist()),
            m.body_ipos[b].copy(),
            turn(m.body_iquat[b]),
        )
        for b in range(1, m.nbody)
    )
    strength = float(np.linalg.norm(m.opt.gravity))
    clamped = m.actuator_ctrllimited * (
        0 if m.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL else 1
    )
    affine = (m.actuator_gaintype == mujoco.mjtGain.mjGAIN_AFFINE)[:, None]
    biased = (m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE)[:, None]
    return Tree(
        bodies=bodies,
        joints=joints,
        mass=m.body_mass[1:].copy(),
        inertia=m.body_inertia[1:].copy(),
        weight=1 - m.body_gravcomp[1:],
        armature=m.dof_armature.copy(),
        stiffness=m.jnt_stiffness.copy(),
        relaxed=m.qpos_spring.copy(),
        down=m.opt.gravity / (strength or 1.0),
        acts_on=(np.arange(m.nv)[:, None] == m.actuator_trnid[:, 0]).astype(float),
        gain=m.actuator_gainprm[:, :3] * np.where(affine, 1, [1, 0, 0]),
        bias=m.actuator_biasprm[:, :3] * biased,
        input_limits=limits(m.actuator_ctrlrange, clamped),
        force_limits=limits(m.actuator_forcerange, m.actuator_forcelimited),
        joint_limits=limits(m.jnt_actfrcrange, m.jnt_actfrclimited),
    )

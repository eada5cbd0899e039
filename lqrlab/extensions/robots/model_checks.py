"""Checks of MuJoCo models: unsupported and ignored features, with a fix for each."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lqrlab.extensions.robots.model_files import disabled, library, name_of

_MOTORS = "replace it by a <motor>, <position> or <velocity> on a joint"


def check_supported(m: Any) -> None:
    """Raise ValueError unless this is a tree of hinges and slides with motors, naming the joint or actuator."""
    mujoco = library()
    loose = {int(mujoco.mjtJoint.mjJNT_FREE): "a free", int(mujoco.mjtJoint.mjJNT_BALL): "a ball"}
    for number, kind in enumerate(map(int, m.jnt_type)):
        if kind in loose:
            raise ValueError(
                f"joint {name_of(m, 'jnt', number)!r}: is {loose[kind]} joint, whose orientation is a quaternion, not "
                f"a state that can deviate freely; {held(m, number)}, or replace the joint by slides and hinges along "
                "its axes"
            )
    tables = [n for n in dir(m) if n.startswith(("body_", "jnt_", "dof_", "qpos", "actuator_g")) and "range" not in n]
    for part, names in ((m, tables), (m.opt, ("gravity", "wind"))):
        if wrong := [name for name in names if not np.isfinite(getattr(part, name)).all()]:
            raise ValueError(f"model: expected finite numbers, but found NaN or infinity in {wrong[0]}")
    if not m.njnt:
        raise ValueError(
            "model: has no joints, so nothing moves; add a hinge or a slide (a xacro file has to be expanded first)"
        )
    if not m.nu:
        names = [m.jnt(i).name for i in range(m.njnt)]
        way = f"name the joints that a motor drives, as actuated={names}"
        if not all(names):
            way = "give its joints names in the file, and name those that a motor drives by actuated="
        raise ValueError(f"model: has no actuators, so nothing can be controlled; {way}")
    _check_actuators(m)
    for words in (*_couplings(m), *_springs(m)):
        raise ValueError(words)


def held(m: Any, joint: int | np.integer) -> str:
    """The remedy that leaves a joint out, as text."""
    name = m.jnt(joint).name
    return f"fixed=[{name!r}] lets its body stand as drawn" if name else "leave the joint out of the file"


def _check_actuators(m: Any) -> None:
    mujoco = library()
    stateless = {int(mujoco.mjtDyn.mjDYN_NONE)}
    on_joint = {int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)}
    gains = {int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE)}
    biases = {int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE)}
    for kinds, known, found in (
        (m.actuator_dyntype, stateless, "has a state of its own (a filter, an integrator, a muscle's activation)"),
        (m.actuator_trntype, on_joint, "acts on no joint, but on a tendon, a site or a body"),
        (m.actuator_gaintype, gains, "has a force that is not affine in its input"),
        (m.actuator_biastype, biases, "has a force that is not affine in its input"),
    ):
        for number, kind in enumerate(kinds):
            if int(kind) not in known:
                raise ValueError(f"actuator {name_of(m, 'actuator', number)!r}: {found}; {_MOTORS}")
    if disabled(m, "ACTUATION") or m.opt.disableactuator:
        raise ValueError(
            "model: its <option> switches actuators off (<flag actuation>, or actuatorgroupdisable), so that nothing "
            "can be controlled; take that out"
        )


def _couplings(m: Any) -> Iterator[str]:
    """Equality constraints that act, each in words."""
    mujoco = library()
    joint, tendon = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)
    for number in np.flatnonzero(m.eq_active0) if m.neq else ():
        kind, first, second = (int(a[number]) for a in (m.eq_type, m.eq_obj1id, m.eq_obj2id))
        name = f"equality {m.eq(number).name or f'constraint {number + 1}'!r}"
        if kind != joint:
            what = "tendons" if kind == tendon else "bodies"
            yield (
                f"{name}: ties {what} to each other, but lqrlab takes trees of bodies alone; remove it from <equality>"
            )
            continue
        tied = f"joint {name_of(m, 'jnt', first)!r}"
        to = f"follow joint {name_of(m, 'jnt', second)!r}" if second >= 0 else "stand still"
        yield (
            f"{name}: makes {tied} {to} (in URDF: <mimic>), but lqrlab takes joints that move on their own; "
            f"{held(m, first)}, or remove it"
        )


def _springs(m: Any) -> Iterator[str]:
    """Springs that a comparison near the rest misses: those of tendons may be slack there, others yield far off."""
    for words, table in (("a spring", "stiffness"), ("damping", "damping"), ("inertia", "armature")):
        for number in np.flatnonzero(getattr(m, f"tendon_{table}", ())):
            name = f"tendon {m.tendon(number).name or number + 1!r}"
            yield f"{name}: has {words}, which lqrlab does not know; take its {table} out, or give it to the joints"
    for number in np.flatnonzero(getattr(m, "jnt_springyield", ())):
        name = f"joint {name_of(m, 'jnt', number)!r}"
        yield f"{name}: has a spring that yields, but lqrlab knows only those that do not; take springyield out"


def left_out(m: Any, q: np.ndarray) -> tuple[str, list[str]]:
    """Parts of the model besides smooth motion, in words, and which of them act at rest at ``q``."""
    kinds, acting = [], []
    data = library().MjData(m)
    data.qpos[:] = q
    library().mj_forward(m, data)
    if touches(m):
        kinds.append("contacts")
        for contact in data.contact[: data.ncon]:
            names = [name_of(m, "body", m.geom_bodyid[g]) for g in contact.geom if g >= 0]
            acting.append(f"{' and '.join(names)} touch")
    if np.any(m.jnt_limited):
        kinds.append("stops at the ends of the joints' ranges")
        for i in np.flatnonzero(m.jnt_limited):
            low, high = m.jnt_range[i]
            if not low < q[m.jnt_qposadr[i]] < high:
                acting.append(f"joint {name_of(m, 'jnt', i)!r} is at its stop")
    if np.any(m.tendon_limited):
        kinds.append("stops at the ends of the tendons' ranges")
        for i in np.flatnonzero(m.tendon_limited):
            low, high = m.tendon_range[i]
            if not low < data.ten_length[i] < high:
                acting.append(f"tendon {name_of(m, 'tendon', i)!r} is at its stop")
    if np.any(m.dof_frictionloss) or np.any(m.tendon_frictionloss):
        kinds.append("dry friction")
        rubs = [name_of(m, "jnt", m.dof_jntid[i]) for i in np.flatnonzero(m.dof_frictionloss)]
        rubs += [name_of(m, "tendon", i) for i in np.flatnonzero(m.tendon_frictionloss)]
        acting.append(f"dry friction acts in {', '.join(rubs)}")
    return ", ".join(kinds), list(dict.fromkeys(acting))


def in_degrees(m: Any) -> str:
    """Hinges, in words, whose ranges [rad] would be those of a robot if they were degrees; empty if there are none."""
    hinges = np.flatnonzero(m.jnt_limited & (m.jnt_type == int(library().mjtJoint.mjJNT_HINGE)))
    wide = [i for i in hinges if 6 * np.pi < np.abs(m.jnt_range[i]).max() <= 720]
    ranges = ", ".join(f"{name_of(m, 'jnt', i)} from {m.jnt_range[i][0]:g} to {m.jnt_range[i][1]:g} rad" for i in wide)
    return f"turns {ranges}: if these are degrees, write radians, which URDF has" if wide else ""


def touches(m: Any) -> bool:
    """True if anything of the model can touch anything else."""
    return bool(m.npair or (m.ngeom > 1 and np.any(m.geom_contype) and np.any(m.geom_conaffinity)))


def suspects(m: Any) -> str:
    """Reasons for a model to move otherwise than its tables say: those that it has, or else examples."""
    delays, curved = getattr(m, "actuator_delay", ()), "have a stiffness or damping that is not constant"
    tables = [getattr(m, name, np.zeros(1)) for name in ("jnt_stiffnesspoly", "dof_dampingpoly")]
    carried = m.jnt_actgravcomp.astype(bool) & m.jnt_actfrclimited.astype(bool)
    seen = [
        (m.opt.density or m.opt.viscosity, "<option density, viscosity> makes the air drag; set both to 0 there"),
        (np.any(delays), "actuators have a delay; take it out, and give the delay to lqrlab's designs"),
        (any(np.any(table) for table in tables), f"joints {curved}; leave only the first number of stiffness, damping"),
        (
            any(np.any(getattr(m, f"actuator_{name}", 0)) for name in ("armature", "damping")),
            "actuators have an armature or damping of their own; give it to their joints",
        ),
        (np.any(carried), "joints have actuatorgravcomp with an actuatorfrcrange; remove one of the two"),
        (getattr(m, "nplugin", 0), "plugins act in it, of which lqrlab knows nothing; take them out of the model"),
        (getattr(m, "nflex", 0), "it has bodies that bend (<flex>); take them out of the model"),
    ]
    found = [words for there, words in seen if there]
    return "; ".join(found) or "something acts in it that lqrlab does not know; take it out of the model"

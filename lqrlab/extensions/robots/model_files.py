"""Robots' files, in MuJoCo's format (MJCF) or URDF: read, refused in words, put into tables."""

import contextlib
import copy
import html
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.files import require_readable
from lqrlab.extensions.robots.multibody import Body, Joint, Tree
from lqrlab.installation import of_extra

SUFFIXES = (".xml", ".mjcf", ".urdf")
"""Endings of robots' files."""
_MOST_BYTES = 16 * 2**20
_MOST_ELEMENTS = 20_000  # some kilobytes each in MuJoCo's memory; a robot with its scene has some hundreds
_MOST_NUMBERS, _LONGEST_TAG, _MOST_PARTS = 2_000_000, 1 << 20, 100
_TAG = re.compile(r"""<(/?[\w:.-]+)((?:[^<>"']|"[^"]*"|'[^']*')*+)>""")
_NAN = re.compile(r"(?i)(?<!\S)[-+]?nan(?:\(\w*\))?(?!\S)")
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(["'])(.*?)\2""", re.DOTALL)


def library() -> ModuleType:
    """MuJoCo, or an error with the command that installs it."""
    return of_extra("mujoco", "[robots]", "from_mujoco")


def read_model(
    model: Any, actuated: Sequence[str] = (), fixed: Sequence[str] = ()
) -> tuple[Any, str, Callable[[], Any]]:
    """A compiled ``mujoco.MjModel``, the name of its file, and what makes the model to draw."""
    mujoco = library()
    for key, given in (("actuated", actuated), ("fixed", fixed)):
        if not (isinstance(given, list | tuple) and all(isinstance(name, str) for name in given)):
            raise ValueError(f"{key}: expected names of joints, as ['pivot'], but found {given!r}")
    if isinstance(model, mujoco.MjModel):
        for key, given in (("actuated", actuated), ("fixed", fixed)):
            if given:
                raise ValueError(
                    f"{key}: joints are changed in a file, not in a compiled model; change its MjSpec, and compile that"
                )
        m = _without_what_is_off(copy.copy(model))  # what the caller does to it later changes no plant
        return m, "", lambda: m
    file = checks.path("model", model)
    require_readable(file, SUFFIXES, _MOST_BYTES)
    _check_elements(file)

    def compiled(spec: Any) -> Any:
        for name in actuated:
            _add_motor(mujoco, spec, name)
        _fix(mujoco, spec, fixed)
        return _without_what_is_off(spec.compile())

    with _told(str(file)):
        spec = mujoco.MjSpec.from_file(str(file))
        _check_sizes(spec)
    names = [joint.name for joint in spec.joints if joint.name]
    for key, given in (("actuated", actuated), ("fixed", fixed)):
        for name in given:
            if spec.joints and not names:
                raise ValueError(f"{file}: {key}: its joints have no names; give them names in the file")
            checks.choice(f"{file}: {key}", name, names or [name], "a joint:")
    with _told(str(file)):
        try:
            m = compiled(spec)
        except (ValueError, RuntimeError) as error:
            with contextlib.suppress(ValueError, RuntimeError):
                m = compiled(_without_shapes(mujoco.MjSpec.from_file(str(file))))
                return m, file.name, lambda: m
            raise error
    return m, file.name, lambda: _as_seen(file, m, compiled)


def _without_shapes(spec: Any) -> Any:
    """A model without meshes, height fields and pictures, where no mass depends on them: their files may be missing."""
    by_shape = spec.compiler.inertiafromgeom == library().mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE

    def strip(body: Any, still: bool) -> None:
        still = still and not body.joints
        for geom in [g for g in body.geoms if g.meshname or g.hfieldname]:
            if still or (body.explicitinertial and not by_shape):
                _delete(spec, geom)
        for child in body.bodies:
            strip(child, still)

    strip(spec.worldbody, True)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    left = {geom.meshname for geom in spec.geoms}
    unused = [mesh for mesh in spec.meshes if mesh.name not in left]
    for part in [*spec.textures, *spec.hfields, *spec.skins, *unused]:
        _delete(spec, part)
    return spec


def _delete(spec: Any, part: Any) -> None:
    part.delete() if hasattr(part, "delete") else spec.delete(part)  # older MuJoCo, newer


def _check_elements(file: Path) -> None:
    """Refuse a robot of more elements than robots have, those counted that it asks MuJoCo to repeat, before it does."""
    found, places = 0.0, [(file, 1.0)]
    for place, times in places:
        above, (text, *more) = [times], place.read_text(errors="replace").split("<!--")
        for tag in _TAG.finditer("".join([text, *(part.partition("-->")[2] for part in more)])):
            name, inside = tag.groups()
            if name[0] == "/":
                above.pop() if len(above) > 1 else None
                continue
            values = {key: html.unescape(value) for key, _, value in _ATTRIBUTE.findall(inside)}
            times = above[-1]
            with contextlib.suppress(ValueError):  # <replicate count="100">, <composite count="10 10 1">
                times *= max(1.0, math.prod(map(float, values.get("count", "1").split())))
            above += [] if inside.endswith("/") else [times]
            found += times
            sides = values.get("nrow", ""), values.get("ncol", "")
            if all(side.isdecimal() for side in sides) and int(sides[0]) * int(sides[1]) > _MOST_NUMBERS:
                raise ValueError(f"{file}: expected a height field of at most {_MOST_NUMBERS} numbers, but found more")
            if found > _MOST_ELEMENTS:
                raise ValueError(f"{file}: expected a robot of at most {_MOST_ELEMENTS} elements, but it has more")
            nan = [key for key, value in values.items() if key != "name" and _NAN.search(value)]
            if nan or "\ufffd" in inside:
                what = f"{nan[0]} is not a number" if nan else "has letters that are no UTF-8; save the file as UTF-8"
                raise ValueError(f"{file}: <{name} …>: {what}")
            if len(inside) > _LONGEST_TAG:
                raise ValueError(
                    f"{file}: expected elements of at most {_LONGEST_TAG} letters, but <{name} …> has more"
                )
            if name in ("include", "model") and "file" in values:
                for part in {place.parent / values["file"], file.parent / values["file"]}:
                    if part.exists() and not (part.is_file() and part.stat().st_size <= _MOST_BYTES):
                        raise ValueError(f"{file}: names {part}, which is no file that a robot has")
                    if part.exists() and len(places) < _MOST_PARTS:
                        places.append((part, times))


def _check_sizes(spec: Any) -> None:
    """Refuse, before it is compiled, a model whose few words ask for much memory, and ranges that MuJoCo overlooks."""
    listed = [spec.bodies, spec.joints, spec.geoms, spec.sites]
    listed += [spec.cameras, spec.tendons, spec.actuators, spec.sensors]
    kinds = ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
    asked = {f"<size nuser_{kind}>": getattr(spec, f"nuser_{kind}") * len(of) for kind, of in zip(kinds, listed)}
    asked |= {f"<size {name}>": getattr(spec, name) for name in ("nuserdata", "njmax", "nconmax", "nstack")}
    asked |= {"<size nkey>": spec.nkey * (len(spec.joints) + len(spec.bodies))}
    asked |= {f"<numeric {one.name}>": one.size for one in spec.numerics}
    asked |= {f"<texture {one.name}>": one.width * one.height for one in spec.textures}
    for what, number in asked.items():
        if number > _MOST_NUMBERS:
            raise ValueError(f"{what} asks for {number} numbers, more than the limit of {_MOST_NUMBERS}")
    for part in [*spec.joints, *spec.actuators]:
        for name in ("range", "ctrlrange", "forcerange"):
            low, high = getattr(part, name, (0.0, 0.0))
            if low > high:
                raise ValueError(f"{part.name!r}: expected a {name} from low to high, but found {low:g} to {high:g}")


_WAYS = {
    "Error opening file": "put that file where this one names it, take the element out that does, or give the body an "
    "<inertial>",
    "mass and inertia of moving bodies": "give that body a mass: an <inertial>, or geometry with a mass or density",
}


@contextlib.contextmanager
def _told(file: str) -> Iterator[None]:
    """MuJoCo's complaint of a file in one line, with the way out where its words name none."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        words = " ".join(str(error).split())
        ways = [f"; {way}" for known, way in _WAYS.items() if known in words]
        raise ValueError(f"{file}: is no robot that MuJoCo can read: {words}{''.join(ways)}") from error


def _as_seen(file: Path, m: Any, compiled: Callable[[Any], Any]) -> Any:
    """The model to draw: MuJoCo drops what a URDF file has for the eye only, unless it is told otherwise there."""
    text = file.read_text(errors="replace")
    if "<robot" not in text or "<mujoco" in text:
        return m
    kept = re.sub(r"<robot\b[^>]*>", r'\g<0><mujoco><compiler discardvisual="false"/></mujoco>', text, count=1)
    try:
        spec = library().MjSpec.from_string(kept)
        spec.modelfiledir = str(file.parent)
        seen = compiled(spec)
    except ValueError:
        return m
    same = seen.nq == m.nq and seen.nbody == m.nbody
    return seen if same else m


def _add_motor(mujoco: ModuleType, spec: Any, name: str) -> None:
    """A motor on a joint, limited by what the file says of the joint (``effort`` in URDF)."""
    (joint,) = (joint for joint in spec.joints if joint.name == name)
    motor = spec.add_actuator(name=f"{name}_motor", target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    low, high = joint.actfrcrange
    if low < high:
        motor.ctrlrange, motor.ctrllimited = (low, high), True


def _fix(mujoco: ModuleType, spec: Any, names: Sequence[str]) -> None:
    """Leave joints out, with all that acts on them: their bodies stand as drawn."""
    if not names:
        return
    m = spec.compile()  # which numbers its parts
    gone = {i for i in range(m.njnt) if m.jnt(i).name in names}
    tendons = {
        t
        for t in range(m.ntendon)
        for w in range(m.tendon_adr[t], m.tendon_adr[t] + m.tendon_num[t])
        if m.wrap_type[w] == mujoco.mjtWrap.mjWRAP_JOINT and m.wrap_objid[w] in gone
    }
    on_tendon, ties = mujoco.mjtTrn.mjTRN_TENDON, mujoco.mjtEq
    actuators = {
        i
        for i, kind in enumerate(m.actuator_trntype)
        if m.actuator_trnid[i, 0] in (tendons if kind == on_tendon else gone)
    }
    kinds = {int(ties.mjEQ_JOINT): gone, int(ties.mjEQ_TENDON): tendons}
    equalities = {
        i for i in range(m.neq) if {int(m.eq_obj1id[i]), int(m.eq_obj2id[i])} & kinds.get(int(m.eq_type[i]), set())
    }
    width = [{0: 7, 1: 4}.get(int(kind), 1) for kind in m.jnt_type]  # coordinates of a free, a ball, any other joint
    left = [a for i in sorted(gone) for a in range(m.jnt_qposadr[i], m.jnt_qposadr[i] + width[i])]
    positions = [np.delete(m.key_qpos[k], left) for k in range(m.nkey)]
    parts = [(spec.equalities, equalities), (spec.actuators, actuators), (spec.tendons, tendons)]
    parts += [(spec.joints, gone), (spec.sensors, set(range(m.nsensor)))]  # sensors measure no plant
    for part in [listed[i] for listed, numbers in parts for i in sorted(numbers)]:
        _delete(spec, part)
    for key, at in zip(spec.keys, positions):
        key.qpos, key.qvel, key.ctrl, key.act = at, [], [], []


def disabled(m: Any, *names: str) -> bool:
    """True if one of the flags of a model's options, called as in MuJoCo, switches something off."""
    bits = library().mjtDisableBit
    return any(m.opt.disableflags & int(getattr(bits, f"mjDSBL_{name}", 0)) for name in names)


def _without_what_is_off(m: Any) -> Any:
    """The model with zeros for gravity, springs and dampers that its options switch off."""
    if disabled(m, "GRAVITY"):
        m.opt.gravity[:] = 0
    for name, kind in (("SPRING", "stiffness"), ("DAMPER", "damping")):
        if disabled(m, name, "PASSIVE"):  # in which older MuJoCo has both
            getattr(m, f"{'jnt' if name == 'SPRING' else 'dof'}_{kind}")[:] = 0
            getattr(m, f"tendon_{kind}")[:] = 0
    return m


def name_of(m: Any, kind: str, number: int | np.integer) -> str:
    """A joint's, body's or actuator's name in the model as an identifier; its kind and number if it has none."""
    named = re.sub(r"\W+", "_", getattr(m, kind)(number).name).strip("_")
    return named or f"{dict(jnt='joint').get(kind, kind)}{number + 1}"


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
            m.jnt_type[i] == mujoco.mjtJoint.mjJNT_SLIDE, m.jnt_axis[i].copy(), m.jnt_pos[i].copy(), float(m.qpos0[i])
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
    clamped = m.actuator_ctrllimited * (0 if m.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL else 1)
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

"""Drawings of robots: the geometry of a MuJoCo model, seen along the axis that its hinges turn about."""

from typing import Any

import numpy as np

from lqrlab.extensions.robots import model_files
from lqrlab.systems.drawing import Box, Disc, Drawing, Line, Shape, ground

_RAYS = 200
"""Directions in which a mesh's outermost points are looked for."""


def view(m: Any, q: np.ndarray) -> np.ndarray:
    """Rows right and up [2, 3] of the plane in which the robot moves most, at the positions q.

    Hinges move what they carry across their axes, slides along theirs; up is against gravity (or z).
    """
    mujoco = model_files.library()
    data = mujoco.MjData(m)
    data.qpos[:] = q
    mujoco.mj_kinematics(m, data)
    slides = m.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE
    outer = np.einsum("ij,ik->ijk", data.xaxis, data.xaxis)
    along = np.sum(np.where(slides[:, None, None], -outer, outer), axis=0)
    along = along + np.diag([0.0, 1e-3, -1e-3])  # where nothing decides, look along y
    normal = np.linalg.eigh(along)[1][:, -1]
    strength = np.linalg.norm(m.opt.gravity)
    up = -m.opt.gravity / strength if strength else np.array([0.0, 0.0, 1.0])
    up = up - normal * (normal @ up)
    if np.linalg.norm(up) < 0.1:  # seen from above
        up = np.eye(3)[1] - normal * normal[1]
    up /= np.linalg.norm(up)
    right = np.cross(up, normal)
    return np.stack([right if right[np.argmax(np.abs(right))] > 0 else -right, up])


def outlines(m: Any) -> list[np.ndarray]:
    """Points [k, 3] of each geom, in its frame, that bound it: of a mesh its outermost, else its box's corners."""
    corners = np.stack(np.meshgrid(*[[-1, 1]] * 3), -1).reshape(-1, 3)
    turn, height = np.pi * (3 - np.sqrt(5)) * np.arange(_RAYS), np.linspace(-1, 1, _RAYS)
    rays = np.stack([np.cos(turn), np.sin(turn), height])
    rays[:2] *= np.sqrt(1 - height**2)
    found = []
    for g in range(m.ngeom):
        points = m.geom_aabb[g, :3] + m.geom_aabb[g, 3:] * corners
        if m.geom_type[g] == model_files.library().mjtGeom.mjGEOM_MESH:
            first, count = (a[m.geom_dataid[g]] for a in (m.mesh_vertadr, m.mesh_vertnum))
            points = m.mesh_vert[first : first + count].astype(float)
            points = points[np.unique(np.argmax(points @ rays, axis=0))]
        found.append(points)
    return found


def drawing(m: Any, q: np.ndarray, plane: np.ndarray, bounds: list[np.ndarray]) -> Drawing:
    """The robot at the positions q [q], projected on the plane; ``bounds`` are its outlines."""
    mujoco = model_files.library()
    data = mujoco.MjData(m)
    data.qpos[:] = q
    mujoco.mj_kinematics(m, data)
    seen = [g for g in range(m.ngeom) if m.geom_group[g] < 3] or range(m.ngeom)  # from 3 on: hidden by custom
    shapes: list[Shape] = []
    for g in seen:
        body = m.geom_bodyid[g]
        fixed = m.body_weldid[body] == 0
        last = not np.any(m.body_parentid[1:] == body) and m.nbody > 2
        ink = "ground" if fixed else "accent" if last else "body"
        place, turn = data.geom_xpos[g], data.geom_xmat[g].reshape(3, 3)
        if m.geom_type[g] == mujoco.mjtGeom.mjGEOM_PLANE:
            (x, y), half = plane @ place, 1.5 * m.stat.extent
            shapes += [ground(x - half, x + half, y)] * bool(np.linalg.norm((plane @ turn)[:, 2]) > 0.99)  # its edge
            continue
        shapes += _geom(m, g, place, turn, plane, ink) or _outline(place + bounds[g] @ turn.T, plane, ink)
    drawn = set(m.geom_bodyid[list(seen)].tolist())
    moving = any(m.body_weldid[b] for b in drawn)
    bare = [b for b in range(1, m.nbody) if b not in drawn and (m.body_weldid[b] or not moving)]
    return (*shapes, *_sticks(m, data, plane, bare))


def _geom(m: Any, g: int, place: np.ndarray, turn: np.ndarray, plane: np.ndarray, ink: str) -> list[Shape]:
    """One geom as shapes of the plane; none where only its outline will do."""
    kinds, size = model_files.library().mjtGeom, m.geom_size[g]
    centre, axes, kind = plane @ place, plane @ turn, int(m.geom_type[g])
    if kind == kinds.mjGEOM_SPHERE:
        return [Disc(centre, size[0], ink)]
    if kind in (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_CYLINDER):
        round_ends = kind == kinds.mjGEOM_CAPSULE
        arm = size[1] * axes[:, 2]
        length = float(np.linalg.norm(arm))
        if length < 1e-3 * size[0] or (not round_ends and length < 0.1 * size[1]):
            return [Disc(centre, size[0], ink)]  # seen from its end
        rod = Box(centre, 2 * length, 2 * size[0], float(np.arctan2(arm[1], arm[0])), ink)
        return [rod, *(Disc(centre + side * arm, size[0], ink) for side in (-1, 1) if round_ends)]
    lengths = np.linalg.norm(axes, axis=0)
    if kind == kinds.mjGEOM_BOX and lengths.min() < 0.05:
        a, b = (i for i in range(3) if i != np.argmin(lengths))
        return [Box(centre, 2 * size[a], 2 * size[b], float(np.arctan2(axes[1, a], axes[0, a])), ink)]
    return []


def _outline(points: np.ndarray, plane: np.ndarray, ink: str) -> list[Shape]:
    """The line around points [k, 3], as the plane shows them."""
    from scipy.spatial import ConvexHull, QhullError  # not when lqrlab starts

    seen = points @ plane.T
    try:
        order = ConvexHull(seen).vertices
    except QhullError:  # a sheet, seen from its edge
        along = seen @ (np.ptp(seen, axis=0) + 1e-12)
        order = np.array([along.argmin(), along.argmax()])
    return [Line(seen[[*order, order[0]]], ink)]


def _sticks(m: Any, data: Any, plane: np.ndarray, bodies: list[int]) -> list[Shape]:
    """Bodies without geometry: lines from their parents to them, discs where their masses are."""
    radius = 0.03 * m.stat.extent
    shapes: list[Shape] = []
    for b in bodies:
        parent, frame, centre = (plane @ p for p in (data.xpos[m.body_parentid[b]], data.xpos[b], data.xipos[b]))
        shapes.append(Line([parent, frame, centre] if m.body_mass[b] else [parent, frame], "body", 4.0))
        shapes += [Disc(centre, radius, "accent")] if m.body_mass[b] else []
    return shapes

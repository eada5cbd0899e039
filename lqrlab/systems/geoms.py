"""Drawings of robots: the geometry of a MuJoCo model, seen along the axis that its hinges turn about."""

from typing import Any

import numpy as np

from lqrlab.systems import mujoco_files
from lqrlab.systems.drawing import Box, Disc, Drawing, Line, Shape, ground


def view(m: Any, q: np.ndarray) -> np.ndarray:
    """Rows right and up [2, 3] of the plane in which the robot moves most, at the positions q.

    Hinges move what they carry across their axes, slides along theirs; up is against gravity (or z), unless the
    plane lies level.
    """
    mujoco = mujoco_files.library()
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


def drawing(m: Any, q: np.ndarray, plane: np.ndarray) -> Drawing:
    """The robot at the positions q [q], projected on the plane."""
    mujoco = mujoco_files.library()
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
        shapes += _geom(m, g, data.geom_xpos[g], data.geom_xmat[g].reshape(3, 3), plane, ink)
    if not any(m.body_weldid[m.geom_bodyid[g]] for g in seen):
        shapes += _sticks(m, data, plane)
    return tuple(shapes)


def _geom(m: Any, g: int, place: np.ndarray, turn: np.ndarray, plane: np.ndarray, ink: str) -> list[Shape]:
    """One geom as shapes: those that a plane has, or the outline of its box."""
    kinds, size = mujoco_files.library().mjtGeom, m.geom_size[g]
    centre, axes, kind = plane @ place, plane @ turn, int(m.geom_type[g])
    if kind == kinds.mjGEOM_PLANE:
        level = np.linalg.norm(axes[:, 2]) > 0.99  # seen from its edge
        half = 1.5 * m.stat.extent
        return [ground(centre[0] - half, centre[0] + half, centre[1])] if level else []
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
    middle, half = m.geom_aabb[g, :3], m.geom_aabb[g, 3:]
    corners = middle + half * np.stack(np.meshgrid(*[[-1, 1]] * 3), -1).reshape(-1, 3)
    points = centre + corners @ axes.T
    from scipy.spatial import ConvexHull  # not when lqrlab starts

    order = ConvexHull(points).vertices
    return [Line(points[[*order, order[0]]], ink)]


def _sticks(m: Any, data: Any, plane: np.ndarray) -> list[Shape]:
    """A robot without geometry: lines from body to body, discs where their masses are."""
    radius = 0.03 * m.stat.extent
    shapes: list[Shape] = []
    for b in range(1, m.nbody):
        a, own, centre = (plane @ p for p in (data.xpos[m.body_parentid[b]], data.xpos[b], data.xipos[b]))
        shapes += [Line([a, own, centre], "body", 4.0), Disc(centre, radius, "accent")]
    return shapes

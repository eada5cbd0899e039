"""Each plant against physics: energy, power, mass matrices, equilibria, derivatives, equations written by
hand."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from catalogue import BUILT_IN, MECHANICAL, around, compiled_for, evaluate, undamped, variants, with_values

from lqrlab import systems
from lqrlab.compute import quick_jit
from lqrlab.systems import mechanics

# Invariants of the conservative plants that are not written as energies, with what must be zero for them to
# hold.
OTHERS = {
    "series_rlc": (dict(resistance=0.0), lambda p, x: 0.5 * (p.capacitance * x[0] ** 2 + p.inductance * x[1] ** 2)),
    "parallel_rlc": (
        dict(resistance=np.inf),
        lambda p, x: 0.5 * (p.capacitance * x[0] ** 2 + p.inductance * x[1] ** 2),
    ),
    "reaction_wheel_pendulum": (
        dict(friction=0.0, wheel_friction=0.0),
        lambda p, x: (
            0.5 * p.inertia * x[1] ** 2
            + 0.5 * p.wheel_inertia * x[2] ** 2
            + p.mass * p.gravity * p.centre * np.cos(x[0])
        ),
    ),
    "satellite_orbit": ({}, lambda p, x: 0.5 * (x[2] ** 2 + (x[0] * x[3]) ** 2) - p.gravity_constant / x[0]),
    "quadrotor": (
        {},
        lambda p, x: (
            0.5 * p.mass * np.sum(x[6:9] ** 2)
            + p.mass * p.gravity * x[2]
            + 0.5 * (p.roll_inertia * x[9] ** 2 + p.pitch_inertia * x[10] ** 2 + p.yaw_inertia * x[11] ** 2)
        ),
    ),
    "lotka_volterra": (
        {},
        lambda p, x: p.yield_ * x[0] - p.hunger * np.log(x[0]) + p.hunting * x[1] - p.growth * np.log(x[1]),
    ),
    "satellite_attitude": ({}, lambda p, x: _jacobi(p, x)),
}


def _jacobi(p, x):
    """Energy of the attitude in the orbit's frame: T + gravity gradient − centrifugal (Hughes, Spacecraft
    Attitude Dynamics)."""
    J = np.array([p.roll_inertia, p.pitch_inertia, p.yaw_inertia])
    sr, cr, sp, cp, sy, cy = (*(f(a) for a in x[:3] for f in (np.sin, np.cos)),)
    roll = np.array([[1, 0, 0], [0, cr, sr], [0, -sr, cr]])
    pitch = np.array([[cp, 0, -sp], [0, 1, 0], [sp, 0, cp]])
    yaw = np.array([[cy, sy, 0], [-sy, cy, 0], [0, 0, 1]])
    turn = roll @ pitch @ yaw
    n = p.orbit_rate
    return 0.5 * (J @ x[3:] ** 2 + 3 * n**2 * J @ turn[:, 2] ** 2 - n**2 * J @ turn[:, 1] ** 2)


@functools.partial(quick_jit, static_argnames=("dynamics", "parts", "steps"))
def flow(dynamics, plant, x, u, h, parts, steps):
    """x at the end of each of ``parts`` times ``steps`` steps h of Dormand and Prince's eighth order."""
    stages = scipy.integrate.DOP853.n_stages
    A = jnp.asarray(scipy.integrate.DOP853.A[:stages, :stages])
    B = jnp.asarray(scipy.integrate.DOP853.B)

    def stage(i, state):
        x, k = state
        return x, k.at[i].set(dynamics(plant, x + h * A[i] @ k, u))

    def step(_, x):
        _, k = jax.lax.fori_loop(0, stages, stage, (x, jnp.zeros((stages, len(x)))))
        return x + h * B @ k

    def part(x, _):
        x = jax.lax.fori_loop(0, steps, step, x)
        return x, x

    return jax.lax.scan(part, x, length=parts)[1]


def drift(plant, invariant, size):
    """Largest change of an invariant over 10 s (2000 sample times of plants that are faster or slower than
    that), relative to its largest value, and the states passed."""
    xs, _ = around(plant, np.random.default_rng(1), 1, size)
    end = 10.0 if 1e-3 < plant.dt < 1 else 2000 * plant.dt
    pace = np.abs(np.linalg.eigvals(np.asarray(plant.matrices()[0]))).max()
    steps = int(np.ceil(end / 40 / min(0.1 / max(pace, 1e-12), end / 10_000)))
    dynamics = type(plant).dynamics.__wrapped__
    x0 = jnp.asarray(xs[0])
    states = flow(dynamics, plant, x0, jnp.zeros(plant.m), end / 40 / steps, parts=40, steps=steps)
    states = np.concatenate([xs, np.asarray(states)])
    values = np.array([invariant(plant, x) for x in states])
    return np.ptp(values) / np.abs(values).max(), states


@jax.jit
def energy(plant, x):
    q, v = jnp.split(x, 2)
    return plant.kinetic(q, v) + plant.potential(q)


@pytest.mark.parametrize("name", compiled_for([*MECHANICAL, *OTHERS]))
def test_energy_is_conserved(name):
    if name in OTHERS:
        zeros, invariant = OTHERS[name]
        plant = with_values(systems.make(name), **zeros)
    else:
        plant, invariant = undamped(systems.make(name)), energy
    change, states = drift(plant, invariant, 0.3)
    assert np.max(np.ptp(states, axis=0) / np.asarray(plant.scales[0])) > 0.1  # it moved
    assert change < 1e-6


@pytest.mark.parametrize("name", compiled_for(MECHANICAL))
def test_power_is_force_times_velocity_and_masses_are_positive(name):
    """At states far from rest, damping and inputs on: dE/dt = F·v, and M is symmetric, positive definite and the
    one that the kinetic energy is made with."""
    plant = systems.make(name)
    xs, us = around(plant, np.random.default_rng(2), 16, 2.0)
    half = plant.n // 2

    def numbers(x, u):
        q, v = jnp.split(x, 2)
        slope = jax.grad(lambda x: plant.kinetic(*jnp.split(x, 2)) + plant.potential(x[:half]))(x)
        work = plant.forces(q, v, u) @ v
        return slope, plant.dynamics(x, u), work, plant.mass_matrix(q), plant.kinetic(q, v)

    slope, dx, work, M, energy = map(np.asarray, quick_jit(jax.vmap(numbers))(jnp.asarray(xs), jnp.asarray(us)))
    gained = np.sum(slope * dx, axis=1)
    np.testing.assert_array_less(np.abs(gained - work), 1e-10 * np.sum(np.abs(slope * dx), axis=1))
    np.testing.assert_allclose(M, np.swapaxes(M, 1, 2), rtol=1e-12, atol=1e-14 * np.abs(M).max())
    assert np.linalg.eigvalsh(M).min() > 0
    v = xs[:, half:]
    np.testing.assert_allclose(0.5 * np.einsum("bi,bij,bj->b", v, M, v), energy, rtol=1e-10)


def test_a_rigid_body_turns_as_its_rotation_matrix_says():
    """Ṙ = R [ω]× for the Euler angles, and J ω̇ + ω × Jω = M for the rates."""
    angles, spin, moment = np.random.default_rng(10).normal(size=(3, 3)) * 0.5
    inertia = np.array([1.0, 2.0, 4.0])

    def rotation(angles):
        (sr, sp, sy), (cr, cp, cy) = jnp.sin(angles), jnp.cos(angles)
        yaw = jnp.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
        pitch = jnp.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
        return yaw @ pitch @ jnp.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])

    rates = mechanics.euler_rates(*jnp.asarray(angles[:2]), jnp.asarray(spin))
    R, change = jax.jvp(rotation, (jnp.asarray(angles),), (rates,))
    np.testing.assert_allclose(change, R @ np.cross(np.eye(3), spin), atol=1e-14)
    acceleration = mechanics.spin_acceleration(*map(jnp.asarray, (inertia, spin, moment)))
    np.testing.assert_allclose(inertia * acceleration + np.cross(spin, inertia * spin), moment, atol=1e-14)


def test_circuits_lose_what_their_resistors_take():
    xs, us = np.random.default_rng(3).normal(size=(2, 20, 2))
    for x, u in zip(xs, us[:, :1]):
        p, (_, energy) = systems.make("series_rlc"), OTHERS["series_rlc"]
        gained = jax.grad(energy, argnums=1)(p, jnp.asarray(x)) @ p.dynamics(x, u)
        np.testing.assert_allclose(gained, u[0] * x[1] - p.resistance * x[1] ** 2, rtol=1e-9)
        p, (_, energy) = systems.make("parallel_rlc"), OTHERS["parallel_rlc"]
        gained = jax.grad(energy, argnums=1)(p, jnp.asarray(x)) @ p.dynamics(x, u)
        np.testing.assert_allclose(gained, u[0] * x[0] - x[0] ** 2 / p.resistance, rtol=1e-9)


@pytest.mark.parametrize("name", compiled_for(BUILT_IN))
def test_equilibria_of_all_variants_stand_still(name):
    """In one sample time no state moves by more than a billionth of its scale.

    That measure fits the motor that is fast as well as the orbit that is slow.
    """
    for spread in (0.0, 0.2, 0.5):
        plants = variants(name, spread)
        x, u = plants.equilibrium()
        dx = np.asarray(evaluate(name, "dynamics", 0, 0, 0)(plants, x, u))
        assert np.isfinite(dx).all(), spread
        moved = np.abs(dx) * plants.dt / np.asarray(plants.scales[0])
        assert moved.max() < 1e-9, (spread, moved.max())


@pytest.mark.parametrize("name", compiled_for(BUILT_IN))
def test_matrices_equal_central_differences(name):
    """Five-point differences of the nonlinear dynamics at variants, to a millionth of the largest entry in
    the units of the plant's scales."""
    plants = systems.sample(name, key=jax.random.key(11), num=2)
    scale = np.concatenate([np.asarray(s) for s in plants.scales])
    n, h = plants.n, 1e-3
    # one direction of x and u after another, each 2, 1, −1 and −2 steps away
    steps = (h * np.diag(scale)[:, None] * np.array([-2.0, -1.0, 1.0, 2.0])[:, None]).reshape(-1, len(scale))

    @quick_jit
    def numbers(plants, steps):
        x, u = plants.equilibrium()
        return plants.matrices(), plants.dynamics(x[:, None] + steps[None, :, :n], u[:, None] + steps[None, :, n:])

    matrices, rates = numbers(plants, jnp.asarray(steps))
    at = np.asarray(rates).reshape(2, len(scale), 4, n)
    slopes = np.moveaxis(at[:, :, 0] - 8 * at[:, :, 1] + 8 * at[:, :, 2] - at[:, :, 3], 1, 2) / (12 * h)
    expected = slopes / scale[:n, None]
    found = np.concatenate([np.asarray(a) for a in matrices], axis=2) * scale / scale[:n, None]
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


# Equations written by hand, from the sources or by Newton's laws, sharing nothing with the energies
# -----------------


def by_hand_mass_spring_damper(p, q, v, u):
    return np.array([(u[0] - p.damping * v[0] - p.stiffness * q[0]) / p.mass])


def by_hand_pendulum(p, q, v, u):
    return np.array([p.gravity / p.length * np.sin(q[0]) + (u[0] - p.friction * v[0]) / (p.mass * p.length**2)])


def by_hand_hanging_pendulum(p, q, v, u):
    return np.array([-p.gravity / p.length * np.sin(q[0]) + (u[0] - p.friction * v[0]) / (p.mass * p.length**2)])


def by_hand_cart_pole(p, q, v, u):
    """Åström and Murray, Feedback Systems, balance systems, with the angle the other way round."""
    m, l, J, s, c = p.pole_mass, p.pole_length, p.pole_inertia, np.sin(q[1]), np.cos(q[1])
    M = np.array([[p.cart_mass + m, m * l * c], [m * l * c, J + m * l**2]])
    return np.linalg.solve(M, [u[0] - p.friction * v[0] + m * l * s * v[1] ** 2, m * p.gravity * l * s])


def by_hand_gantry_crane(p, q, v, u):
    """Fang and others (2003), section II."""
    m, l, s, c = p.load_mass, p.rope_length, np.sin(q[1]), np.cos(q[1])
    M = np.array([[p.trolley_mass + m, m * l * c], [m * l * c, m * l**2]])
    return np.linalg.solve(M, [u[0] - p.friction * v[0] + m * l * s * v[1] ** 2, -m * p.gravity * l * s])


def by_hand_furuta_pendulum(p, q, v, u):
    """Cazzolato and Prime (2011), eqs. (33)-(34)."""
    m, L, l, s, c = p.pendulum_mass, p.arm_length, p.pendulum_length, np.sin(q[1]), np.cos(q[1])
    J2 = p.pendulum_inertia + m * l**2
    J0 = p.arm_inertia + m * L**2
    M = np.array([[J0 + J2 * s**2, m * L * l * c], [m * L * l * c, J2]])
    first = u[0] - p.arm_friction * v[0] + m * L * l * s * v[1] ** 2 - J2 * 2 * s * c * v[0] * v[1]
    second = -p.pendulum_friction * v[1] + J2 * s * c * v[0] ** 2 + m * p.gravity * l * s
    return np.linalg.solve(M, [first, second])


def by_hand_acrobot(p, q, v, u):
    """Spong (1995), eqs. (1)-(2), angles from upright."""
    m1, m2, l1, lc1, lc2, I1, I2 = p.mass1, p.mass2, p.length1, p.centre1, p.centre2, p.inertia1, p.inertia2
    s2, c2 = np.sin(q[1]), np.cos(q[1])
    d12 = m2 * (lc2**2 + l1 * lc2 * c2) + I2
    M = np.array([[m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * c2) + I1 + I2, d12], [d12, m2 * lc2**2 + I2]])
    h1 = -m2 * l1 * lc2 * s2 * v[1] * (v[1] + 2 * v[0])
    h2 = m2 * l1 * lc2 * s2 * v[0] ** 2
    phi2 = -m2 * lc2 * p.gravity * np.sin(q[0] + q[1])
    phi1 = -(m1 * lc1 + m2 * l1) * p.gravity * np.sin(q[0]) + phi2
    return np.linalg.solve(M, [-h1 - phi1, u[0] - h2 - phi2])


def by_hand_two_link_arm(p, q, v, u):
    """Murray, Li and Sastry (1994), section 4.2.3 with α, β, δ of uniform rods."""
    m1, m2, l1, l2 = p.mass1, p.mass2, p.length1, p.length2
    alpha, beta, delta = m1 * l1**2 / 3 + m2 * l2**2 / 3 + m2 * l1**2, m2 * l1 * l2 / 2, m2 * l2**2 / 3
    s, c = np.sin(q[1]), np.cos(q[1])
    M = np.array([[alpha + 2 * beta * c, delta + beta * c], [delta + beta * c, delta]])
    C = np.array([[-beta * s * v[1], -beta * s * (v[0] + v[1])], [beta * s * v[0], 0]])
    tip = m2 * p.gravity * l2 / 2 * np.cos(q[0] + q[1])
    N = np.array([(m1 / 2 + m2) * p.gravity * l1 * np.cos(q[0]) + tip, tip])
    return np.linalg.solve(M, u - p.friction * v - C @ v - N)


def by_hand_double_pendulum(p, q, v, u):
    """Newton and Euler: forces in the joint eliminated by hand."""
    m1, m2, l1, l2, s, c = p.mass1, p.mass2, p.length1, p.length2, np.sin(q[0] - q[1]), np.cos(q[0] - q[1])
    h = m2 * l1 * l2 / 2
    M = np.array([[(m1 / 3 + m2) * l1**2, h * c], [h * c, m2 * l2**2 / 3]])
    inner = p.friction2 * (v[1] - v[0])
    first = u[0] - p.friction1 * v[0] + inner - h * s * v[1] ** 2 + (m1 / 2 + m2) * p.gravity * l1 * np.sin(q[0])
    second = -inner + h * s * v[0] ** 2 + m2 * p.gravity * l2 / 2 * np.sin(q[1])
    return np.linalg.solve(M, [first, second])


def by_hand_ball_and_beam(p, q, v, u):
    """Hauser, Sastry and Kokotović (1992), section II."""
    m, r, w = p.ball_mass, q[0], v[1]
    roll = (m * r * w**2 - m * p.gravity * np.sin(q[1])) / (p.ball_inertia / p.ball_radius**2 + m)
    turn = u[0] - 2 * m * r * v[0] * w - m * p.gravity * r * np.cos(q[1])
    return np.array([roll, turn / (m * r**2 + p.beam_inertia + p.ball_inertia)])


def by_hand_flexible_joint_robot(p, q, v, u):
    """Spong (1987), the single link."""
    twist = p.stiffness * (q[0] - q[1])
    weight = p.link_mass * p.gravity * p.centre * np.sin(q[0])
    return np.array([(-weight - twist) / p.link_inertia, (u[0] - p.motor_friction * v[1] + twist) / p.motor_inertia])


def by_hand_planar_quadrotor(p, q, v, u):
    """Tedrake, Underactuated Robotics, chapter 3."""
    total = u[0] + u[1]
    return np.array(
        [-total * np.sin(q[2]) / p.mass, total * np.cos(q[2]) / p.mass - p.gravity, p.arm * (u[0] - u[1]) / p.inertia]
    )


def by_hand_quarter_car(p, q, v, u):
    stretch = q[0] - q[1]
    push = u[0] - p.spring * stretch - p.hardening * stretch**3 - p.damper * (v[0] - v[1])
    return np.array([push / p.body_mass, (-push - p.tyre * q[1] - p.tyre_damping * v[1]) / p.wheel_mass])


def by_hand_segway(p, q, v, u):
    """Newton and Euler for body and wheels in the axes that turn with the robot."""
    m, h, r, s, c = p.body_mass, p.height, p.wheel_radius, np.sin(q[1]), np.cos(q[1])
    d, yaw = p.track / 2, v[2]
    tau = u - p.friction * (np.array([v[0] - d * yaw, v[0] + d * yaw]) / r - v[1])
    M = np.array([[m + 3 * p.wheel_mass, m * h * c], [m * h * c, m * h**2 + p.pitch_inertia]])
    # the body's far side is flung outwards as the robot turns, as are its parts about their own centre
    fling = (m * h**2 + p.pitch_inertia - p.yaw_inertia) * s * c * yaw**2
    forward = tau.sum() / r + m * h * s * (v[1] ** 2 + yaw**2)
    pitch = -tau.sum() + m * p.gravity * h * s + fling
    about = p.yaw_inertia * c**2 + (p.pitch_inertia + m * h**2) * s**2
    about += 3 * p.wheel_mass * d**2 + p.wheel_mass * r**2 / 2
    spread = 2 * (p.pitch_inertia + m * h**2 - p.yaw_inertia) * s * c * v[1] * yaw
    turn = d * (tau[1] - tau[0]) / r - m * h * s * v[0] * yaw - spread
    return np.array([*np.linalg.solve(M, [forward, pitch]), turn / about])


BY_HAND = {key[8:]: f for key, f in globals().items() if key.startswith("by_hand_")}


@pytest.mark.parametrize("name", compiled_for(BY_HAND))
def test_dynamics_equal_equations_written_by_hand(name):
    assert len(BY_HAND) >= 10
    plant = systems.make(name)
    xs, us = around(plant, np.random.default_rng(6), 50, 2.0)
    found = np.asarray(evaluate(name, "dynamics", None, 0, 0)(plant, xs, us))
    half = plant.n // 2
    expected = np.array([np.r_[x[half:], BY_HAND[name](plant, x[:half], x[half:], u)] for x, u in zip(xs, us)])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())


# The same bodies as clouds of points, placed by forward kinematics alone: their energies need no formula
# ------------


def rod(a, b, mass):
    """Two points that have a uniform rod's mass, centre and inertia."""
    centre, half = (a + b) / 2, (b - a) / 2 / np.sqrt(3)
    return [(mass / 2, centre + half), (mass / 2, centre - half)]


def chain_of_rods(start, masses, lengths, elevations):
    points, at = [], np.array([*start, 0.0][:3])
    for mass, length, angle in zip(masses, lengths, elevations):
        end = at + length * np.array([np.cos(angle), np.sin(angle), 0.0])
        points += rod(at, end, mass)
        at = end
    return points, at


def cloud_of_three_link_arm(p, q):
    lengths = [p.length1, p.length2, p.length3]
    return chain_of_rods((0, 0), [p.mass1, p.mass2, p.mass3], lengths, np.cumsum(q))[0]


def cloud_of_dual_arm(p, q):
    arm = [p.mass1, p.mass2], [p.length1, p.length2]
    return chain_of_rods((-1, 0), *arm, np.cumsum(q[:2]))[0] + chain_of_rods((1, 0), *arm, np.cumsum(q[2:]))[0]


def cloud_of_cart_double_pendulum(p, q):
    lengths, masses = [p.length1, p.length2], [p.mass1, p.mass2]
    cart = [(p.cart_mass, np.array([q[0], 0.0, 0.0]))]
    return cart + chain_of_rods((q[0], 0), masses, lengths, np.pi / 2 - q[1:])[0]


def cloud_of_planar_biped(p, q):
    stance, hip = chain_of_rods(
        (0, 0), [p.shank_mass, p.thigh_mass], [p.shank_length, p.thigh_length], np.pi / 2 - q[:2]
    )
    torso, _ = chain_of_rods(hip, [p.torso_mass], [p.torso_length], np.pi / 2 - q[2:3])
    swing, _ = chain_of_rods(hip, [p.thigh_mass, p.shank_mass], [p.thigh_length, p.shank_length], -np.pi / 2 - q[3:])
    return stance + torso + swing


def cloud_of_scara(p, q):
    links, tip = chain_of_rods((0, 0), [p.mass1, p.mass2], [p.length1, p.length2], np.cumsum(q[:2]))
    turn = q[0] + q[1] + q[3]
    # the load about the spindle: two points far enough apart for its inertia
    side = np.sqrt(p.wrist_inertia / p.spindle_mass) * np.array([np.cos(turn), np.sin(turn), 0.0])
    up = np.array([0.0, 0.0, q[2]])
    return [*links, (p.spindle_mass / 2, tip + up + side), (p.spindle_mass / 2, tip + up - side)]


def cloud_of_flexible_beam(p, q):
    x, weights = np.polynomial.legendre.leggauss(40)
    x, weights = (x + 1) / 2, weights / 2
    beta = np.array([1.87510407, 4.69409113, 7.85475744])[:, None]
    sigma = (np.cosh(beta) + np.cos(beta)) / (np.sinh(beta) + np.sin(beta))
    z = beta * x
    w = q[1:] @ (np.cosh(z) - np.cos(z) - sigma * (np.sinh(z) - np.sin(z)))
    s, c, x = np.sin(q[0]), np.cos(q[0]), p.length * x
    beam = np.stack([c * x - s * w, s * x + c * w, 0 * x], axis=1)
    hub = np.sqrt(p.hub_inertia) * np.array([c, s, 0.0])
    return [(1.0, hub), *((p.density * p.length * weight, point) for weight, point in zip(weights, beam))]


def cloud_of_six_joint_arm(p, q):
    def about(axis, angle):
        s, c = np.sin(angle), np.cos(angle)
        matrix = {"x": [[1, 0, 0], [0, c, -s], [0, s, c]], "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]]}
        return np.array({**matrix, "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]]}[axis])

    points = []

    def cylinder(at, turn, length, mass):
        end = at + turn @ np.array([length, 0.0, 0.0])
        for part, centre in rod(at, end, mass):
            for y, z in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                points.append((part / 4, centre + p.radius / np.sqrt(2) * turn @ np.array([0.0, y, z])))
        return end

    turn = about("z", q[0]) @ about("y", -q[1])
    elbow = cylinder(np.zeros(3), turn, p.upper_length, p.upper_mass)
    turn = turn @ about("y", -q[2]) @ about("x", q[3])
    wrist = cylinder(elbow, turn, p.forearm_length, p.forearm_mass)
    turn = turn @ about("y", -q[4]) @ about("x", q[5])
    cylinder(wrist, turn, p.hand_length, p.hand_mass)
    return points


CLOUDS = {key[9:]: f for key, f in globals().items() if key.startswith("cloud_of_")}
ROTORS = {"six_joint_arm": lambda p, v: p.waist_inertia * v[0] ** 2 + p.rotor_inertia * np.sum(v**2)}
HEIGHT = {"six_joint_arm": 2, "scara": 2, "dual_arm": None, "flexible_beam": None}


@pytest.mark.parametrize("name", CLOUDS)
def test_energies_equal_those_of_a_cloud_of_points(name):
    plant = systems.make(name)
    p = types.SimpleNamespace(**{key: float(value) for key, value in plant.parameters.items()})
    rng, half, h = np.random.default_rng(8), plant.n // 2, 1e-4
    for _ in range(4):
        q = np.asarray(plant.equilibrium()[0])[:half] + 2 * rng.normal(size=half) * np.asarray(plant.scales[0])[:half]
        v = rng.normal(size=half) * np.asarray(plant.scales[0])[half:]
        at = {k: CLOUDS[name](p, q + k * h * v) for k in (-2, -1, 0, 1, 2)}
        mass = np.array([m for m, _ in at[0]])
        place = {k: np.array([point for _, point in cloud]) for k, cloud in at.items()}
        speed = (place[-2] - 8 * place[-1] + 8 * place[1] - place[2]) / (12 * h)
        kinetic = 0.5 * (mass @ np.sum(speed**2, axis=1) + ROTORS.get(name, lambda p, v: 0.0)(p, v))
        np.testing.assert_allclose(plant.kinetic(jnp.asarray(q), jnp.asarray(v)), kinetic, rtol=1e-7)
        axis = HEIGHT.get(name, 1)
        if axis is not None:
            weight = p.gravity * (mass @ (place[0] - np.array([point for _, point in CLOUDS[name](p, 0 * q)]))[:, axis])
            gained = plant.potential(jnp.asarray(q)) - plant.potential(jnp.zeros(half))
            np.testing.assert_allclose(gained, weight, rtol=1e-9, atol=1e-9)

"""Every variant under the sampled-data LQR, and the linear model against the nonlinear one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import BUILT_IN, compiled_for, variants
from scipy_oracle import gain, relative, van_loan

from lqrlab import control, systems
from lqrlab.compute import quick_jit

BUCKETS = ((4, 2), (8, 4), (12, 6))
TEXTBOOK = (
    "mass_spring_damper", "pendulum", "cart_pole", "furuta_pendulum", "acrobot", "ball_and_beam",
    "magnetic_levitation", "dc_motor", "two_link_arm", "vehicle_lateral", "fixed_wing", "quadrotor",
)  # fmt: skip


def bucket(name):
    """The smallest size that a family is padded to, so that families share a compiled design."""
    plant = systems.make(name)
    return next((n, m) for n, m in BUCKETS if plant.n <= n and plant.m <= m)


@functools.cache
def designs(name, spread):
    plants = variants(name, spread)
    wide = systems.pad(systems.linearise(plants), *bucket(name))
    return control.lqrd(wide.A, wide.B, wide.Q, wide.R, wide.dt)


@pytest.mark.parametrize("name", compiled_for(TEXTBOOK))
def test_sampled_gains_equal_scipys(name):
    """The designs of 50 variants, padded to a common size, against a design of each by itself."""
    plants, design = variants(name, 0.2), designs(name, 0.2)
    n, m, dt = plants.n, plants.m, float(plants.dt)
    (A, B), (Q, R) = ([np.asarray(a) for a in pair] for pair in (plants.matrices(), plants.weights()))
    gains, costs = np.asarray(design.K), np.asarray(design.P)
    for i in range(50):
        K, P = gain(*van_loan(A[i], B[i], Q[i], R[i], dt))
        assert relative(gains[i, :m, :n], K) < 1e-9
        assert relative(costs[i, :n, :n], P) < 1e-9


@pytest.mark.parametrize("spread", [0.2, 0.5])
@pytest.mark.parametrize("name", compiled_for(BUILT_IN))
def test_all_variants_are_stable_under_the_sampled_lqr(name, spread):
    """1000 variants; what does not hold far from the nominal plant must be named in the family's ``limits``."""
    design = designs(name, spread)
    radius = np.abs(np.linalg.eigvals(np.nan_to_num(np.asarray(design.closed_loop), nan=9.0))).max(axis=-1)
    good = np.asarray(design.stabilizing) & (radius < 1)
    assert good.all() or (spread == 0.5 and systems.family(name).limits), f"{np.sum(~good)} of {good.size}"


@pytest.mark.parametrize("name", compiled_for(BUILT_IN))
def test_stable_on_the_host(name):
    """The same for a few variants, by NumPy and SciPy alone."""
    plants = variants(name, 0.2)
    K = np.asarray(designs(name, 0.2).K)
    scale, control_scale = (np.asarray(s) for s in plants.scales)
    for i in range(0, 1000, 250):
        A, B = (np.asarray(a[i]) for a in plants.matrices())
        Q, R = (np.asarray(a[i]) for a in plants.weights())
        A, B = A * scale / scale[:, None], B * control_scale / scale[:, None]
        Ad, Bd, *_ = van_loan(A, B, Q, R, float(plants.dt))
        scaled = K[i, : plants.m, : plants.n] * scale / control_scale[:, None]
        assert np.abs(np.linalg.eigvals(Ad - Bd @ scaled)).max() < 1
        assert np.linalg.eigvalsh(R).min() > 0


def loops(name, K, sizes, steps):
    """Ends of nonlinear and of linear closed loops from initial states of several sizes, in scales.

    Runge-Kutta 4 runs both, so that its error falls out of their difference.
    """
    plant = systems.make(name)
    A, B = (np.asarray(a) for a in plant.matrices())
    x_eq, u_eq = plant.equilibrium()
    scale = np.asarray(plant.scales[0])
    inner = int(np.ceil(max(2.0, plant.dt * np.abs(np.linalg.eigvals(A)).max() / 0.05)))
    h = plant.dt / inner
    dynamics = type(plant).dynamics.__wrapped__

    def nonlinear(x0):
        def stage(state, now):
            y, slope, mean, u = state
            ahead, share = now
            slope = dynamics(plant, x_eq + y + ahead * h * slope, u_eq + u)
            return (y, slope, mean + share * slope, u), None

        def substep(_, state):
            y, u = state
            stages = jnp.array([0, 0.5, 0.5, 1]), jnp.array([1, 2, 2, 1]) / 6
            (_, _, mean, _), _ = jax.lax.scan(stage, (y, 0 * y, 0 * y, u), stages)
            return y + h * mean, u

        def step(x, _):
            return jax.lax.fori_loop(0, inner, substep, (x, -K @ x))[0], None

        return jax.lax.scan(step, x0, length=steps)[0]

    # on a linear plant a step of Runge-Kutta 4 is the Taylor series up to h⁴
    hA, one = h * A, np.eye(plant.n)
    series = one + hA / 2 @ (one + hA / 3 @ (one + hA / 4))
    flow, held = one + hA @ series, h * series @ B
    direction = np.random.default_rng(12).normal(size=plant.n)
    x0 = np.asarray(sizes)[:, None] * direction * scale
    x = x0
    for _ in range(steps):
        y, u = x, -x @ K.T
        for _ in range(inner):
            y = y @ flow.T + u @ held.T
        x = y
    return np.asarray(quick_jit(jax.vmap(nonlinear))(jnp.asarray(x0))) / scale, x / scale


LINEAR = ("mass_spring_damper", "dc_motor")


@pytest.mark.parametrize("name", compiled_for(TEXTBOOK))
def test_linear_and_nonlinear_loops_agree_to_second_order(name):
    """Their difference falls with the square of the initial state: slope 2 ± 0.1 on doubly logarithmic axes.

    Where symmetry leaves no quadratic term (a pendulum upright) it falls with the cube; where the plant is
    linear there is no difference.
    """
    plant, sizes = systems.make(name), np.array([2e-2, 1e-2, 5e-3])
    K = np.asarray(designs(name, 0.0).K[0])[: plant.m, : plant.n]
    nonlinear, linear = loops(name, K, sizes, 20)
    gap = np.linalg.norm(nonlinear - linear, axis=1)
    assert np.linalg.norm(linear[0]) > 0
    if name in LINEAR:
        assert gap.max() < 1e-12
        return
    slope = np.log(gap[0] / gap[-1]) / np.log(sizes[0] / sizes[-1])
    assert gap[-1] > 1e-13
    assert min(abs(slope - 2), abs(slope - 3)) < 0.1, (slope, gap)

"""Every variant under the sampled-data LQR, and the linear model against the nonlinear one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from catalogue import BUILT_IN, evaluate, variants

from lqrlab import control, systems

BUCKETS = ((4, 2), (8, 4), (12, 6))


def bucket(name):
    """The smallest size that a family is padded to, so that families share a compiled design."""
    plant = systems.make(name)
    return next((n, m) for n, m in BUCKETS if plant.n <= n and plant.m <= m)


@functools.cache
def designs(name, spread):
    plants = variants(name, spread)
    wide = systems.stack([plants], *bucket(name))
    return control.lqrd(wide.A, wide.B, wide.Q, wide.R, wide.dt)


def sampled(A, B, dt):
    """Exact zero-order hold on the host."""
    n, m = B.shape
    E = scipy.linalg.expm(np.block([[A, B], [np.zeros((m, n + m))]]) * dt)
    return E[:n, :n], E[:n, n:]


def stabilizable(A, B):
    """Hautus' test, on the host: no mode at or right of the imaginary axis without input authority; numbers
    in the units of the plant's scales."""
    worst = np.inf
    for value in np.linalg.eigvals(A):
        if value.real > -1e-9 * np.abs(A).max():
            pencil = np.hstack([A - value * np.eye(len(A)), B])
            worst = min(worst, np.linalg.svd(pencil, compute_uv=False)[-1] / max(abs(value), 1e-12))
    return worst > 1e-9


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_all_variants_are_stable_under_the_sampled_lqr(spread):
    """1000 variants of each family; what does not hold must be named in the family's ``limits``."""
    failing = {}
    for name in BUILT_IN:
        design = designs(name, spread)
        radius = np.abs(np.linalg.eigvals(np.nan_to_num(np.asarray(design.closed_loop), nan=9.0))).max(
            axis=-1
        )
        good = np.asarray(design.stabilizing) & (radius < 1)
        if not good.all():
            failing[name] = f"{np.sum(~good)} of {good.size}"
    unnamed = {name: share for name, share in failing.items() if not systems.family(name).limits}
    assert not unnamed
    if spread == 0.2:
        assert not failing


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_stabilizable_detectable_and_stable_on_the_host(name):
    """The same for a few variants, by NumPy and SciPy alone."""
    plants = variants(name, 0.2)
    K = np.asarray(designs(name, 0.2).K)
    scale, control_scale = (np.asarray(s) for s in plants.scales)
    for i in range(0, 1000, 250):
        A, B = (np.asarray(a[i]) for a in plants.matrices())
        Q, R = (np.asarray(a[i]) for a in plants.weights())
        A, B = A * scale / scale[:, None], B * control_scale / scale[:, None]
        assert stabilizable(A, B)
        assert stabilizable(A.T, (Q * scale).T)
        Ad, Bd = sampled(A, B, plants.dt)
        gain = K[i, : plants.m, : plants.n] * scale / control_scale[:, None]
        assert np.abs(np.linalg.eigvals(Ad - Bd @ gain)).max() < 1
        assert np.linalg.eigvalsh(R).min() > 0


def loops(name, gain, sizes, steps):
    """Ends of nonlinear and of linear closed loops from initial states of several sizes, in scales.

    One integrator runs both, so that what it leaves over falls out of their difference.
    """
    plant = systems.make(name)
    A, B = plant.matrices()
    x_eq, u_eq = plant.equilibrium()
    scale = plant.scales[0]
    inner = int(np.ceil(max(2.0, plant.dt * np.abs(np.linalg.eigvals(np.asarray(A))).max() / 0.05)))
    h = plant.dt / inner
    dynamics = evaluate(name, "dynamics", None, 0, 0)

    def end(f, x):
        def rk4(x, u):
            k1 = f(x, u)
            k2 = f(x + h / 2 * k1, u)
            k3 = f(x + h / 2 * k2, u)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + h * k3, u))

        def step(x, _):
            return jax.lax.fori_loop(0, inner, lambda _, y: rk4(y, -x @ gain.T), x), None

        return jax.lax.scan(step, x, length=steps)[0] / scale[None]

    direction = np.random.default_rng(12).normal(size=plant.n)
    x0 = jnp.asarray(np.asarray(sizes)[:, None] * direction * np.asarray(scale))
    nonlinear = jax.jit(lambda x: end(lambda x, u: dynamics(plant, x_eq[None] + x, u_eq[None] + u), x))(x0)
    return np.asarray(nonlinear), np.asarray(end(lambda x, u: x @ A.T + u @ B.T, x0))


LINEAR = (
    *("mass_spring_damper", "double_integrator", "two_mass_spring", "dc_motor", "series_rlc", "parallel_rlc"),
    *("buck_converter", "grid_inverter"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_linear_and_nonlinear_loops_agree_to_second_order(name):
    """Their difference falls with the square of the initial state: slope 2 ± 0.1 on doubly logarithmic axes.

    Where symmetry leaves no quadratic term (a pendulum upright) it falls with the cube; where the plant is
    linear there is no difference.
    """
    plant, sizes = systems.make(name), np.array([2e-2, 1e-2, 5e-3])
    gain = np.asarray(designs(name, 0.0).K[0])[: plant.m, : plant.n]
    nonlinear, linear = loops(name, gain, sizes, 20)
    gap = np.linalg.norm(nonlinear - linear, axis=1)
    assert np.linalg.norm(linear[0]) > 0
    if name in LINEAR:
        assert gap.max() < 1e-12
        return
    slope = np.log(gap[0] / gap[-1]) / np.log(sizes[0] / sizes[-1])
    assert gap[-1] > 1e-13
    assert min(abs(slope - 2), abs(slope - 3)) < 0.1, (slope, gap)

"""Controllers of fixed order: against the optimum of full order, grids of gains, finite differences, slycot's norm."""

import types

import numpy as np
import pytest
import scipy.linalg
import slycot
from loops import loop as loop_of
from refusals import refused
from scipy_oracle import gain

from lqrlab import control, robust
from lqrlab.extensions.robust import structured_synthesis
from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant


def plant(seed, n=4, w=2, z=2, nmeas=1, ncon=1, unstable=0.3):
    """A random plant from [w; u] to [z; y], with u in z and noise in y."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n)) / np.sqrt(n) - 0.5 * np.eye(n) + unstable * np.eye(n)
    B, C = rng.normal(size=(n, w + nmeas + ncon)), rng.normal(size=(z + ncon + nmeas, n))
    B[:, w : w + nmeas], C[z : z + ncon] = 0, 0
    D = np.zeros((len(C), B.shape[1]))
    D[z : z + ncon, w + nmeas :], D[z + ncon :, w : w + nmeas] = np.eye(ncon), 0.3 * np.eye(nmeas)
    return A, B, C, D


def norms(K, systems, nmeas, ncon, dt=None):
    """H∞ norm of each loop with u = Ky, K static, by slycot; infinite if the loop is not stable."""
    found = []
    for a, b, c, d in systems:
        static = types.SimpleNamespace(A=np.eye(0), B=np.zeros((0, nmeas)), C=np.zeros((ncon, 0)), D=K)
        A, B, C, D = loop_of(a, b, c, d, nmeas, ncon, static)
        modes = np.linalg.eigvals(A)
        stable = modes.real.max() < 0 if dt is None else np.abs(modes).max() < 1
        kind = "D" if dt else "C", "I", "N", "D"
        peak = slycot.ab13dd(*kind, len(A), B.shape[1], len(C), A, np.eye(len(A)), B, C, D)
        found.append(peak[0] if stable else np.inf)
    return np.array(found)


def differences(norm, K):
    """The slope of a norm by central differences."""
    steps = 1e-6 * np.eye(K.size).reshape(-1, *K.shape)
    return np.reshape([(norm(K + step)[0] - norm(K - step)[0]) / 2e-6 for step in steps], K.shape)


@pytest.mark.parametrize("dt", [None, 0.1])
def test_static_feedback_is_the_best_of_a_grid_for_one_plant_and_for_three(dt):
    a, b, c, d = plant(19)
    weaker = [1, 1, 1, 0.4]  # the control
    systems = [(a, b, c, d), (a + 0.2 * np.eye(4), b, c, d), (a, b * weaker, c, d * weaker)]
    if dt:
        systems = [(np.eye(4) + dt * a, dt * b, c, d) for a, b, c, d in systems]
    grid = np.concatenate([-np.geomspace(1e-2, 1e2, 800)[::-1], np.geomspace(1e-2, 1e2, 800)])
    every = np.array([norms(np.array([[k]]), systems, 1, 1, dt) for k in grid])
    for chosen in ([0], [0, 1, 2]):
        least = every[:, chosen].max(1).min()
        stacked = [np.stack(each) for each in zip(*(systems[i] for i in chosen))]
        assert np.isfinite(least)
        found = robust.hinfstruct(*stacked, 1, 1, dt=dt)
        assert found.norm <= least * (1 + 1e-3)
        worst = norms(found.controller.D, [systems[i] for i in chosen], 1, 1, dt).max()
        assert worst == pytest.approx(found.norm, rel=1e-5)


def test_with_as_many_states_as_the_plant_it_is_the_optimum_and_with_fewer_it_costs_more():
    system = plant(7)
    full = robust.hinfsyn(*system, 1, 1).norm
    found = [robust.hinfstruct(*system, 1, 1, order, starts=4).norm for order in (4, 1, 0)]
    assert found[0] == pytest.approx(full, rel=2e-3)
    assert full * (1 - 1e-3) <= found[1] <= found[2] * (1 + 1e-3)


def test_entries_that_are_not_free_stay_zero():
    system = plant(3, nmeas=2, ncon=2, unstable=0.0)
    free = robust.hinfstruct(*system, 2, 2, starts=4)
    apart = robust.hinfstruct(*system, 2, 2, free=np.eye(2), starts=4)
    assert not apart.controller.D[~np.eye(2, dtype=bool)].any()
    assert free.norm <= apart.norm * (1 + 1e-3)
    proper = robust.hinfstruct(*plant(7), 1, 1, 2, free=[[0, 1, 1], [1, 1, 1], [1, 1, 1]], starts=4)
    assert not proper.controller.D.any()


def test_a_plant_with_a_direct_effect_of_u_on_y_has_the_loop_that_is_measured():
    a, b, c, d = plant(7)
    d = d.copy()
    d[-1, -1] = 0.4
    found = robust.hinfstruct(a, b, c, d, 1, 1, 1, starts=4)
    loop = GeneralizedPlant.of((a, b, c, d), 1, 1).closed(found.controller.matrices)
    assert control.hinf_norm(*loop)[0] == pytest.approx(found.norm, rel=1e-9)
    assert found.norm == pytest.approx(robust.hinfstruct(*plant(7), 1, 1, 1, starts=4).norm, rel=1e-2)


@pytest.mark.parametrize("dt", [None, 0.1])
@pytest.mark.parametrize("name", ["norm", "decay"])
def test_slopes_are_those_of_finite_differences(name, dt):
    _, b, c, d = plant(5, nmeas=2, ncon=2)
    # peaks at 2 and 3 rad/s
    a = np.array([[-0.1, 2, 0.1, 0], [-2, -0.1, 0, 0.2], [0, 0.3, -0.2, 3], [0.1, 0, -3, -0.2]])
    if dt:
        a, b = scipy.linalg.expm(dt * a), dt * b
    loop = structured_synthesis._Loop.of(GeneralizedPlant.of((a, b, c, d), 2, 2, dt), 1, robust.NormRequirement())
    K = 0.1 * np.random.default_rng(0).normal(size=(3, 3))
    K[2, 2] = 0.5 if dt else -0.5
    value, slope = getattr(loop, name)(K)
    assert np.isfinite(value)
    assert control.hinf_norm(*loop.closed(K), dt)[1] > 0.1
    assert slope == pytest.approx(differences(getattr(loop, name), K), rel=1e-3, abs=1e-5)


def test_what_is_wrong_is_said():
    system = plant(7)
    refused("free: expected numbers", robust.hinfstruct, *system, 1, 1, free=np.ma.array([[1]], mask=True))
    refused("free: expected 1 by 1 entries", robust.hinfstruct, *system, 1, 1, free=[[1, 0]])
    wild, few = plant(3, nmeas=2, ncon=2, unstable=3.0), {"free": [[1, 0], [0, 0]], "starts": 3}
    refused("no controller of order 0 of this structure was found", robust.hinfstruct, *wild, 2, 2, **few)
    other = system[3].copy()
    other[-1, -1] = 1
    pair = [np.stack(each) for each in zip((*system[:3], other), system)]
    refused("D: expected plants with the same direct effect", robust.hinfstruct, *pair, 1, 1)
    refused("A: expected a matrix, or one for each plant", robust.hinfstruct, 1.0, *system[1:], 1, 1)
    refused("requirements: expected a list", robust.hinfstruct, *system, 1, 1, requirements=[])
    wanted = [robust.NormRequirement(outputs=[9])]
    refused("outputs: expected numbers from 0 to 2", robust.hinfstruct, *system, 1, 1, requirements=wanted)
    refused("norm", robust.NormRequirement, "h3")
    for bad in ([-1], [True], []):
        refused("inputs: expected", robust.NormRequirement, inputs=bad)
    refused("at_most: expected a number above 0", robust.NormRequirement, at_most=np.nan)
    direct = [[-1.0]], [[1.0, 1.0]], [[1.0], [1.0]], [[0.5, 0.0], [0.0, 0.0]]
    wanted = [robust.NormRequirement("h2")]
    refused("no controller of order 0", robust.hinfstruct, *direct, 1, 1, requirements=wanted)


# Several requirements ----------------------------------------------------------------------------------------


def regulated(dt=None):
    """x' = Ax + Bu + w with z = [Q½x; R½u], all states measured; and Q, R."""
    rng = np.random.default_rng(3)
    a, b = 0.6 * rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    q, r = np.diag([2.0, 0.5, 1.0]), np.array([[0.3]])
    root = scipy.linalg.cholesky(scipy.linalg.block_diag(q, r))
    through = np.block([[np.zeros((4, 3)), root[:, 3:]], [np.zeros((3, 4))]])
    return (a, np.hstack([np.eye(3), b]), np.vstack([root[:, :3], np.eye(3)]), through), b, q, r


@pytest.mark.parametrize("dt", [None, 0.1])
def test_the_least_h2_norm_of_a_gain_on_all_states_is_the_lqr(dt):
    system, b, q, r = regulated()
    K, P = gain(system[0], b, q, r, discrete=dt is not None)
    found = robust.hinfstruct(*system, 3, 1, requirements=[robust.NormRequirement("h2")], starts=3, dt=dt)
    np.testing.assert_allclose(found.controller.D, -K, rtol=1e-3, atol=1e-4)
    assert found.norm == pytest.approx(np.sqrt(np.trace(P)), rel=1e-6)


@pytest.mark.parametrize("dt", [None, 0.1])
def test_the_h2_norms_gradient_is_that_of_differences(dt):
    system, *_ = regulated()
    through = system[3].copy()
    through[4:, :3] = 0.0 if dt is None else 0.3 * np.eye(3)  # noise of the sensors, which a gain passes on
    shifted = 0.5 * system[0], *system[1:3], through
    plant = structured_synthesis._plants(shifted, 3, 1, dt)[0]
    loop = structured_synthesis._Loop.of(plant, 1, robust.NormRequirement("h2", 2.0, inputs=[0, 2]))
    K, rng = np.zeros((2, 4)), np.random.default_rng(0)
    for _ in range(200):  # some stable loop
        K = 0.4 * rng.normal(size=(2, 4))
        K[1, 3] -= 0.0 if dt else 2.0
        if np.isfinite(loop.norm(K)[0]):
            break
    value, slope = loop.norm(K)
    if dt:  # the squares of all impulse responses
        a, b, c, d = loop.closed(K)
        steps = [d, *(c @ np.linalg.matrix_power(a, k) @ b for k in range(600))]
        assert (2.0 * value) ** 2 == pytest.approx(sum(np.sum(h**2) for h in steps), rel=1e-9)
        assert np.abs(d).max() > 0
    assert slope == pytest.approx(differences(loop.norm, K), rel=1e-5, abs=1e-7 * value)


def test_of_two_requirements_the_worse_is_as_small_as_it_can_be():
    """u = −kx on x' = u + w: the gain from w to x is 1/k, the power of u under white noise √(k/2)."""
    plant = [[0.0]], [[1.0, 1.0]], [[1.0], [0.0], [1.0]], [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    for most in (0.5, 3.0):
        wanted = [
            robust.NormRequirement("hinf", most, outputs=[0], name="error"),
            robust.NormRequirement("h2", 2.0, outputs=[1], name="effort"),
        ]
        found = robust.hinfstruct(*plant, 1, 1, requirements=wanted, starts=3)
        k = (2 * 2**0.5 / most) ** (2 / 3)
        assert -found.controller.D[0, 0] == pytest.approx(k, rel=1e-4)
        assert found.norm == pytest.approx(1 / (k * most), rel=1e-4)
        assert f"error: {1 / k:.3g}"[:10] in found.remark
        assert "effort: " in found.remark

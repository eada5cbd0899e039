"""Structured singular values: against slycot's AB13MD, closed forms, and determinants."""

import numpy as np
import pytest
import scipy.optimize
import slycot

from lqrlab import robust

COMPLEX, REAL = (1, 1), (-1, 0)


def matrices(number, z, w, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(number, z, w)) + 1j * rng.normal(size=(number, z, w))


def keeps_to(M, found):
    """The Δ that shows the lower bound is as large as that says and makes I − MΔ singular."""
    seen = found.lower > 0
    delta = found.perturbation[seen]
    assert np.allclose(np.linalg.norm(delta, 2, axis=(1, 2)) * found.lower[seen], 1, atol=1e-6)
    loop = np.eye(M.shape[1]) - M[seen] @ delta
    assert np.all(np.linalg.svd(loop, compute_uv=False)[:, -1] <= 2e-6 * np.linalg.norm(loop, axis=(1, 2)))
    return delta


@pytest.mark.parametrize(
    ("blocks", "sizes", "types"),
    [
        ([COMPLEX] * 4, [1] * 4, [2] * 4),
        ([(2, 2), (2, 2), COMPLEX], [2, 2, 1], [2] * 3),
        ([REAL, REAL, COMPLEX, COMPLEX], [1] * 4, [1, 1, 2, 2]),
        ([REAL, REAL, (3, 3)], [1, 1, 3], [1, 1, 2]),
    ],
)
def test_the_upper_bound_is_slycots_or_less(blocks, sizes, types):
    M = matrices(60, sum(sizes), sum(sizes))
    found = robust.mu(M, blocks)
    reference = np.array([slycot.ab13md(m, np.array(sizes), np.array(types))[0] for m in M])
    assert np.all(found.upper <= reference * (1 + 1e-3))
    if 1 not in types:  # with real blocks slycot's is up to a percent above the least
        assert np.all(found.upper >= reference * (1 - 1e-3))
    assert np.all(found.lower <= found.upper)
    keeps_to(M, found)


@pytest.mark.parametrize(
    "M",
    [  # two carts on a spring, with a regulator, at 0.0938 and 0.2908 rad/s
        [[-0.49984628 - 4.3011e-5j, 0.02468255 - 0.00690612j], [-6.66086e-4 + 1.21118e-5j, -0.10695053 + 0.00194474j]],
        [[-0.49029588 - 0.01105115j, 0.16223810 - 0.18475845j], [-0.00861006 + 0.00299354j, -0.14394704 + 0.05004735j]],
    ],
)
def test_the_upper_bound_is_the_least_near_real_matrices(M):
    # there G has to be large, and λ hardly falls until it is; AB13MD stops before that
    M, d = np.array(M), np.logspace(-9, 3, 2000)
    D = np.eye(2) * np.stack([d, np.ones_like(d)], -1)[:, None]
    root = np.sqrt(np.diagonal(D, axis1=1, axis2=2))

    def level(g):  # least λ over d of λD ⪰ MᴴDM − j(GM − MᴴG), D = diag(d, 1), G = diag(g, 0)
        G = np.diag([g, 0.0])
        right = M.conj().T @ D @ M - 1j * (G @ M - M.conj().T @ G)
        return np.linalg.eigvalsh(right / root[:, None] / root[:, :, None])[:, -1].min()

    sizes = np.logspace(-8, 2, 100)
    sizes = np.concatenate([-sizes[::-1], sizes])
    i = int(np.argmin([level(g) for g in sizes]))
    least = scipy.optimize.minimize_scalar(level, bounds=sizes[[i - 1, i + 1]], method="bounded").fun
    assert np.sqrt(least) * (1 - 2e-3) <= robust.mu(M, [REAL, COMPLEX]).upper <= np.sqrt(least) * (1 + 1e-3)


def test_complex_bounds_meet_for_up_to_three_blocks():
    # D scalings are exact there: Packard and Doyle, Automatica 29 (1993), section 9
    found = robust.mu(matrices(100, 3, 3, seed=1), [COMPLEX] * 3)
    assert np.median(found.lower / found.upper) > 1 - 1e-3


def test_one_real_scalar_has_a_closed_form():
    # µ is the largest real eigenvalue; where there is none, G grows without end and no scalings are the best
    M = np.stack([*matrices(40, 3, 3).real, *matrices(10, 3, 3), [[0.0, 1.0, 3.0], [-1, 0, 0], [0, 0, 0.1]]])
    w = np.linalg.eigvals(M)
    least = np.where(np.abs(w.imag) < 1e-9 * np.abs(w), np.abs(w), 0.0).max(axis=1)
    for near in M + np.multiply.outer([0, 1e-8j, 1e-16j], np.roll(M, 1, axis=0)):  # real but for rounding: exactly 0
        found = robust.mu(near, [-3])
        assert np.all((found.upper >= least * (1 - 1e-6)) & (found.upper <= least * (1 + 5e-3) + 1e-5))
        keeps_to(near, found)
    assert robust.mu(np.diag([1j, 2j, 0.3]), [-1, -1, 1]).upper == pytest.approx(0.3, rel=1e-3)


def test_one_block_has_a_closed_form():
    M = matrices(20, 3, 3, seed=2)
    radius = np.abs(np.linalg.eigvals(M)).max(axis=1)
    assert np.allclose(robust.mu(M, [3]).upper, np.linalg.norm(M, 2, axis=(1, 2)), rtol=1e-3)
    repeated = robust.mu(M, [(3, 0)])
    assert np.allclose(repeated.upper, radius, rtol=1e-3)
    assert np.allclose(repeated.lower, radius, rtol=1e-3)
    even = (M + M.mT).real
    assert np.allclose(robust.mu(even, [-3]).upper, np.abs(np.linalg.eigvalsh(even)).max(axis=1), rtol=1e-3)
    assert np.allclose(robust.mu(M, np.array([[3, 3]])).upper, robust.mu(M, [3]).upper)
    assert robust.mu([[3j]], [-1]).upper < 1e-4  # no real number undoes an imaginary one
    wide = matrices(5, 2, 4, seed=3)
    assert np.allclose(robust.mu(wide, [(4, 2)]).upper, np.linalg.norm(wide, 2, axis=(1, 2)), rtol=1e-3)


def test_perturbations_have_the_structure_that_is_named():
    M = matrices(40, 5, 5, seed=4)
    delta = keeps_to(M, robust.mu(M, [-2, (2, 0), 1]))
    assert len(delta) > 20
    assert np.all(delta[:, 0, 0] == delta[:, 1, 1])
    assert np.all(delta[:, 0, 0].imag == 0)
    assert np.all(delta[:, 2, 2] == delta[:, 3, 3])
    assert np.all(delta[:, ~np.eye(5, dtype=bool)] == 0)


def test_scaled_coordinates_and_vanishing_matrices():
    M = matrices(20, 4, 4, seed=5)
    units = 10 ** np.random.default_rng(5).uniform(-8, 8, (20, 4))
    moved = units[:, :, None] * M / units[:, None]
    assert np.allclose(robust.mu(moved, [1] * 4).upper, robust.mu(M, [1] * 4).upper, rtol=1e-3)
    assert robust.mu(np.zeros((2, 2)), [1, 1]).upper == 0
    assert robust.mu(np.triu(np.ones((3, 3)), 1), [1] * 3).upper < 1e-4
    assert np.allclose(robust.mu(1e200 * np.diag([1.0, 2.0]), [1, -1]).upper / 1e200, 2, rtol=1e-3)
    assert robust.mu(np.zeros((3, 0, 2, 2)), [2]).perturbation.shape == (3, 0, 2, 2)


@pytest.mark.parametrize(
    ("M", "blocks", "sentence"),
    [
        (np.eye(2), [1], "blocks: expected 2 rows and 2 columns, as M of shape"),
        (np.eye(2), [(1.5, 1)], "blocks: expected a whole number"),
        (np.eye(2), [(-2, 2)], "whole numbers"),
        (np.eye(2), [True, 1], "blocks: expected a whole number"),
        (np.ma.array(np.eye(2), mask=np.eye(2)), [1, 1], "M: expected numbers, but found 2 masked"),
        (np.eye(2).astype("m8[s]"), [1, 1], "M: expected numbers"),
        (np.eye(2), ["full"], "blocks: expected a whole number"),
        (np.eye(2), 2, "blocks: expected a list"),
        (np.zeros((0, 0)), [], "blocks: expected a list"),
        (np.full((2, 2), np.nan), [2], "finite entries"),
        (np.ones(2), [2], "expected a matrix"),
        ("M", [2], "M: expected numbers"),
    ],
)
def test_what_is_wrong_is_said(M, blocks, sentence):
    with pytest.raises(ValueError, match=sentence):
        robust.mu(M, blocks)

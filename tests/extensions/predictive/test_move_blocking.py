"""Plans whose inputs are held over blocks of steps, beside DAQP on the blocked inputs as unknowns."""

import daqp
import dense_qp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import predictive
from lqrlab.extensions.predictive import move_blocking


def by_daqp(blocks, *args, **limits):
    """Inputs and cost of the dense program with one input for each block; None and infinity if it is infeasible."""
    qp = dense_qp.build(*args, **limits)
    assert not qp.feedback
    H, f, G, lower, upper = dense_qp.condensed(qp)
    T, m = qp.sizes["T"], qp.sizes["u"]
    inputs = np.kron(np.repeat(np.eye(len(blocks)), blocks, axis=0), np.eye(m))
    E = np.zeros((len(f), inputs.shape[1] + len(f) - T * m))
    E[: T * m, : inputs.shape[1]], E[T * m :, inputs.shape[1] :] = inputs, np.eye(len(f) - T * m)
    low = np.array([np.max(lower[: len(f)][column > 0]) for column in E.T])
    high = np.array([np.min(upper[: len(f)][column > 0]) for column in E.T])
    bounds = np.concatenate([low, lower[len(f) :]]), np.concatenate([high, upper[len(f) :]])
    z, _, flag, _ = daqp.solve(
        E.T @ H @ E, E.T @ f, np.ascontiguousarray(G @ E), bounds[1], bounds[0], np.zeros(len(bounds[0]), np.int32),
        primal_tol=1e-12, dual_tol=1e-12,
    )  # fmt: skip
    if flag != 1:
        return None, np.inf
    us = inputs @ z[: inputs.shape[1]]
    return us.reshape(T, m), qp.cost(qp.stacked(us))


def drawn(rng, n=3, m=2):
    A = rng.normal(size=(n, n))
    A = A / np.abs(np.linalg.eigvals(A)).max() * rng.uniform(0.7, 1.05)
    B = rng.normal(size=(n, m))
    root = rng.normal(size=(n, n))
    return A, B, root @ root.T + 0.1 * np.eye(n), np.diag(rng.uniform(0.1, 1, m)), rng.normal(size=n)


def kept(limits, multipliers, values):
    """Check that multipliers are zero where values are inside of their limits, and of the right sign."""
    low, high = (np.broadcast_to(end, values.shape) for end in limits)
    size = 1e-7 * max(1.0, np.abs(multipliers).max())
    assert np.all((multipliers < size) | np.isclose(values, high, atol=1e-6))
    assert np.all((multipliers > -size) | np.isclose(values, low, atol=1e-6))


MATRIX = pytest.mark.matrix


@pytest.mark.parametrize(
    "kinds", ["u", *(pytest.param(kinds, marks=MATRIX) for kinds in ("u x", "u du", "u x y du", "u x soft"))]
)
def test_a_blocked_plan_is_the_dense_programs(kinds):
    rng, T, blocks = np.random.default_rng(3), 10, (1, 1, 2, 6)
    A, B, Q, R, x0 = (np.array(a) for a in zip(*(drawn(rng) for _ in range(40))))
    limits = {"u": (-0.5, [0.5, 0.4]), "du": (-0.4, 0.5), "x": (-1.2, 1.5), "y": (-1.0, 1.0)}
    limits = {f"{kind}_limits": limits[kind] for kind in limits if kind in kinds.split()}
    given = {"C": rng.normal(size=(1, 3)), "D": rng.normal(size=(1, 2))} if "y" in kinds else {}
    given |= {"soft": (3.0, 2.0)} if "soft" in kinds else {}
    design = predictive.mpc(A, B, Q, R, T, **limits, **given, move_blocks=(1, 1, 2, 1))
    plan, _ = jax.jit(lambda design, x: design.plan(x))(design, jnp.asarray(x0))
    before = {"u_last": np.zeros(2)} if "du" in kinds else {}
    feasible = held = 0
    for k in range(len(x0)):
        problem = *(a[k] for a in (A, B, Q, R, x0)), T
        us, cost = by_daqp(blocks, *problem, Qf=np.asarray(design.Qf[k]), **limits, **given, **before)
        assert bool(plan.infeasible[k]) == (us is None)
        if us is None:
            continue
        assert float(plan.residual[k]) < 1e-9
        assert float(plan.cost[k]) == pytest.approx(cost, rel=1e-9)
        np.testing.assert_allclose(plan.us[k], us, atol=1e-7)
        xs = [x0[k]]
        for u in us:
            xs.append(A[k] @ xs[-1] + B[k] @ u)
        np.testing.assert_allclose(plan.xs[k], xs, atol=1e-6)
        found = {kind: np.asarray(a[k]) for kind, a in plan.multipliers._asdict().items() if a is not None}
        kept(limits["u_limits"], found["u"], us)
        if "x" in found and "soft" not in given:
            kept(limits["x_limits"], found["x"], np.array(xs[1:]))
        if "y" in found:
            kept(limits["y_limits"], found["y"], np.array(xs[:-1]) @ given["C"].T + us @ given["D"].T)
        if "du" in found:
            kept(limits["du_limits"], found["du"], np.diff(us, axis=0, prepend=0))
        feasible += 1
        held += int(np.max([np.abs(found[kind]).max() for kind in found]) > 1e-6)
    assert feasible > 15
    assert held > 10


@pytest.mark.matrix
def test_affine_terms_of_each_step_are_those_of_the_dense_program():
    rng, T, blocks = np.random.default_rng(5), 8, (1, 3, 4)
    A, B, Q, R, x0 = drawn(rng)
    c, q, r = rng.normal(size=(1, 3)), rng.normal(size=(T, 3)), 5 + rng.normal(size=(T, 2))
    low = np.linspace(-1.0, -0.3, T)[:, None] * np.ones(2)  # that of a block is the tightest
    box = {"u_limits": (low, np.ones((1, 2))), "x_limits": (np.full((1, 3), -9.0), np.full((1, 3), 9.0))}
    shared = [jnp.asarray(a)[None] for a in (A, B, Q, R, np.zeros((3, 2)))]
    given = (*shared, *(jnp.asarray(a) for a in (c, q, r, Q, np.zeros(3))), None, None, jnp.asarray(x0), None, None)
    plan, _ = move_blocking.solved_in_blocks(None, given, jax.tree.map(jnp.asarray, box), blocks)
    us, cost = by_daqp(blocks, A, B, Q, R, x0, T, Qf=Q, c=c, q=q, r=r, **box, time_varying=True)
    assert float(plan.cost) == pytest.approx(cost, rel=1e-9)
    np.testing.assert_allclose(plan.us, us, atol=1e-7)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ((), "move_blocks: expected lengths"),
        ((1, 0), "move_blocks: expected"),
        ((3, 3), "move_blocks: expected blocks within the horizon of 5 steps, but these have 6"),
    ],
)
def test_bad_blocks_are_refused_in_words(blocks, message):
    with pytest.raises(ValueError, match=message):
        predictive.mpc(np.eye(1), np.eye(1), np.eye(1), np.eye(1), 5, move_blocks=blocks)

"""Inverse optimal control: the weights that an observed gain is optimal for, or how far it is from any."""

import dataclasses
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from lqrlab.control import checks
from lqrlab.control.discretization import c2d, discretize
from lqrlab.control.regulator import dlqr, lqr, lqrd

_LEAST = 1e-12  # barrier parameter at the end: gains are reproduced to about this, times the conditioning
_SAME = 1e-6  # relative error of a gain that counts as reproduced: badly conditioned designs know K no better
_NEWTON = 50  # steps for one barrier parameter; some five are usual


@dataclasses.dataclass(frozen=True)
class Inverse:
    """Weights that explain a gain; NumPy arrays with the leading axes of the problem.

    Attributes:
        Q, R: ``[..., n, n]`` > 0, ``[..., m, m]`` > 0, scaled so that det R = 1: a cost has no unit of its own.
        K: the gain that is optimal for them ``[..., m, n]``.
        error: how far it is from the observed one, relative, in the Frobenius norm ``[...]``.
        optimal: whether the observed gain is optimal for some weights of the kind asked for ``[...]``.
        return_difference: least singular value over all frequencies of the return difference I + L, weighted
            so that an optimal loop has at least 1 ``[...]``. For a continuous loop with one input it is
            min |1 + L(jω)| whatever the weights; below 1 no weights at all explain the gain.
    """

    Q: np.ndarray
    R: np.ndarray
    K: np.ndarray
    error: np.ndarray
    optimal: np.ndarray
    return_difference: np.ndarray

    def __str__(self) -> str:
        if self.error.ndim:
            return f"{int(self.optimal.sum())} of {self.optimal.size} gains are optimal for some weights"
        if not np.isfinite(self.error):
            return "The gain does not stabilize the plant, so it is optimal for no weights."
        if self.optimal:
            return f"The gain is optimal: these weights reproduce it to {self.error:.1g}."
        near = f"the nearest optimal one that was found differs by {100 * self.error:.3g} %"
        if not self.error < 1:
            near = "no optimal one was found that comes near"
        if self.return_difference < 1:
            return (
                f"The gain is not optimal for weights of this kind: {near}. Its return difference falls to "
                f"{self.return_difference:.3g}, and an optimal loop keeps it at 1 or more (Kalman's inequality)."
            )
        return f"The gain is not optimal for weights of this kind: {near}."


def inverse_lqr(
    A: ArrayLike,
    B: ArrayLike,
    K: ArrayLike,
    dt: float | None = None,
    *,
    discrete: bool = False,
    diagonal: bool = False,
) -> Inverse:
    """Q and R for which u = −Kx is optimal; where there are none, those whose optimum comes near. On the host.

    The cost P of a *given* loop is linear in (Q, R), and so is its derivative with respect to K, which has to
    vanish. What is left is a convex problem: the weights, positive definite and of fixed trace, that bring the
    derivative's norm to its minimum. It is solved by following the analytic centre, so of the many weights that
    explain a gain those are found that are farthest from being singular (in coordinates in which the closed
    loop moves all states and inputs alike).

    Args:
        A, B: of ẋ = Ax + Bu (of x[t+1] = Ax[t] + Bu[t] if ``discrete``), ``[..., n, n]``, ``[..., n, m]``.
        K: observed gain ``[..., m, n]``.
        dt: sample time [s]: K holds its input, and Q and R are to be those of :func:`lqrd`.
        discrete: Q and R are to be those of :func:`dlqr`.
        diagonal: look among diagonal weights only.

    Returns:
        :class:`Inverse`; prints as a sentence. In a batch, members whose loop is not stable carry NaN.

    Raises:
        ValueError: bad shapes; a single loop that is not stable.

    Sources: R. E. Kalman, When is a linear control system optimal?, J. Basic Eng. 86 (1964) [the question, the
    return difference]; A. Jameson and E. Kreindler, Inverse problem of linear optimal control, SIAM J. Control 11
    (1973) [several inputs]; S. Boyd et al., Linear Matrix Inequalities in System and Control Theory (1994),
    section 10.6 [convexity].
    """
    if checks.traced(A, B, K, dt):
        raise ValueError("inverse_lqr: runs on the host, so not inside jit, vmap or grad")
    if dt is not None and discrete:
        raise ValueError(
            "dt: a plant that is discrete already has no sample time to give; leave one of them out"
        )
    a, b, k = (np.asarray(x, float) for x in (A, B, K))
    n, m = b.shape[-2:] if b.ndim > 1 else (0, 0)
    if a.shape[-2:] != (n, n) or k.shape[-2:] != (m, n):
        raise ValueError(
            f"expected A [n, n], B [n, m] and K [m, n], but found shapes {a.shape}, {b.shape} and {k.shape}"
        )
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], k.shape[:-2])
    a, b, k = (np.broadcast_to(x, lead + x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b, k))
    step = (
        None if dt is None else np.broadcast_to(np.asarray(checks.sample_time(dt, float)), lead).reshape(-1)
    )
    finite = np.isfinite(a).all((1, 2)) & np.isfinite(b).all((1, 2)) & np.isfinite(k).all((1, 2))
    at, bt = _plant(a, b, step)
    loop = at - bt @ k
    poles = np.linalg.eigvals(np.where(finite[:, None, None], loop, 0.0))
    live = finite & ((poles.real < 0) if dt is None and not discrete else (np.abs(poles) < 1)).all(1)
    if not lead and not live[0]:
        raise ValueError("K: the loop A − BK is not stable, so its cost is infinite whatever the weights")
    count = len(a)
    Q, R, gain = (np.full((count, *s), np.nan) for s in ((n, n), (m, m), (m, n)))
    error, distance = np.full(count, np.nan), np.full(count, np.nan)
    # one size of batch, so one program: another stands in for a member that has no answer
    stand_in = np.where(live, np.arange(count), np.argmax(live))
    a, b, k = a[stand_in], b[stand_in], k[stand_in]
    # where no weights explain the gain, the best with a free R may be those that hardly charge one input, and
    # their optimum may be far away: those that charge all inputs alike get a chance
    for inputs in (_basis(m, diagonal), np.eye(m)[None])[: 1 + (m > 1)]:
        if not np.any(live & ~(error < _SAME)):
            break
        weights = _weights(a, b, k, step, discrete, (_basis(n, diagonal), inputs))
        args = (a, b, *weights[:2])
        best = lqrd(*args, step) if step is not None else (dlqr if discrete else lqr)(*args)
        off = np.linalg.norm(best.K - k, axis=(1, 2)) / np.linalg.norm(k, axis=(1, 2))
        better = live & ~(off >= error)
        for whole, part in zip((Q, R, distance, gain, error), (*weights, np.asarray(best.K), off)):
            whole[better] = part[better]
    found = Q, R, gain, error, error < _SAME, distance
    return Inverse(*(x.reshape(lead + x.shape[1:]) for x in found))


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _plant(a: np.ndarray, b: np.ndarray, step: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """What the gain acts on: the plant itself, or sampled."""
    if step is None:
        return a, b
    sampled = c2d(a, b, step)
    return np.asarray(sampled[0]), np.asarray(sampled[1])


def _basis(n: int, diagonal: bool) -> np.ndarray:
    """Symmetric matrices ``[k, n, n]`` that are orthonormal."""
    pairs = [(i, j) for i in range(n) for j in range(i, n) if i == j or not diagonal]
    basis = np.zeros((len(pairs), n, n))
    for e, (i, j) in zip(basis, pairs):
        e[i, j] = e[j, i] = 1.0 if i == j else 0.5**0.5
    return basis


def _scales(A: np.ndarray, B: np.ndarray, K: np.ndarray, *, discrete: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of states ``[N, n]`` and inputs ``[N, m]`` that the closed loop itself brings about."""
    inputs, closed = np.ones((len(A), B.shape[-1])), A - B @ K
    for _ in range(5):
        pushed = B * inputs[:, None]
        X = _costs(_t(closed), (pushed @ _t(pushed))[:, None], discrete=discrete)[:, 0]  # the Gramian
        states = np.sqrt(np.einsum("nii->ni", X))
        states = np.maximum(states, 1e-6 * states.max(1, keepdims=True))
        inputs = np.sqrt(np.einsum("nij,njk,nik->ni", K, X, K))
        inputs = np.maximum(inputs, 1e-6 * inputs.max(1, keepdims=True))
        states, inputs = np.where(states > 0, states, 1.0), np.where(inputs > 0, inputs, 1.0)
        inputs = inputs / np.exp(np.log(inputs).mean(1, keepdims=True))
    return states, inputs


def _costs(closed: np.ndarray, W: np.ndarray, *, discrete: bool) -> np.ndarray:
    """Cost to go of stable loops ``[N, n, n]`` with weights ``[N, k, n, n]``, by one dense linear system a loop."""
    N, k, n, _ = W.shape
    at, eye = _t(closed), np.eye(n)
    if discrete:
        operator = np.eye(n * n) - np.einsum("nij,nkl->nikjl", at, at).reshape(N, n * n, n * n)
    else:
        both = np.einsum("nij,kl->nikjl", at, eye) + np.einsum("ij,nkl->nikjl", eye, at)
        operator = -both.reshape(N, n * n, n * n)
    P = _t(np.linalg.solve(operator, _t(W.reshape(N, k, n * n)))).reshape(W.shape)
    return (P + _t(P)) / 2


def _weights(
    a: np.ndarray,
    b: np.ndarray,
    k: np.ndarray,
    step: np.ndarray | None,
    discrete: bool,
    bases: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, R and the return difference of stable loops ``[N, ...]``."""
    n, m = b.shape[-2:]
    stepped = discrete or step is not None
    x, u = _scales(*_plant(a, b, step), k, discrete=stepped)
    a, b, k = a * x[:, None] / x[..., None], b * u[:, None] / x[..., None], k * x[:, None] / u[..., None]
    A, B = _plant(a, b, step)
    closed = A - B @ k
    q, r = bases
    Qs = np.concatenate([q, np.zeros((len(r), n, n))])
    Rs = np.concatenate([np.zeros((len(q), m, m)), r])
    each: Any = (slice(None), None)  # a plant for each member of the basis
    if step is None:
        stage_q, stage_r, cross = Qs, Rs, np.zeros((len(Qs), n, m))
    else:
        sampled = discretize(a[each], b[each], Qs, Rs, step[:, None])
        stage_q, stage_r, cross = (np.asarray(w) for w in (sampled.Q, sampled.R, sampled.N))
    K, L = k[each], cross @ k[each]
    stages = np.broadcast_to(stage_q + _t(K) @ stage_r @ K - L - _t(L), (len(a), *Qs.shape))
    P = _costs(closed, stages, discrete=stepped)
    # the derivative of the cost with respect to K, but for a factor: zero where K is optimal
    slope = stage_r @ K - _t(cross) - _t(B)[each] @ P @ (closed[each] if stepped else np.eye(n))
    w = _centre(_t(slope.reshape(*slope.shape[:2], n * m)), Qs, Rs)

    def total(parts: np.ndarray) -> np.ndarray:
        return np.einsum("ni,niab->nab", w, np.broadcast_to(parts, (*w.shape, *parts.shape[-2:])))

    Q, R, P, Qd, Rd, Nd = (total(e) for e in (Qs, Rs, P, stage_q, stage_r, cross))
    inner = Rd + _t(B) @ P @ B if stepped else Rd
    least = Rd - _t(Nd) @ np.linalg.solve(Qd, Nd)
    distance = _return_difference(A, B, k, inner, least, 1.0 if discrete else step)
    Q, R = Q / x[:, None] / x[..., None], R / u[:, None] / u[..., None]
    unit = np.exp(np.linalg.slogdet(R)[1] / m)[:, None, None]
    return Q / unit, R / unit, distance


def _centre(G: np.ndarray, Qs: np.ndarray, Rs: np.ndarray) -> np.ndarray:
    """w ``[N, k]`` with Q = Σ wᵢQᵢ > 0, R = Σ wᵢRᵢ > 0, tr Q/n + tr R/m = 2 and the least ‖Gw‖, G ``[N, c, k]``.

    Newton's method on ‖Gw‖ with the logarithmic barriers of its own cone and of Q and R; the bound on ‖Gw‖ that
    the first needs is minimised out, which leaves ψ(v) = √(1+v) − log(1+√(1+v)) of v = ‖Gw/μ‖². In the
    coordinates of G's singular vectors the large and the small parts of the Hessian stand apart.

    Source: S. Boyd and L. Vandenberghe, Convex Optimization (2004), sections 9.6 and 11.6.
    """
    N, _, size = G.shape
    norms = np.linalg.norm(G, 2, axis=(1, 2))[:, None, None]
    _, found, Vt = np.linalg.svd(G / np.where(norms > 0, norms, 1.0))
    S = np.zeros((N, size))
    S[:, : found.shape[1]] = found
    Q, R = (np.einsum("nji,iab->njab", Vt, e) for e in (Qs, Rs))
    n, m = Qs.shape[-1], Rs.shape[-1]
    trace = np.einsum("njaa->nj", Q) / n + np.einsum("njaa->nj", R) / m
    w = np.einsum("nji,i->nj", Vt, np.einsum("iaa->i", Qs) + np.einsum("iaa->i", Rs))  # Q = I, R = I
    mu, live = np.ones((N, 1)), np.ones((N, 1), bool)
    while live.any():
        for _ in range(_NEWTON):
            slope, H = np.zeros((N, size)), np.zeros((N, size, size))
            for e in (Q, R):
                F = np.linalg.inv(np.einsum("nj,njab->nab", w, e))[:, None] @ e
                slope -= np.einsum("njaa->nj", F)
                H += np.einsum("niab,njba->nij", F, F)
            pull = (S / mu) ** 2 * w
            root = np.sqrt(1 + np.sum(pull * w, axis=1))[:, None]
            slope += pull / (1 + root)
            H += np.eye(size) * ((S / mu) ** 2 / (1 + root))[:, None]
            H -= pull[:, :, None] * pull[:, None] / (root * (1 + root) ** 2)[..., None]
            even = 1 / np.sqrt(np.einsum("nii->ni", H))
            right = np.stack([-slope * even, trace * even], axis=-1)
            H = H * even[:, None] * even[..., None] + 1e-13 * np.eye(size)
            down, along = np.moveaxis(np.linalg.solve(H, right), -1, 0)
            share = np.sum(trace * even * down, axis=1) / np.sum(trace * even * along, axis=1)
            move = (down - share[:, None] * along) * even
            left = np.sqrt(np.maximum(-np.sum(slope * move, axis=1), 0))[:, None]
            # such a step stays inside: the barriers are self-concordant
            w = w + np.where(live, move * np.where(left < 0.25, 1.0, 1 / (1 + left)), 0.0)
            if not np.any(live & (left > 0.1)):
                break
        # where ‖Gw‖ stays above zero it is known to 1e-5 once it is 1e6 μ; below lies only rounding
        live = live & (root < 1e6) & (mu > _LEAST) & (left < 0.1)
        mu = np.where(live, mu / 10, mu)
    return np.einsum("nj,nji->ni", w, Vt)


def _return_difference(
    A: np.ndarray, B: np.ndarray, K: np.ndarray, inner: np.ndarray, least: np.ndarray, dt: Any
) -> np.ndarray:
    """Least singular value of inner^½ (I + L) least^−½ over frequencies ``[N]``."""
    poles = np.linalg.eigvals(np.stack([A, A - B @ K], axis=1)).reshape(len(A), -1).astype(complex)
    with np.errstate(divide="ignore"):
        speeds = np.abs(poles if dt is None else np.log(poles) / np.reshape(dt, (-1, 1)))
    speeds = np.where((speeds > 1e-9 * speeds.max(1, keepdims=True)) & np.isfinite(speeds), speeds, np.nan)
    low, high = 1e-2 * np.nanmin(speeds, axis=1), 1e3 * np.nanmax(speeds, axis=1)
    if dt is not None:
        high = np.pi / np.broadcast_to(dt, high.shape)
    w = np.geomspace(np.minimum(low, high / 10), high, 400, axis=-1)
    s = 1j * w if dt is None else np.exp(1j * w * np.reshape(dt, (-1, 1)))
    pencil = s[..., None, None] * np.eye(A.shape[-1]) - (A - B @ K)[:, None]
    inner_part = np.linalg.solve(pencil, np.broadcast_to(B[:, None], (*w.shape, *B.shape[1:])))
    S = np.eye(K.shape[1]) - K[:, None] @ inner_part

    def factor(a: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(a)
        return np.sqrt(np.maximum(values, 0))[..., None] * _t(vectors)

    turned = factor(least)[:, None] @ S @ np.linalg.inv(factor(inner))[:, None]
    return 1 / np.linalg.norm(turned, 2, axis=(-2, -1)).max(-1)

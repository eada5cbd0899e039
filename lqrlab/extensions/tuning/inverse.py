"""Inverse optimal control: the weights that an observed gain is optimal for, or how far it is from any."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from lqrlab.compute.checks import flag
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.system_norms import hinf_norm
from lqrlab.control.discretization import c2d, discretize
from lqrlab.control.lyapunov import stage_weight
from lqrlab.control.regulator import LQR, lqr, lqrd

_LEAST = 1e-12  # barrier parameter at the end: ‖Gw‖ vanishes to about this, times the conditioning
_NEWTON = 50  # steps for one barrier parameter; some five are usual
_SAME = 1e-6  # relative error of a gain that counts as reproduced: badly conditioned designs know K no better


class _ObservedLoops(NamedTuple):
    """Loops u = −Kx of continuous plants, sampled where there is a dt; ``[N, ...]``."""

    A: np.ndarray
    B: np.ndarray
    K: np.ndarray
    dt: np.ndarray | None

    def plant(self) -> tuple[np.ndarray, np.ndarray]:
        """The system that the gain acts on: the plant itself, or sampled."""
        if self.dt is None:
            return self.A, self.B
        A, B = c2d(self.A, self.B, self.dt)
        return np.asarray(A), np.asarray(B)

    def stable(self) -> np.ndarray:
        """True for loops that are finite and stable ``[N]``."""
        A, B = self.plant()
        with np.errstate(over="ignore", invalid="ignore"):  # a loop beyond all numbers is not stable
            closed = A - B @ self.K
        finite = np.all([np.isfinite(x).all((1, 2)) for x in (self.A, self.B, self.K, closed)], axis=0)
        poles = np.linalg.eigvals(np.where(finite[:, None, None], closed, 0.0))
        return finite & ((poles.real < 0) if self.dt is None else (np.abs(poles) < 1)).all(1)

    def scaled(self, x: np.ndarray, u: np.ndarray) -> "_ObservedLoops":
        """The same loops with states in units of x ``[N, n]`` and inputs in units of u ``[N, m]``."""
        A, B = self.A * x[:, None] / x[..., None], self.B * u[:, None] / x[..., None]
        return self._replace(A=A, B=B, K=self.K * x[:, None] / u[..., None])

    def optimum(self, Q: np.ndarray, R: np.ndarray) -> LQR:
        """The optimal regulators of the plants with these weights."""
        return lqr(self.A, self.B, Q, R) if self.dt is None else lqrd(self.A, self.B, Q, R, self.dt)


@dataclasses.dataclass(frozen=True)
class Inverse:
    """Weights that explain a gain; NumPy arrays with the leading axes of the problem.

    Attributes:
        Q, R: > 0, scaled so that det R = 1: the unit of a cost is arbitrary.
        K: the gain that is optimal for them.
        error: how far it is from the observed one, relative, in the Frobenius norm.
        optimal: whether the observed gain is optimal for some weights of the kind asked for.
        return_difference: least singular value over all frequencies of the return difference I + L, weighted so that an
            optimal loop has at least 1; with one input, in continuous time, min |1 + L(jω)| whatever the weights.
    """

    Q: Float[np.ndarray, "*batch n n"]
    R: Float[np.ndarray, "*batch m m"]
    K: Float[np.ndarray, "*batch m n"]
    error: Float[np.ndarray, "*batch"]
    optimal: Bool[np.ndarray, "*batch"]
    return_difference: Float[np.ndarray, "*batch"]

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
    A: ArrayLike, B: ArrayLike, K: ArrayLike, dt: ArrayLike | None = None, *, diagonal: bool = False
) -> Inverse:
    """Q and R for which u = −Kx is optimal; if none exist, those of the nearest optimum. On the host.

    The derivative of a *given* loop's cost with respect to K is linear in (Q, R): the least norm is a convex problem.
    Of the many weights that explain a gain those are found that are farthest from being singular.

    Args:
        A, B: of ẋ = Ax + Bu, ``[..., n, n]``, ``[..., n, m]``.
        K: observed gain ``[..., m, n]``.
        dt: sample time [s]: K holds its input, and Q and R are to be those of :func:`lqrd`, else of :func:`lqr`.
        diagonal: look among diagonal weights only.

    The answer prints as a sentence. In a batch, members whose loop is not stable carry NaN; a single one is refused.

    Sources: R. E. Kalman, J. Basic Eng. 86 (1964); A. Jameson and E. Kreindler, SIAM J. Control 11 (1973) [several
    inputs]; S. Boyd et al., Linear Matrix Inequalities in System and Control Theory (1994), section 10.6 [convexity].
    """
    matrix_checks.on_host("inverse_lqr", A, B, K, dt)
    flag("diagonal", diagonal)
    a, b, k = (np.asarray(matrix_checks.real(name, x), float) for name, x in zip("ABK", (A, B, K)))
    matrix_checks.shapes({"A": a, "B": b, "K": k}, {"A": "nn", "B": "nm", "K": "mn"})
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], k.shape[:-2])
    a, b, k = (np.broadcast_to(x, lead + x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b, k))
    if dt is not None:
        dt = np.broadcast_to(np.asarray(matrix_checks.sample_time(dt, np.dtype(float))), lead).reshape(-1)
    loops = _ObservedLoops(a, b, k, dt)
    stable = loops.stable()
    if not lead and not stable[0]:
        raise ValueError("K: the loop A − BK is not stable, so its cost is infinite for all weights")
    explained = _best_explanation(loops, stable, diagonal)
    return Inverse(*(x.reshape(lead + x.shape[1:]) for x in explained))


def _best_explanation(loops: _ObservedLoops, stable: np.ndarray, diagonal: bool) -> tuple[np.ndarray, ...]:
    """Q, R, K, error, optimal and return difference of each loop ``[N, ...]``; NaN where it is not stable."""
    count, m, n = loops.K.shape
    Q, R, gain = (np.full((count, *s), np.nan) for s in ((n, n), (m, m), (m, n)))
    error, difference = np.full(count, np.nan), np.full(count, np.nan)
    # one size of batch, so one program: another stands in for a member that has no answer
    stand_in = np.where(stable, np.arange(count), np.argmax(stable))
    loops = loops._replace(A=loops.A[stand_in], B=loops.B[stand_in], K=loops.K[stand_in])
    # where no weights explain the gain, the best with a free R may be those that hardly charge one input, and
    # their optimum may be far away: those that charge all inputs alike get a chance
    for inputs in (_basis(m, diagonal), np.eye(m)[None])[: 1 + (m > 1)]:
        if not np.any(stable & ~(error < _SAME)):
            break
        weights = _weights(loops, _basis(n, diagonal), inputs)
        K = np.asarray(loops.optimum(*weights[:2]).K)
        off = np.linalg.norm(K - loops.K, axis=(1, 2)) / np.linalg.norm(loops.K, axis=(1, 2))
        better = stable & ~(off >= error)
        for whole, part in zip((Q, R, difference, gain, error), (*weights, K, off)):
            whole[better] = part[better]
    return Q, R, gain, error, error < _SAME, difference


def _basis(n: int, diagonal: bool) -> np.ndarray:
    """Symmetric matrices ``[k, n, n]`` that are orthonormal."""
    pairs = [(i, j) for i in range(n) for j in range(i, n) if i == j or not diagonal]
    basis = np.zeros((len(pairs), n, n))
    for e, (i, j) in zip(basis, pairs):
        e[i, j] = e[j, i] = 1.0 if i == j else 0.5**0.5
    return basis


def _scales(loops: _ObservedLoops) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of states ``[N, n]`` and inputs ``[N, m]`` that noise at all inputs brings about in the loop."""
    x, u = map(np.stack, zip(*map(_even_units, *loops.plant(), loops.K)))
    loops = loops.scaled(x, u)
    (A, B), K = loops.plant(), loops.K
    inputs, closed = np.ones((len(A), B.shape[-1])), A - B @ K
    for _ in range(5):
        pushed = B * inputs[:, None]
        X = _costs(closed.mT, (pushed @ pushed.mT)[:, None], discrete=loops.dt is not None)[:, 0]
        states = _sizes(X)
        inputs = _sizes(K @ X @ K.mT)
        inputs = inputs / np.exp(np.log(inputs).mean(1, keepdims=True))
    return x * states, u * inputs


def _even_units(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Units of states ``[n]`` and inputs ``[m]`` in which the numbers of one loop are of like size."""
    x, u = np.ones(len(A)), np.ones(len(K))
    for _ in range(3):
        x = x * matrix_checks.even_units(A * x / x[:, None], B * u / x[:, None], K * x / u[:, None])
        pushed, taken = np.linalg.norm(B / x[:, None], axis=0), np.linalg.norm(K * x, axis=1)
        u = np.sqrt(np.where(pushed * taken > 0, taken / np.where(pushed > 0, pushed, 1.0), 1.0))
    return x, u


def _sizes(X: np.ndarray) -> np.ndarray:
    """Standard deviations of covariances ``[N, n, n]``, none below a millionth of the largest; one for zero."""
    size = np.sqrt(np.einsum("nii->ni", X))
    size = np.maximum(size, 1e-6 * size.max(1, keepdims=True))
    return np.where(size > 0, size, 1.0)


def _costs(closed: np.ndarray, W: np.ndarray, *, discrete: bool) -> np.ndarray:
    """Cost to go of stable loops ``[N, n, n]`` with weights ``[N, k, n, n]``, by one dense linear system a loop."""
    N, k, n, _ = W.shape
    at, eye = closed.mT, np.eye(n)
    if discrete:
        operator = np.eye(n * n) - np.einsum("nij,nkl->nikjl", at, at).reshape(N, n * n, n * n)
    else:
        both = np.einsum("nij,kl->nikjl", at, eye) + np.einsum("ij,nkl->nikjl", eye, at)
        operator = -both.reshape(N, n * n, n * n)
    P = np.linalg.solve(operator, W.reshape(N, k, n * n).mT).mT.reshape(W.shape)
    return (P + P.mT) / 2


def _weights(loops: _ObservedLoops, q: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, R among the combinations of q and r, and the return difference, of stable loops ``[N, ...]``.

    With P the cost to go of the loop, K is optimal where the gradient G = RK − Nᵀ − BᵀPF vanishes, F = A − BK in
    discrete and F = I in continuous time. G is linear in the weights; :func:`_analytic_centre` minimises it.
    """
    x, u = _scales(loops)
    loops = loops.scaled(x, u)
    (A, B), (n, m) = loops.plant(), loops.B.shape[-2:]
    Qs = np.concatenate([q, np.zeros((len(r), n, n))])
    Rs = np.concatenate([np.zeros((len(q), m, m)), r])
    if loops.dt is None:
        Qd, Rd, Nd = Qs, Rs, np.zeros((len(Qs), n, m))
    else:
        sampled = discretize(loops.A[:, None], loops.B[:, None], Qs, Rs, loops.dt[:, None])
        Qd, Rd, Nd = (np.asarray(w) for w in (sampled.Q, sampled.R, sampled.N))
    K, closed = loops.K[:, None], A - B @ loops.K
    stages = np.broadcast_to(stage_weight(Qd, Rd, Nd, K), (len(A), *Qs.shape))
    P = _costs(closed, stages, discrete=loops.dt is not None)
    F = np.eye(n) if loops.dt is None else closed[:, None]
    G = Rd @ K - Nd.mT - B.mT[:, None] @ P @ F
    w = _analytic_centre(G.reshape(*G.shape[:2], n * m).mT, Qs, Rs)

    def total(parts: np.ndarray) -> np.ndarray:
        return np.einsum("ni,niab->nab", w, np.broadcast_to(parts, (*w.shape, *parts.shape[-2:])))

    Q, R, P, Qd, Rd, Nd = (total(e) for e in (Qs, Rs, P, Qd, Rd, Nd))
    inner = Rd if loops.dt is None else Rd + B.mT @ P @ B
    difference = _return_difference(loops, inner, Rd - Nd.mT @ np.linalg.solve(Qd, Nd))
    Q, R = Q / x[:, None] / x[..., None], R / u[:, None] / u[..., None]
    unit = np.exp(np.linalg.slogdet(R)[1] / m)[:, None, None]
    return Q / unit, R / unit, difference


def _return_difference(loops: _ObservedLoops, inner: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Least singular value of inner^½ (I + L) least^−½ over all frequencies ``[N]``: of its inverse the H∞ norm."""
    (A, B), K = loops.plant(), loops.K

    def factor(a: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(a)
        return np.sqrt(np.maximum(values, 0))[..., None] * vectors.mT

    out, into = factor(least), np.linalg.inv(factor(inner))
    times = [None] * len(K) if loops.dt is None else loops.dt.tolist()
    turned = zip(A - B @ K, B @ into, -out @ K, out @ into, times)
    return np.array([1 / hinf_norm(*one)[0] for one in turned])


def _analytic_centre(
    G: Float[np.ndarray, "N c k"], Qs: Float[np.ndarray, "k n n"], Rs: Float[np.ndarray, "k m m"]
) -> Float[np.ndarray, "N k"]:
    """w with the least ‖Gw‖ under Q = Σ wᵢQᵢ > 0, R = Σ wᵢRᵢ > 0 and tr Q/n + tr R/m = 2, for N problems at once.

    For μ = 1, 0.1, … it minimises ψ(‖Gw/μ‖²) − log det Q − log det R by Newton's method. ψ(v) = √(1+v) − log(1+√(1+v))
    is the barrier of the cone ‖Gw‖ ≤ s with s minimised out. It ends at the w with Gw = 0 farthest from singular
    weights.

    Source: S. Boyd and L. Vandenberghe, Convex Optimization (2004), sections 9.6 (damped Newton steps on
    self-concordant functions), 10.2 (an equality constraint) and 11.6 (logarithmic barriers of cones).
    """
    norms = np.linalg.norm(G, 2, axis=(1, 2))[:, None, None]
    _, values, Vt = np.linalg.svd(G / np.where(norms > 0, norms, 1.0))
    S = np.zeros((len(G), G.shape[2]))
    S[:, : values.shape[1]] = values
    # in the coordinates of G's singular vectors the large and the small parts of the Hessian stand apart
    Q, R = (np.einsum("nji,iab->njab", Vt, e) for e in (Qs, Rs))
    trace = np.einsum("njaa->nj", Q) / Qs.shape[-1] + np.einsum("njaa->nj", R) / Rs.shape[-1]
    w = np.einsum("nji,i->nj", Vt, np.einsum("iaa->i", Qs) + np.einsum("iaa->i", Rs))  # Q = I, R = I
    mu, active = np.ones((len(G), 1)), np.ones((len(G), 1), bool)
    while active.any():
        for _ in range(_NEWTON):
            gradient, hessian, root = _derivatives(w, S / mu, (Q, R))
            step = _newton_step(gradient, hessian, trace)
            decrement = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0))[:, None]
            # such a step stays inside: the barriers are self-concordant
            w = w + np.where(active, step * np.where(decrement < 0.25, 1.0, 1 / (1 + decrement)), 0.0)
            if not np.any(active & (decrement > 0.1)):
                break
        # where ‖Gw‖ stays above zero it is known to 1e-5 once it is 1e6 μ; below lies only rounding
        active = active & (root < 1e6) & (mu > _LEAST) & (decrement < 0.1)
        mu = np.where(active, mu / 10, mu)
    return np.einsum("nj,nji->ni", w, Vt)


def _derivatives(
    w: np.ndarray, S: np.ndarray, cones: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradient and Hessian of ψ(Σ (Sᵢwᵢ)²) − Σ log det over the cones, and √(1 + Σ (Sᵢwᵢ)²) ``[N, 1]``."""
    size = w.shape[1]
    gradient, hessian = np.zeros(w.shape), np.zeros((*w.shape, size))
    for basis in cones:
        F = np.linalg.inv(np.einsum("nj,njab->nab", w, basis))[:, None] @ basis
        gradient -= np.einsum("njaa->nj", F)
        hessian += np.einsum("niab,njba->nij", F, F)
    pull = S**2 * w
    root = np.sqrt(1 + np.sum(pull * w, axis=1))[:, None]
    gradient += pull / (1 + root)
    hessian += np.eye(size) * (S**2 / (1 + root))[:, None]
    hessian -= pull[:, :, None] * pull[:, None] / (root * (1 + root) ** 2)[..., None]
    return gradient, hessian, root


def _newton_step(gradient: np.ndarray, hessian: np.ndarray, trace: np.ndarray) -> np.ndarray:
    """The Newton step that keeps trace · w, from the Hessian with its diagonal scaled to one."""
    scale = 1 / np.sqrt(np.einsum("nii->ni", hessian))
    scaled = hessian * scale[:, None] * scale[..., None] + 1e-13 * np.eye(hessian.shape[-1])
    down, along = np.moveaxis(np.linalg.solve(scaled, np.stack([-gradient * scale, trace * scale], axis=-1)), -1, 0)
    share = np.sum(trace * scale * down, axis=1) / np.sum(trace * scale * along, axis=1)
    return (down - share[:, None] * along) * scale

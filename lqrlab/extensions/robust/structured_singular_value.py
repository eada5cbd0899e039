"""Structured singular value µ of many matrices at once, on the host: an upper and a lower bound."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Complex, Float

from lqrlab.control import matrix_checks
from lqrlab.extensions.robust.generalized_plant import UncertaintyBlock, uncertainty_structure

_STEPS = np.array([0.2, 0.7, 1.5, 3.0, 6.0])  # times the last decrease of λ: those that are tried for the next one
_INSIDE = 0.8  # of the largest decrease that was possible
_STALLED = 0.9  # of the last distance to the centre: no nearer, as where a G without end makes F ever larger
_EXACT = 2e-4  # relative decrease of λ after which no more is looked for,
_RESTS, _GONE = 0.01, 1e-4  # unless an entry of D, above that share of the largest, still changes by more, relative
_NOTHING = 1e-12  # λ relative to ‖M‖²: µ is zero
_TURNS, _ITERATIONS, _STARTS = 80, 80, 4
_SWEEPS, _FACTOR = 12, 1e4  # of balancing: how often, and by how much at most
_TOGETHER = 512  # matrices: what they need stays in the cache
_ENTRIES = 2**21  # of an array that holds them all
_MEET = 1 - 1e-3  # of the upper bound: a lower bound that large is not improved
Structure = tuple[UncertaintyBlock, ...]
_REAL = 1e-6  # imaginary part of an eigenvalue that counts as real, relative


@dataclasses.dataclass(frozen=True)
class StructuredSingularValue:
    """Bounds on µ(M) = 1 / min{‖Δ‖: det(I − MΔ) = 0}, of each matrix of a batch.

    Attributes:
        upper: certified by scalings: no Δ with ‖Δ‖ < 1 / upper makes I − MΔ singular; never below ``lower``.
        lower: shown by a Δ with ‖Δ‖ = 1 / lower that does; zero where none was found.
        perturbation: that Δ, zero where none was found; I − MΔ is singular to a relative 1e-6.
    """

    upper: Float[np.ndarray, "*batch"]
    lower: Float[np.ndarray, "*batch"]
    perturbation: Complex[np.ndarray, "*batch w z"]


def mu(M: ArrayLike, blocks: Any) -> StructuredSingularValue:
    """Bounds on the structured singular value of matrices, such as those of a loop at many frequencies.

    Args:
        M: ``[*batch, z, w]``, from w to z, real or complex.
        blocks: of Δ, from z to w, down the diagonal: ``(r, c)`` is a full complex block of r rows and c columns,
            ``(r, 0)`` a complex scalar, r times, ``(-r, 0)`` a real one; ``r`` is ``(r, r)``, ``-r`` is ``(-r, 0)``.

    Source: M. K. H. Fan, A. L. Tits and J. C. Doyle, IEEE Trans. Automatic Control 36 (1991), theorem 3.1, by the
    method of centers (S. Boyd and L. El Ghaoui, Linear Algebra and its Applications 188 (1993)), within 1e-3 of
    the least; lower bound: P. M. Young and J. C. Doyle, Conference on Decision and Control 1990.

    >>> bounds = robust.mu([[0.0, 4.0], [1.0, 0.0]], [1, 1])  # a diagonal scaling makes both entries 2
    >>> round(float(bounds.upper), 3), round(float(bounds.lower), 3)
    (2.0, 2.0)
    """
    matrix_checks.on_host("mu", M)
    array = np.asarray(matrix_checks.real("M", M, or_complex=True), complex)
    if array.ndim < 2:
        raise ValueError(f"M: expected a matrix [z, w], or a batch of them, but found shape {array.shape}")
    structure = uncertainty_structure(blocks, *array.shape[-2:])
    if not np.isfinite(array).all():
        raise ValueError("M: expected finite entries, but found some that are not: is a frequency at a pole?")
    flat, lead = np.moveaxis(array.reshape(-1, *array.shape[-2:]), 0, -1), array.shape[:-2]
    (upper, lower), found = np.zeros((2, flat.shape[-1])), np.zeros((flat.shape[-1], *flat.shape[1::-1]), complex)
    together = max(1, min(_TOGETHER, _ENTRIES // len(_scalings(structure).variable) ** 2))
    with np.errstate(all="ignore"):  # what overflows is told by its not being finite
        for i in range(0, len(upper), together):
            these = slice(i, i + together)
            size = np.abs(flat[..., these]).max(axis=(0, 1))
            even = _balanced(flat[..., these] / np.where(size, size, 1.0), structure)
            upper[these] = size * _upper(even, structure)
            lower[these], found[these] = _lower(even, structure, upper[these] / np.where(size, size, 1.0))
            lower[these], found[these] = size * lower[these], found[these] / size[:, None, None]
    found[lower == 0] = 0
    # µ of real Δ jumps: scalings may certify what is singular but for rounding in M
    bounds = np.maximum(upper, lower).reshape(lead), lower.reshape(lead)
    return StructuredSingularValue(*bounds, found.reshape(*lead, *found.shape[1:]))


def _balanced(M: np.ndarray, structure: Structure) -> np.ndarray:
    """Matrices of the same µ whose rows are about as large as their columns: E. E. Osborne, J. ACM 7 (1960)."""
    M, (z, w, _) = M.copy(), M.shape
    for block in structure * _SWEEPS:
        other = np.delete(np.arange(w), block.rows), np.delete(np.arange(z), block.columns)
        out, into = (
            np.sum(np.abs(x) ** 2, axis=(0, 1)) for x in (M[block.columns][:, other[0]], M[other[1]][:, block.rows])
        )
        scale = np.where((out > 0) | (into > 0), np.clip(np.sqrt(np.sqrt(into / out)), 1 / _FACTOR, _FACTOR), 1.0)
        M[block.columns] *= scale
        M[:, block.rows] /= scale
    return M


# Upper bound ---------------------------------------------------------------------------------------------------
#
# µ² ≤ λ where scalings D > 0 and G, Hermitian and of the blocks' structure, make
#     F = λ D − Mᴴ D M + j (G M − Mᴴ G)
# positive definite. For a fixed λ the set of such scalings is convex; its analytic centre is followed while λ falls.


@dataclasses.dataclass(frozen=True)
class _Scalings:
    """Linear parts of F: F = Pᴴ C P with P = [I; M] and C = Σ v_i C_i, where few entries of C_i are not zero.

    Attributes:
        variable, row, column, value: of each such entry; of C's first rows those count λ times (``first``).
        trace: of D for each variable.
        parts: of D, the variables of each and its matrices.
    """

    variable: np.ndarray
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray
    first: np.ndarray
    trace: np.ndarray
    parts: tuple[tuple[slice, np.ndarray], ...]


def _hermitian(r: int) -> Iterator[np.ndarray]:
    """A basis of the Hermitian matrices."""
    for p in range(r):
        for q in range(p + 1):
            for unit in (1.0,) if p == q else (1.0, 1j):
                h = np.zeros((r, r), complex)
                h[p, q], h[q, p] = unit, np.conj(unit)
                yield h


@functools.lru_cache(maxsize=64)
def _scalings(structure: Structure) -> _Scalings:
    w, z = structure[-1].end
    full: list[np.ndarray] = []
    parts = []
    for block in structure:  # D
        start = len(full)
        for h in [None] if block.full else list(_hermitian(block.size)):
            c = np.zeros((w + z, w + z), complex)
            after = slice(w + block.columns.start, w + block.columns.stop)
            c[block.rows, block.rows] = np.eye(block.size) if h is None else h
            c[after, after] = -np.eye(after.stop - after.start) if h is None else -h
            full.append(c)
        shapes = [np.ones((1, 1))] if block.full else list(_hermitian(block.size))
        parts.append((slice(start, len(full)), np.array(shapes, complex)))
    for block in structure:  # G
        for h in _hermitian(block.size) if block.real else ():
            c = np.zeros((w + z, w + z), complex)
            after = slice(w + block.columns.start, w + block.columns.stop)
            c[block.rows, after], c[after, block.rows] = 1j * h, -1j * h
            full.append(c)
    C = np.array(full)
    variable, row, column = np.nonzero(C)
    trace = np.trace(C[:, :w, :w], axis1=1, axis2=2).real
    return _Scalings(variable, row, column, C[variable, row, column], (row < w) & (column < w), trace, tuple(parts))


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products of matrices with the batch on the last axis: ``batch_last``'s would first compile for seconds."""
    out = a[:, 0, None] * b[None, 0]
    for i in range(1, a.shape[1]):
        out += a[:, i, None] * b[None, i]
    return out


def _solved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a⁻¹ b for positive definite matrices with the batch on the last axis."""
    ab = np.concatenate([a, b], axis=1)
    for i in range(len(a)):
        top = ab[i, i:] / ab[i, i].real
        ab[:, i:] -= ab[:, i, None] * top[None]
        ab[i, i:] = top
    return ab[:, len(a) :]


def _inverse(a: np.ndarray) -> np.ndarray:
    return _solved(a, np.broadcast_to(np.eye(len(a))[:, :, None], a.shape))


def _definite(a: np.ndarray) -> np.ndarray:
    """True for the Hermitian matrices that are positive definite, by their pivots."""
    positive = np.ones(a.shape[-1], bool)
    while True:
        positive &= a[0, 0].real > 0
        if len(a) == 1:
            return positive
        a = a[1:, 1:] - a[1:, :1] * (a[:1, 1:] * (positive / np.where(positive, a[0, 0].real, 1.0)))


class _Centers:
    """F of a batch of matrices as a function of the scalings' variables v, [variables, batch], and of λ."""

    def __init__(self, M: np.ndarray, scalings: _Scalings) -> None:
        w = M.shape[1]
        self.s, self.M = scalings, M
        self._sum = np.zeros((len(scalings.trace), len(scalings.variable)))
        self._sum[scalings.variable, np.arange(len(scalings.variable))] = 1.0
        self._D = np.zeros((w, w, len(scalings.trace)), complex)
        where = np.flatnonzero(scalings.first)
        self._D[scalings.row[where], scalings.column[where], scalings.variable[where]] = scalings.value[where]
        P = np.concatenate([np.broadcast_to(np.eye(w)[..., None], (w, *M.shape[1:])), M])
        self._rest = np.zeros((len(scalings.trace), w, w, M.shape[-1]), complex)
        for i in np.flatnonzero(~scalings.first):
            outer = P[scalings.row[i]].conj()[:, None] * P[scalings.column[i]]
            self._rest[scalings.variable[i]] += scalings.value[i] * outer

    def keep(self, these: np.ndarray) -> None:
        """Go on with some of the batch."""
        self.M, self._rest = self.M[..., these], self._rest[..., these]

    def D(self, v: np.ndarray) -> np.ndarray:
        """dF / dλ."""
        return self._D @ v

    def diagonal(self, v: np.ndarray) -> np.ndarray:
        return np.einsum("iib->ib", self.D(v)).real

    def F(self, v: np.ndarray, level: np.ndarray) -> np.ndarray:
        out = level * self.D(v)
        for x, rest in zip(v, self._rest):
            out += x * rest
        return out

    def positive(self, v: np.ndarray) -> np.ndarray:
        """True where D is positive definite."""
        return np.all([_definite(shapes.transpose(1, 2, 0) @ v[part]) for part, shapes in self.s.parts], axis=0)

    def derivatives(self, v: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gradient and Hessian in v of −log det F − log det D, and the gradient's derivative by λ."""
        s = self.s
        X, MH = _inverse(self.F(v, level)), self.M.conj().swapaxes(0, 1)
        right = np.concatenate([X, _times(X, MH)], axis=1)
        V = np.concatenate([right, _times(self.M, right)])
        gathered = V[s.column[:, None], s.row[None]]
        products = (gathered * gathered.swapaxes(0, 1) * (s.value[:, None] * s.value[None])[..., None]).real
        counts = np.where(s.first[:, None], level, 1.0)
        summed = np.tensordot(self._sum, products * counts[:, None], 1)  # one of the two entries by variables
        hessian = np.tensordot(self._sum, (summed * counts).swapaxes(0, 1), 1)
        seen = (s.value[:, None] * V[s.column, s.row]).real
        gradient = -self._sum @ (seen * counts)
        by_level = np.sum(summed * (s.first[:, None] * v[s.variable]), axis=1) - self._sum @ (seen * s.first[:, None])
        for part, shapes in s.parts:
            inverse = _inverse(shapes.transpose(1, 2, 0) @ v[part])
            moved = np.einsum("acb,kcd->kadb", inverse, shapes)
            gradient[part] -= np.einsum("kaab->kb", moved).real
            hessian[part, part] += np.einsum("kacb,lcab->klb", moved, moved).real
        return gradient, hessian, by_level


def _direction(centers: _Centers, v: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Newton's step to the centre, how far that is, and the centre's move for each unit by which λ falls.

    D keeps its trace: only its shape counts.
    """
    gradient, hessian, by_level = centers.derivatives(v, level)
    size = np.einsum("iib->ib", hessian)
    size = np.sqrt(np.maximum(size, 1e-30 * size.max(0)))  # some G of a real matrix do nothing
    even = hessian / (size[:, None] * size[None]) + 1e-12 * np.eye(len(size))[..., None]
    trace = np.broadcast_to(centers.s.trace[:, None], size.shape)
    sides = np.stack([gradient, by_level, trace], axis=1)
    to_center, along, held = (_solved(even, sides / size[:, None]) / size[:, None]).swapaxes(0, 1)
    held = held / (trace * held).sum(0)
    newton, tangent = (held * (trace * x).sum(0) - x for x in (to_center, along))
    return newton, np.sqrt(np.maximum(-(gradient * newton).sum(0), 0.0)), -tangent


def _upper(M: np.ndarray, structure: Structure) -> np.ndarray:
    """The least bound that scalings certify, of matrices with the batch on the last axis."""
    size, scalings = np.sqrt(np.sum(np.abs(M) ** 2, axis=(0, 1))), _scalings(structure)
    bound, left = np.full(M.shape[-1], 0.0), np.flatnonzero(size)
    centers = _Centers(M[..., left] / size[left], scalings)
    v = np.repeat((scalings.trace > 0).astype(float)[:, None], len(left), axis=1)
    level, fall, last = np.full(len(left), 1.2), np.full(len(left), 0.5), np.full(len(left), np.inf)
    for _ in range(_TURNS):
        if not len(left):
            break
        newton, far, tangent = _direction(centers, v, level)
        before = centers.diagonal(v)
        v = v + newton * np.where(far < 0.25, 1.0, 1 / (1 + far))
        fall, go = _falls(centers, v, level, fall, tangent, (far < 1) | (far > _STALLED * last))
        v, level = np.where(go > 0, v + go * tangent, v), level - go
        bound[left] = size[left] * np.sqrt(level)
        # λ can hardly fall for a while and then much more: near a real matrix G has to become large first
        after = centers.diagonal(v)
        moves = ((np.abs(after - before) > _RESTS * before) & (after > _GONE * after.max(0))).any(0)
        on = ~(((far < 0.5) & (fall < _EXACT * level) & ~moves) | (level < _NOTHING)) & np.isfinite(far)
        last = far
        if not on.all():
            left, v, level, fall, last = left[on], v[:, on], level[on], fall[on], last[on]
            centers.keep(on)
    return bound


def _falls(
    centers: _Centers, v: np.ndarray, level: np.ndarray, fall: np.ndarray, tangent: np.ndarray, near: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The largest decrease of λ along the tangent for which F stays positive definite, and the one to make."""
    zeroth, second = centers.F(v, level), -centers.D(tangent)
    first = centers.F(tangent, level) - centers.D(v)
    best = np.zeros_like(fall)

    def inside(a: np.ndarray) -> np.ndarray:
        return _definite(zeroth + a * first + a**2 * second) & centers.positive(v + a * tangent)

    for step in _STEPS:
        a = fall * step
        best = np.where(near & (a < level) & inside(a), a, best)
    go = np.where(inside(_INSIDE * best), _INSIDE * best, 0.0)  # what is inside along the tangent has gaps
    return np.where(near, np.where(go > 0, best, fall * _STEPS[0]), fall), go


# Lower bound ---------------------------------------------------------------------------------------------------


def _lower(M: np.ndarray, structure: Structure, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest real eigenvalue λ of QM, over Q of the structure with ‖Q‖ ≤ 1; Q / λ. New starts for what is low."""
    z, w, number = M.shape
    best, found = np.zeros(number), np.zeros((number, w, z), complex)
    rng, left = np.random.default_rng(0), np.arange(number)
    for _ in range(_STARTS):
        value, delta = _from_one_start(M[..., left], structure, rng)
        better = value > best[left]
        best[left[better]], found[left[better]] = value[better], delta[better]
        left = np.flatnonzero(best < _MEET * upper)
        if not len(left):
            break
    return best, found


def _from_one_start(many: np.ndarray, structure: Structure, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The power iteration from random vectors."""
    z, w, number = many.shape
    b, x = (rng.normal(size=(k, 2, number)) for k in (w, w))
    b, x = (c[:, 0] + 1j * c[:, 1] for c in (b, x))
    b, x = b / np.linalg.norm(b, axis=0), x / np.linalg.norm(x, axis=0)
    shares = {block: np.ones(number) for block in structure if block.real}
    tiny, Q = np.finfo(float).tiny, np.zeros((w, z, number), complex)
    for _ in range(_ITERATIONS):
        a = np.einsum("zwb,wb->zb", many, b)
        a = a / (np.linalg.norm(a, axis=0) + tiny)
        y = np.empty_like(a)
        for block in structure:
            y[block.columns] = _aligned(block, x[block.rows], a[block.columns], shares)[0]
        x = np.einsum("zwb,zb->wb", many.conj(), y)
        x = x / (np.linalg.norm(x, axis=0) + tiny)
        for block in structure:
            b[block.rows] = _aligned(block, x[block.rows], a[block.columns], shares)[1]
        b = b / (np.linalg.norm(b, axis=0) + tiny)
    for block in structure:
        Q[block.rows, block.columns] = _perturbation(block, x[block.rows], a[block.columns], shares)
    Q = Q / (np.linalg.norm(Q, 2, axis=(0, 1)) + tiny)  # real blocks may all have ended inside
    values = np.linalg.eigvals(np.moveaxis(np.einsum("wzb,zvb->wvb", Q, many), -1, 0))
    if any(block.real for block in structure):  # else the phase of all of Δ is free
        values = np.where(np.abs(values.imag) <= _REAL * np.abs(values), values.real + 0j, 0.0)
    each = np.arange(number)
    values = values[each, np.abs(values).argmax(axis=-1)]
    return np.abs(values), np.moveaxis(Q / values, -1, 0)


def _aligned(
    block: UncertaintyBlock, x: np.ndarray, a: np.ndarray, shares: dict[UncertaintyBlock, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The next y and b of a block's part: what its Δ makes of x, and of a."""
    tiny = np.finfo(float).tiny
    if block.full:
        ratio = (np.linalg.norm(x, axis=0) + tiny) / (np.linalg.norm(a, axis=0) + tiny)
        return ratio * a, x / ratio
    inner = np.sum(a.conj() * x, axis=0)
    if block.real:
        share = shares[block]
        moved = share + inner.real / (np.linalg.norm(a, axis=0) * np.linalg.norm(x, axis=0) + tiny)
        shares[block] = share = np.clip(moved, -1.0, 1.0)
        return share * x, share * a
    phase = inner / (np.abs(inner) + tiny)
    return phase.conj() * x, phase * a


def _perturbation(
    block: UncertaintyBlock, x: np.ndarray, a: np.ndarray, shares: dict[UncertaintyBlock, np.ndarray]
) -> np.ndarray:
    """A block of Q."""
    tiny, one = np.finfo(float).tiny, np.eye(block.size)[..., None]
    if block.full:
        return x[:, None] * a.conj()[None] / (np.linalg.norm(x, axis=0) * np.linalg.norm(a, axis=0) + tiny)
    if block.real:
        return one * shares[block] + 0j
    inner = np.sum(a.conj() * x, axis=0)
    return one * inner / (np.abs(inner) + tiny)

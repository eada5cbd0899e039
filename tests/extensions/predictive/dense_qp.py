"""Constrained LQR problems as dense quadratic programs, by NumPy and DAQP: they share no code with the package.

A problem is a dictionary: A, B, Q, R, x0, num_steps, and N, c, q, r, Qf, qf, C, D, u_last, soft, time_varying,
``u_limits`` and so on as :class:`predictive.Terms` and :class:`simulation.Limits` have them. Answers are judged by the
conditions of optimality, which prove a convex program's optimum; DAQP finds it without the states, where these do not
grow so much that numbers cancel.
"""

import dataclasses

import daqp
import numpy as np
import scipy.linalg


@dataclasses.dataclass(frozen=True)
class DenseQP:
    """½wᵀHw + fᵀw + constant for w = (us, xs[1:]) = Z us + z0, lower ≤ Fw ≤ upper; soft rows have a price.

    Attributes:
        rows: for each row of F what is limited, the step and the entry: ``("x", 4, 0)`` is the first entry of the
            fifth limit on states, ``xs[5, 0]``.
        soft: linear and quadratic price of what a soft row is exceeded by; None if all are hard.
        E: the dynamics, Ew = e.
    """

    H: np.ndarray
    f: np.ndarray
    constant: float
    Z: np.ndarray
    z0: np.ndarray
    E: np.ndarray
    e: np.ndarray
    F: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    rows: list
    soft: tuple | None
    x0: np.ndarray
    sizes: dict

    @property
    def num_inputs(self):
        """Number of entries of all inputs."""
        return self.Z.shape[1]

    @property
    def softened(self):
        """Rows that may be exceeded."""
        return np.array([self.soft is not None and kind in ("x", "y") for kind, *_ in self.rows], bool)

    def stacked(self, us):
        """``w`` of inputs: the states follow step by step."""
        us, nu = np.ravel(us), self.num_inputs
        xs = scipy.linalg.solve_triangular(
            self.E[:, nu:], self.e - self.E[:, :nu] @ us, lower=True, unit_diagonal=True, check_finite=False
        )
        return np.concatenate([us, xs])

    def cost(self, w):
        """Cost of inputs and states, soft limits included."""
        beyond = np.abs(_beyond(self, w)[self.softened])
        linear, quadratic = self.soft or (0, 0)
        return w @ self.H @ w / 2 + self.f @ w + self.constant + np.sum(linear * beyond + quadratic * beyond**2)

    def flat(self, multipliers):
        """A multiplier for each row, from arrays ``[T, size]`` of each kind of limit; kinds may be left out."""
        return np.array([multipliers[kind][t, i] if kind in multipliers else 0.0 for kind, t, i in self.rows])


def build(
    A, B, Q, R, x0, num_steps, *, N=None, c=None, q=None, r=None, Qf=None, qf=None, u_limits=None, x_limits=None,
    C=None, D=None, y_limits=None, du_limits=None, u_last=None, time_varying=False, soft=None,
):  # fmt: skip
    """Build the dense program of one problem; the terminal weight is Q (of the last step) if left out."""
    T, x0 = num_steps, np.asarray(x0, float)
    n, m = np.shape(B)[-2:]

    def steps(a, *shape):
        return np.broadcast_to(np.zeros(shape) if a is None else np.asarray(a, float), (T, *shape))

    if not time_varying:
        A, B, Q, R, N, C, D, c, q, r = (
            None if a is None else np.asarray(a)[None] for a in (A, B, Q, R, N, C, D, c, q, r)
        )
    p = 0 if C is None else np.shape(C)[-2]
    A, B, Q, R, N = steps(A, n, n), steps(B, n, m), steps(Q, n, n), steps(R, m, m), steps(N, n, m)
    c, q, r = steps(c, n), steps(q, n), steps(r, m)
    Qf, qf = Q[-1] if Qf is None else np.asarray(Qf, float), np.zeros(n) if qf is None else np.asarray(qf, float)

    size = T * (m + n)
    U = [slice(t * m, (t + 1) * m) for t in range(T)]
    X = [None, *(slice(T * m + t * n, T * m + (t + 1) * n) for t in range(T))]  # x[0] is no unknown
    H, f = np.zeros((size, size)), np.zeros(size)
    E, e = np.zeros((T * n, size)), np.zeros(T * n)
    for t in range(T):
        now, here = slice(t * n, (t + 1) * n), X[t + 1]
        H[U[t], U[t]], f[U[t]] = 2 * R[t], 2 * r[t]
        E[now, here], E[now, U[t]], e[now] = np.eye(n), -B[t], c[t]
        if t:
            H[X[t], X[t]], f[X[t]] = 2 * Q[t], 2 * q[t]
            H[X[t], U[t]], H[U[t], X[t]] = 2 * N[t], 2 * N[t].T
            E[now, X[t]] = -A[t]
        else:
            f[U[0]] += 2 * N[0].T @ x0
            e[now] += A[0] @ x0
    H[X[T], X[T]], f[X[T]] = 2 * Qf, 2 * qf
    H = (H + H.T) / 2
    constant = x0 @ Q[0] @ x0 + 2 * q[0] @ x0
    Z, z0 = np.eye(size, T * m), np.zeros(size)  # the states follow from the inputs, step by step
    for t in range(T):
        Z[X[t + 1]], z0[X[t + 1]] = B[t] @ Z[U[t]], c[t]
        if t:
            Z[X[t + 1]] += A[t] @ Z[X[t]]
        z0[X[t + 1]] += A[t] @ (z0[X[t]] if t else x0)

    rows, F, lower, upper = [], [], [], []

    def limit(kind, given, width, blocks):
        """Rows of a kind of limit; ``blocks`` gives a step's pairs of a slice of w and its matrix, and an offset."""
        for t, (low, high) in enumerate(zip(*_limits(given, T, width))):
            parts, offset = blocks(t)
            if parts is None:
                continue
            block = np.zeros((width, size))
            for where, matrix in parts:
                block[:, where] += matrix
            for i in np.flatnonzero(np.isfinite(low) | np.isfinite(high)):
                rows.append((kind, t, int(i)))
                F.append(block[i])
                lower.append(low[i] - offset[i])
                upper.append(high[i] - offset[i])

    def output(t):
        if D is None:
            return [(X[t + 1], Cs[t])], np.zeros(p)
        return [(U[t], Ds[t]), *([(X[t], Cs[t])] if t else [])], np.zeros(p) if t else Cs[0] @ x0

    def difference(t):
        if t:
            return [(U[t], np.eye(m)), (U[t - 1], -np.eye(m))], np.zeros(m)
        return (None, None) if u_last is None else ([(U[0], np.eye(m))], -np.broadcast_to(np.asarray(u_last, float), m))

    limit("u", u_limits, m, lambda t: ([(U[t], np.eye(m))], np.zeros(m)))
    limit("x", x_limits, n, lambda t: ([(X[t + 1], np.eye(n))], np.zeros(n)))
    if y_limits is not None:
        Cs, Ds = steps(C, p, n), None if D is None else steps(D, p, m)
        limit("y", y_limits, p, output)
    limit("du", du_limits, m, difference)
    F, lower, upper = np.reshape(F, (-1, size)), np.array(lower, float), np.array(upper, float)
    sizes = {"T": T, "u": m, "x": n, "y": p, "du": m}
    return DenseQP(H, f, constant, Z, z0, E, e, F, lower, upper, rows, soft, x0, sizes)


def _limits(given, T, width):
    low, high = (None, None) if given is None else given
    low, high = (edge if a is None else np.asarray(a, float) for a, edge in ((low, -np.inf), (high, np.inf)))
    return np.broadcast_to(low, (T, width)), np.broadcast_to(high, (T, width))


# Solutions ---------------------------------------------------------------------------------------------------------


def by_daqp(qp):
    """Inputs and cost; None and infinity if DAQP finds none. Its unknowns are the inputs and what soft rows exceed."""
    edges = ((1, qp.upper), (-1, qp.lower))
    sides = [(k, sign) for k in np.flatnonzero(qp.softened) for sign, edge in edges if np.isfinite(edge[k])]
    nu, ne = qp.num_inputs, len(sides)
    linear, quadratic = qp.soft or (0, 0)
    H = scipy.linalg.block_diag(qp.Z.T @ qp.H @ qp.Z, 2 * quadratic * np.eye(ne))
    f = np.concatenate([qp.Z.T @ (qp.H @ qp.z0 + qp.f), np.full(ne, float(linear))])
    G = np.hstack([qp.F @ qp.Z, np.zeros((len(qp.F), ne))])
    for j, (k, sign) in enumerate(sides):
        G[k, nu + j] = -sign
    offset = qp.F @ qp.z0
    lower = np.concatenate([np.full(nu, -np.inf), np.zeros(ne), qp.lower - offset])  # first those of the unknowns
    upper = np.concatenate([np.full(nu + ne, np.inf), qp.upper - offset])
    for tolerance in (1e-12, 1e-10, 1e-8):  # looser ones are for programs where rounding makes it cycle
        z, _, flag, _ = daqp.solve(
            H, f, G, upper, lower, np.zeros(len(upper), np.int32), primal_tol=tolerance, dual_tol=1e-12
        )
        if flag == 1:
            return z[:nu].reshape(-1, qp.sizes["u"]), qp.cost(qp.stacked(z[:nu]))
    return None, np.inf


# Judgements ----------------------------------------------------------------------------------------------------------


def kkt_residual(qp, us, multipliers, xs):
    """Largest relative violation of the optimality conditions by inputs, multipliers and states.

    Multipliers are arrays ``[T, size]`` by kind of limit: by how much the cost falls for each unit by which a limit is
    wider, positive at an upper limit, negative at a lower one, zero inside.
    Stationarity is that of inputs and states, with the costates that leave least: in the inputs alone the rounding of
    an unstable plant's states would be multiplied by ρ^T once more. It is relative to its largest term, limits to the
    largest limit or value of their kind, slackness to the largest term of the cost.
    """
    w = np.concatenate([np.ravel(us), np.ravel(np.asarray(xs)[1:])])
    flat, soft = qp.flat(multipliers), qp.softened
    parts = [qp.H @ w, qp.f, qp.F.T @ flat]
    parts.append(qp.E.T @ _costates(qp.E, -sum(parts)))
    stationarity = _ratio(np.abs(sum(parts)).max(), max(np.abs(part).max() for part in parts))
    dynamics = _ratio(np.abs(qp.E @ w - qp.e).max(), max(np.abs(w).max(), np.abs(qp.e).max()))
    value, scale = qp.F @ w, _scales(qp, w)
    beyond = _beyond(qp, w)
    primal = max((np.abs(beyond) / scale)[~soft], default=0.0)
    largest = np.abs(flat).max(initial=0)
    wrong = np.where(flat > 0, ~np.isfinite(qp.upper), ~np.isfinite(qp.lower)) & (flat != 0)
    dual = _ratio(np.abs(flat[wrong]).max(initial=0), largest)
    costs = max(np.abs(w * (qp.H @ w)).max(), np.abs(qp.f * w).max(), abs(qp.constant))
    room = np.where(flat > 0, qp.upper - value, value - qp.lower)  # of the side that the multiplier is for
    room = np.where(wrong | (flat == 0), 0, room)
    if qp.soft is not None:
        linear, quadratic = qp.soft
        room = np.where(soft, np.maximum(room, 0), room)  # beyond a soft limit its price is the condition
        price = linear + 2 * quadratic * np.abs(beyond)
        # on the limit the price jumps from 0 to the linear one
        below = np.where(np.abs(beyond) > 1e-12 * scale, price - flat * np.sign(beyond), 0)
        dual = max(dual, _ratio(np.maximum(below, np.abs(flat) - price)[soft].max(initial=0), max(largest, linear)))
    slackness = _ratio(np.abs(flat * room).max(initial=0), costs)
    return float(max(stationarity, dynamics, primal, dual, slackness))


def _costates(E, right):
    """Least squares for Eᵀp = right by normal equations, refined."""
    factor, p = scipy.linalg.cho_factor(E @ E.T, check_finite=False), np.zeros(len(E))
    for _ in range(3):
        p += scipy.linalg.cho_solve(factor, E @ (right - E.T @ p), check_finite=False)
    return p


def _beyond(qp, w):
    value = qp.F @ w
    return np.maximum(value - qp.upper, 0) - np.maximum(qp.lower - value, 0)


def _ratio(a, b):
    return float(a / b) if b > 0 else float(a > 0)


def _scales(qp, w):
    """For each row the largest finite limit or value of its kind."""
    value, kinds = np.abs(qp.F @ w), np.array([kind for kind, *_ in qp.rows])
    edges = [np.where(np.isfinite(edge), np.abs(edge), 0) for edge in (qp.lower, qp.upper)]
    each = np.max([value, *edges], axis=0) if len(kinds) else value
    return np.array([max(each[kinds == kind].max(), 1e-300) for kind in kinds])


def proves_infeasible(qp, multipliers, tolerance=1e-9):
    """Whether multipliers are a certificate: weighted with them the hard limits say 0·u ≤ something negative.

    A weight of inputs that is not quite 0 is made up for by the inputs' own limits.
    """
    flat = np.where(qp.softened, 0, qp.flat(multipliers))
    edge = np.where(flat > 0, qp.upper, np.where(flat < 0, qp.lower, 0))
    if not np.all(np.isfinite(edge)) or not flat.any():
        return False
    weight, nu = qp.F.T @ flat, qp.num_inputs
    costates = -scipy.linalg.solve_triangular(qp.E[:, nu:], weight[nu:], trans="T", lower=True, unit_diagonal=True)
    reach = np.full(nu, np.inf)
    for (kind, t, i), low, high in zip(qp.rows, qp.lower, qp.upper):
        if kind == "u":
            reach[t * qp.sizes["u"] + i] = max(abs(low), abs(high))
    parts = weight[:nu], qp.E[:, :nu].T @ costates
    left = np.abs(sum(parts))
    if np.any((left > tolerance * max(np.abs(part).max() for part in parts)) & np.isinf(reach)):
        return False
    terms = np.concatenate([flat * edge, costates * qp.e, [left[np.isfinite(reach)] @ reach[np.isfinite(reach)]]])
    return bool(terms.sum() < -tolerance * np.abs(terms).max())


# Problems ------------------------------------------------------------------------------------------------------------


def random_problem(rng, has, shape):
    """A random problem of ``shape`` (n, m, T) that has these features.

    Limits are drawn around a path of random inputs within theirs, so the problem is feasible, unless it is ``tight``:
    those limits are then 0.1 to 0.95 times as wide.
    """
    (n, m, T), p, steps = shape, 2, (shape[2],) if "time_varying" in has else ()
    A = rng.normal(size=(*steps, n, n))
    size = np.abs(np.linalg.eigvals(A)).max(-1) if not steps else np.linalg.norm(A, 2, axis=(-2, -1))
    A *= (rng.uniform(1.0, 1.3) if "unstable" in has else rng.uniform(0.3, 1.0)) / size[..., None, None]
    W = rng.normal(size=(*steps, n + m, n + m)) / np.sqrt(n + m)
    W = W @ np.swapaxes(W, -1, -2) + 0.01 * np.eye(n + m)
    Wf = rng.normal(size=(n, n))
    problem = {
        "A": A, "B": rng.normal(size=(*steps, n, m)), "Q": W[..., :n, :n], "R": W[..., n:, n:],
        "x0": 10 ** rng.uniform(-0.3, 1) * rng.normal(size=n), "num_steps": T, "Qf": Wf @ Wf.T,
    }  # fmt: skip
    if steps:
        problem["time_varying"] = True
    if "N" in has:
        problem["N"] = W[..., :n, n:]
    if "linear" in has:
        problem |= {name: 0.3 * rng.normal(size=(*steps, s)) for name, s in (("c", n), ("q", n), ("r", m))}
        problem["qf"] = rng.normal(size=n)
    return problem | _random_limits(rng, has, problem, p)


def _random_limits(rng, has, problem, p):
    T, B, given = problem["num_steps"], problem["B"], {}
    n, m = B.shape[-2:]
    wide = rng.uniform(0.2, 1.5, m)
    low, high = -wide * rng.uniform(0.5, 1, m), wide
    us = rng.uniform(low, high, (T, m))
    if "du" in has:
        rate, last = rng.uniform(0.1, 0.6, m) * wide, rng.uniform(low, high)
        for t in range(T):
            last = us[t] = np.clip(us[t], np.maximum(low, last - rate), np.minimum(high, last + rate))
            if not t and "u_last" in has:
                given["u_last"] = us[0] - rng.uniform(-rate, rate)
        given["du_limits"] = (-rate, rate)
    if "free" not in has:
        given["u_limits"] = (low, high)
    each = {name: np.broadcast_to(problem.get(name, 0.0), (T, *s)) for name, s in
            (("A", (n, n)), ("B", (n, m)), ("c", (n,)))}  # fmt: skip
    xs = [problem["x0"]]
    for t in range(T):
        xs.append(each["A"][t] @ xs[-1] + each["B"][t] @ us[t] + each["c"][t])
    xs = np.array(xs)
    if "x" in has:
        given["x_limits"] = _around(rng, has, xs[1:])
    if "y" in has:
        steps = (T,) if "time_varying" in problem else ()
        given["C"] = rng.normal(size=(*steps, p, n))
        C = np.broadcast_to(given["C"], (T, p, n))
        ys = np.einsum("tij,tj->ti", C, xs[:-1] if "D" in has else xs[1:])
        if "D" in has:
            given["D"] = rng.normal(size=(*steps, p, m))
            ys = ys + np.einsum("tij,tj->ti", np.broadcast_to(given["D"], (T, p, m)), us)
        given["y_limits"] = _around(rng, has, ys)
    if "soft" in has:
        linear, quadratic = 10 ** rng.uniform(-1, 2, 2)
        given["soft"] = [(linear, quadratic), (0.0, quadratic), (linear, 0.0)][rng.choice(3, p=[0.6, 0.2, 0.2])]
    return given


def _around(rng, has, path):
    """Limits that a path keeps; tighter ones that it does not, one-sided ones and none."""
    scale = np.abs(path).max(0) + 0.1
    high, low = path + rng.uniform(0.02, 0.5) * scale, path - rng.uniform(0.02, 0.5) * scale
    if "per_step" not in has:
        high, low = high.max(0), low.min(0)
    if "tight" in has:
        middle, half = (high + low) / 2, (high - low) / 2 * rng.uniform(0.1, 0.95)
        high, low = middle + half, middle - half
    if "one_sided" in has:
        high = np.where(rng.random(high.shape[-1]) < 0.4, np.inf, high)
        low = np.where(rng.random(low.shape[-1]) < 0.4, -np.inf, low)
    return low, high

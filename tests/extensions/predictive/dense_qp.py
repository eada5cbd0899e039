"""Constrained LQR problems as dense quadratic programs in the inputs, by NumPy and DAQP: no code of the package.

A problem is a dictionary: A, B, Q, R, x0, num_steps, and N, c, q, r, Qf, qf, C, D, u_last, soft, time_varying,
``u_limits`` and so on as :class:`predictive.Terms` and :class:`simulation.Limits` have them. DAQP finds the optimum;
the conditions of optimality prove it.
"""

import dataclasses
from types import SimpleNamespace

import daqp
import numpy as np
import scipy.linalg


@dataclasses.dataclass(frozen=True)
class DenseQP:
    """½uᵀHu + fᵀu + constant for all inputs u, lower ≤ Gu + g ≤ upper; soft rows have a price.

    Attributes:
        kinds: of the limited value of each row; those without a limit are left out, see ``limited``.
        soft: linear and quadratic price of what a row of "x" or "y" is exceeded by; None if all are hard.
        steps: the problem's arrays ``[T, ...]`` by name.
    """

    H: np.ndarray
    f: np.ndarray
    constant: float
    G: np.ndarray
    g: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    kinds: np.ndarray
    limited: np.ndarray
    sizes: dict
    soft: tuple | None
    steps: SimpleNamespace

    @property
    def softened(self):
        """Rows that may be exceeded."""
        return np.isin(self.kinds, ("x", "y")) & (self.soft is not None)

    def cost(self, us):
        """Cost of inputs, soft limits included."""
        us = np.ravel(us)
        beyond = np.abs(self.beyond(self.G @ us + self.g)[self.softened])
        linear, quadratic = self.soft or (0, 0)
        return us @ self.H @ us / 2 + self.f @ us + self.constant + np.sum(linear * beyond + quadratic * beyond**2)

    def beyond(self, values):
        """By how much limits are exceeded, below zero at a lower one."""
        return np.maximum(values - self.upper, 0) - np.maximum(self.lower - values, 0)

    def flat(self, multipliers):
        """A multiplier for each row."""
        return np.concatenate([np.ravel(getattr(multipliers, kind)) for kind in self.sizes])[self.limited]


def build(A, B, Q, R, x0, num_steps, *, time_varying=False, u_last=None, soft=None, **given):
    """The dense program of one problem, by its paths from each single input; Qf is Q (of the last step) if left out."""
    T, (n, m) = num_steps, np.shape(B)[-2:]
    p = np.shape(given.get("C", np.zeros((0, n))))[-2]
    shapes = {"N": (n, m), "c": (n,), "q": (n,), "r": (m,), "C": (p, n), "D": (p, m)}
    shapes |= {"A": (n, n), "B": (n, m), "Q": (n, n), "R": (m, m)}
    arrays = given | {"A": A, "B": B, "Q": Q, "R": R}
    s = SimpleNamespace(T=T, x0=np.asarray(x0, float))
    for name, shape in shapes.items():
        setattr(s, name, np.broadcast_to(np.asarray(arrays.get(name, np.zeros(shape)), float), (T, *shape)))
    s.Qf, s.qf = (np.asarray(given.get(name, other), float) for name, other in (("Qf", s.Q[-1]), ("qf", np.zeros(n))))

    us = np.concatenate([np.zeros((1, T, m)), np.eye(T * m).reshape(-1, T, m)])
    xs = _paths(s, us)
    z = np.concatenate([xs[:, :-1], us], axis=-1)
    W = np.block([[s.Q, s.N], [np.swapaxes(s.N, 1, 2), s.R]])
    w, last, Z, X = np.concatenate([s.q, s.r], axis=-1), xs[0, -1], z[1:] - z[0], xs[1:, -1] - xs[0, -1]
    H = 2 * (np.einsum("atz,tzy,bty->ab", Z, W, Z) + X @ s.Qf @ X.T)
    along = np.einsum("tzy,ty->tz", W, z[0])
    f = 2 * (np.einsum("atz,tz->a", Z, along + w) + X @ (s.Qf @ last + s.qf))
    constant = np.sum(z[0] * (along + 2 * w)) + last @ (s.Qf @ last + 2 * s.qf)

    before = np.concatenate([np.zeros((len(us), 1, m)) + (0.0 if u_last is None else u_last), us[:, :-1]], axis=1)
    outputs = np.einsum("tpn,ktn->ktp", s.C, xs[:, :-1] if "D" in given else xs[:, 1:]) + np.einsum(
        "tpm,ktm->ktp", s.D, us
    )
    values = {"u": us, "x": xs[:, 1:], "y": outputs, "du": us - before}
    values = {kind: v for kind, v in values.items() if kind == "u" or f"{kind}_limits" in given}
    sizes = {kind: v.shape[-1] for kind, v in values.items()}
    edges = []
    for side, none in enumerate((-np.inf, np.inf)):
        each = [given.get(f"{kind}_limits", (-np.inf, np.inf))[side] for kind in sizes]
        each = [np.array(np.broadcast_to(a, (T, size)), float) for a, size in zip(each, sizes.values())]
        if "du" in sizes and u_last is None:  # the first change is free
            each[-1][0] = none
        edges.append(np.concatenate([a.ravel() for a in each]))
    lower, upper = edges
    limited = np.isfinite(lower) | np.isfinite(upper)
    flat = np.concatenate([v.reshape(len(us), -1) for v in values.values()], axis=1)[:, limited]
    kinds = np.repeat(list(sizes), [T * size for size in sizes.values()])[limited]
    G, g = (flat[1:] - flat[0]).T, flat[0]
    return DenseQP(H, f, constant, G, g, lower[limited], upper[limited], kinds, limited, sizes, soft, s)


def _paths(s, us):
    """States ``[k, T + 1, n]`` under inputs ``[k, T, m]``."""
    xs = [np.broadcast_to(s.x0, (len(us), len(s.x0)))]
    for A, B, c, u in zip(s.A, s.B, s.c, np.swapaxes(us, 0, 1)):
        xs.append(xs[-1] @ A.T + u @ B.T + c)
    return np.stack(xs, axis=1)


# Solutions ---------------------------------------------------------------------------------------------------------


def by_daqp(qp):
    """Inputs and cost; None and infinity if DAQP finds none. Its unknowns are the inputs and what soft rows exceed."""
    edges = ((1, qp.upper), (-1, qp.lower))
    sides = [(k, sign) for k in np.flatnonzero(qp.softened) for sign, edge in edges if np.isfinite(edge[k])]
    nu, ne = len(qp.f), len(sides)
    linear, quadratic = qp.soft or (0, 0)
    H = scipy.linalg.block_diag(qp.H, 2 * quadratic * np.eye(ne))
    f = np.concatenate([qp.f, np.full(ne, float(linear))])
    G = np.hstack([qp.G, np.zeros((len(qp.G), ne))])
    for j, (k, sign) in enumerate(sides):
        G[k, nu + j] = -sign
    lower = np.concatenate([np.full(nu, -np.inf), np.zeros(ne), qp.lower - qp.g])  # first those of the unknowns
    upper = np.concatenate([np.full(nu + ne, np.inf), qp.upper - qp.g])
    for tolerance in (1e-12, 1e-10, 1e-8):  # looser ones are for programs where rounding makes it cycle
        z, _, flag, _ = daqp.solve(
            H, f, G, upper, lower, np.zeros(len(upper), np.int32), primal_tol=tolerance, dual_tol=1e-12
        )
        if flag == 1:
            return z[:nu].reshape(qp.steps.T, -1), qp.cost(z[:nu])
    return None, np.inf


# Judgements ----------------------------------------------------------------------------------------------------------


def kkt_residual(qp, found):
    """Largest relative violation of the optimality conditions by one answer's inputs, states and multipliers.

    A multiplier is what the cost falls by for each unit by which a limit is wider, positive at an upper limit, negative
    at a lower one, zero inside. Stationarity is relative to its largest term, limits to the largest limit or value of
    their kind, slackness to the largest term of the cost.
    """
    us, flat, soft = np.ravel(found.us), qp.flat(found.multipliers), qp.softened
    parts = qp.H @ us, qp.f, flat @ qp.G
    stationarity = _ratio(np.abs(sum(parts)).max(), max(np.abs(part).max() for part in parts))
    xs = _paths(qp.steps, np.asarray(found.us)[None])[0]
    dynamics = _ratio(np.abs(xs - found.xs).max(), np.abs(xs).max())
    value = qp.G @ us + qp.g
    sizes = np.max([np.abs(value), *(np.where(np.isfinite(a), np.abs(a), 0) for a in (qp.lower, qp.upper))], axis=0)
    scale = np.array([max(sizes[qp.kinds == kind].max(), 1e-300) for kind in qp.kinds])
    beyond = qp.beyond(value)
    primal = max((np.abs(beyond) / scale)[~soft], default=0.0)
    largest = np.abs(flat).max(initial=0)
    wrong = np.where(flat > 0, ~np.isfinite(qp.upper), ~np.isfinite(qp.lower)) & (flat != 0)
    dual = _ratio(np.abs(flat[wrong]).max(initial=0), largest)
    room = np.where(flat > 0, qp.upper - value, value - qp.lower)  # of the side that the multiplier is for
    room = np.where(wrong | (flat == 0), 0, room)
    if qp.soft is not None:
        linear, quadratic = qp.soft
        room = np.where(soft, np.maximum(room, 0), room)  # beyond a soft limit its price is the condition
        price = linear + 2 * quadratic * np.abs(beyond)
        # on the limit the price jumps from 0 to the linear one
        below = np.where(np.abs(beyond) > 1e-12 * scale, price - flat * np.sign(beyond), 0)
        dual = max(dual, _ratio(np.maximum(below, np.abs(flat) - price)[soft].max(initial=0), max(largest, linear)))
    costs = max(np.abs(us * parts[0]).max(), np.abs(us * qp.f).max(), abs(qp.constant))
    return float(max(stationarity, dynamics, primal, dual, _ratio(np.abs(flat * room).max(initial=0), costs)))


def _ratio(a, b):
    return float(a / b) if b > 0 else float(a > 0)


def proves_infeasible(qp, multipliers, tolerance=1e-9):
    """Whether multipliers are a certificate: no inputs within finite limits have Σ multiplier · (value − limit) ≤ 0."""
    flat = np.where(qp.softened | (qp.kinds == "u"), 0, qp.flat(multipliers))
    edge = np.where(flat > 0, qp.upper, np.where(flat < 0, qp.lower, 0))
    if not np.all(np.isfinite(edge)) or not flat.any():
        return False
    weight, inputs = flat @ qp.G, qp.kinds == "u"
    least = np.minimum(weight * qp.lower[inputs], weight * qp.upper[inputs])
    terms = np.concatenate([flat * qp.g, -flat * edge, least])
    return bool(terms.sum() > tolerance * np.abs(terms).max())


# Problems ------------------------------------------------------------------------------------------------------------


def random_problem(rng, has, shape):
    """A random problem of ``shape`` (n, m, T) that has these features, with all terms and limits of each step.

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
    problem["N"] = W[..., :n, n:] * ("N" in has)
    for name, s in (("c", n), ("q", n), ("r", m)):
        problem[name] = 0.3 * rng.normal(size=(*steps, s)) if "linear" in has else np.zeros((*steps, s))
    problem["qf"] = rng.normal(size=n) if "linear" in has else np.zeros(n)
    limits = _random_limits(rng, has, problem, p)
    sizes = {"u_limits": m, "x_limits": n, "y_limits": p, "du_limits": m}
    for name in sizes.keys() & limits.keys():
        limits[name] = tuple(np.array(np.broadcast_to(a, (T, sizes[name]))) for a in limits[name])
    return problem | limits


def _random_limits(rng, has, problem, p):
    T, m, n, given = problem["num_steps"], len(problem["r"].T), len(problem["x0"]), {}
    steps = (T,) if "time_varying" in problem else ()
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
    given["u_limits"] = (-np.inf, np.inf) if "free" in has else (low, high)
    each = {name: np.broadcast_to(problem[name], (T, *problem[name].shape[len(steps) :])) for name in "ABc"}
    xs = _paths(SimpleNamespace(x0=problem["x0"], **each), us[None])[0]
    if "x" in has:
        given["x_limits"] = _around(rng, has, xs[1:])
    if "y" in has:
        given["C"] = rng.normal(size=(*steps, p, n))
        ys = np.squeeze(given["C"] @ (xs[:-1] if "D" in has else xs[1:])[..., None], -1)
        if "D" in has:
            given["D"] = rng.normal(size=(*steps, p, m))
            ys = ys + np.squeeze(given["D"] @ us[..., None], -1)
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

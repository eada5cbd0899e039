"""H∞ and H2 designs, and µ, next to python-control with slycot: answers, refusals, loops, promises, times.

slycot runs in a process of its own, which is ended after three seconds: SB10AD does not return from some plants. For
discrete H∞ it is a bisection over SB10DD, for python-control takes each plant as a continuous one.
"""

import dataclasses
import multiprocessing
import time
import types
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import scipy.linalg

from benchmarks.measurement import Parts, Row, main, row
from lqrlab import control, robust

KINDS = (
    "regular",
    "D11 ≠ 0",
    "D11, D22 ≠ 0",
    "singular D12",
    "singular D21",
    "D12 = 0, D21 = 0",
    "integrators",
    "discrete",
    "not stabilizable",
)
_PATIENCE = 3.0  # s
_ROUNDING = 1e-4  # a norm so little above what was promised, relative, is not held against it
Given = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int, float | None]


def plant(kind: str, rng: np.random.Generator) -> Given:
    """A random plant, often unstable: A, B, C, D, nmeas, ncon, dt."""
    n, z, w = rng.integers(2, 11), 3, 3
    nmeas, ncon = rng.integers(1, 3, 2)
    A, B, C = rng.normal(size=(n, n)), rng.normal(size=(n, w + ncon)), rng.normal(size=(z + nmeas, n))
    D = rng.normal(size=(z + nmeas, w + ncon))
    if kind not in ("D11 ≠ 0", "D11, D22 ≠ 0", "discrete"):
        D[:z, :w] = 0
    if kind not in ("D11, D22 ≠ 0", "discrete"):
        D[z:, w:] = 0
    if kind in ("singular D12", "D12 = 0, D21 = 0"):
        D[:z, w:] *= 0 if kind.startswith("D12") else (np.arange(ncon) > 0)
    if kind in ("singular D21", "D12 = 0, D21 = 0"):
        D[z:, :w] *= 0 if kind.startswith("D12") else (np.arange(nmeas) > 0)[:, None]
    if kind == "integrators":  # of the plant, which no disturbance moves: all of those are at the outputs
        turning = [[0.0, 3.0], [-3.0, 0.0]]
        rest = -np.diag(rng.uniform(0.5, 2, n - 1))
        A = scipy.linalg.block_diag(0.0, *([turning] if n > 3 else []), rest)[:n, :n]
        A[1:, 0] = rng.normal(size=n - 1)
        B[:, :w] = 0
    if kind == "not stabilizable":
        T = rng.normal(size=(n, n))
        A = T @ scipy.linalg.block_diag(rng.uniform(0, 1), A[1:, 1:]) @ np.linalg.inv(T)
        if rng.random() < 0.5:
            B[:, w:] = T[:, 1:] @ rng.normal(size=(n - 1, ncon))
        else:
            C[z:] = rng.normal(size=(nmeas, n - 1)) @ np.linalg.inv(T)[1:]
    dt = 0.1 if kind == "discrete" else None
    return A, B, C, D, int(nmeas), int(ncon), dt


def loop(given: Given, K: Any) -> tuple[np.ndarray, ...]:
    """From w to z with u = K y."""
    A, B, C, D, nmeas, ncon, _ = given
    z, w, k = len(C) - nmeas, B.shape[1] - ncon, len(K.A)
    left = np.linalg.inv(np.block([[np.eye(nmeas), -D[z:, w:]], [-K.D, np.eye(ncon)]]))
    states = left @ scipy.linalg.block_diag(C[z:], K.C)
    enters = left @ np.vstack([D[z:, :w], np.zeros((ncon, w))])
    act = scipy.linalg.block_diag(B[:, w:], K.B)[:, np.r_[ncon : ncon + nmeas, :ncon]]
    a = scipy.linalg.block_diag(A, K.A) + act @ states
    b = np.vstack([B[:, :w], np.zeros((k, w))]) + act @ enters
    c = np.hstack([C[:z], np.zeros((z, k))]) + D[:z, w:] @ states[nmeas:]
    return a, b, c, D[:z, :w] + D[:z, w:] @ enters[nmeas:]


def norm(given: Given, K: Any, which: str) -> float:
    """That of the loop from w to z, infinite if it is not stable."""
    dt = given[-1]
    try:
        a, b, c, d = loop(given, K)
        if which == "hinf":
            return control.hinf_norm(a, b, c, d, dt)[0]
        decays = np.linalg.eigvals(a)
        if (decays.real.max() if dt is None else np.abs(decays).max() - 1) >= 0 or (
            dt is None and np.abs(d).max() > 1e-6
        ):
            return np.inf
        a, (x, _) = scipy.linalg.matrix_balance(a, permute=False, separate=True)
        b, c = b / x[:, None], c * x
        if dt is None:
            gram = scipy.linalg.solve_continuous_lyapunov(a, -b @ b.T)
        else:
            gram = scipy.linalg.solve_discrete_lyapunov(a, b @ b.T)
        square = np.trace(c @ gram @ c.T) + (0.0 if dt is None else np.sum(d**2))
        return max(float(square), 0.0) ** 0.5
    except (ValueError, np.linalg.LinAlgError):
        return np.inf


def by_slycot(given: Given, which: str) -> tuple[Any, float]:
    """The controller and what is promised, as a user of python-control gets them."""
    import control as python_control
    import slycot

    A, B, C, D, nmeas, ncon, dt = given
    if which == "h2":  # promises nothing, and takes neither D22 nor discrete plants
        K = python_control.h2syn(python_control.ss(A, B, C, D), nmeas, ncon)
        return K, np.inf
    if dt is None:
        K, _, gamma, _ = python_control.hinfsyn(python_control.ss(A, B, C, D), nmeas, ncon)
        return K, float(gamma)
    low, high, found = 0.0, 1e6, None
    near = 1 + 1e-3  # at the optimum itself its loops are not stable
    while high > low * (1 + 1e-4):
        middle = (low * high) ** 0.5 if low else high / 10
        try:
            slycot.sb10dd(len(A), B.shape[1], len(C), ncon, nmeas, middle, A, B, C, D)
            made = slycot.sb10dd(len(A), B.shape[1], len(C), ncon, nmeas, near * middle, A, B, C, D)
            high, found = middle, made
        except slycot.exceptions.SlycotError:
            low = middle
        if high < 1e-9:
            break
    if found is None:
        raise ValueError("no controller at γ = 1e6")
    return types.SimpleNamespace(**dict(zip("ABCD", found[1:5]))), near * high


def _serve(pipe: Connection) -> None:
    """Answer with slycot's designs and their times until the process is ended."""
    warnings.simplefilter("ignore")
    while True:
        given, which = pipe.recv()
        start = time.perf_counter()
        try:
            K, gamma = by_slycot(given, which)
            matrices = tuple(np.asarray(getattr(K, name)) for name in "ABCD")
            pipe.send((matrices, gamma, time.perf_counter() - start))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}", time.perf_counter() - start))


class Slycot:
    """slycot in a process that is started again where it crashed or did not answer."""

    def __init__(self) -> None:
        import control  # noqa: F401  (for the processes that are forked)
        import slycot  # noqa: F401

        self.process: Any = None

    def __call__(self, given: Given, which: str) -> tuple[Any, float | str, float]:
        """A, B, C, D, or None, with γ or the error's words, and the time [s]."""
        if self.process is None:
            context = multiprocessing.get_context("fork")  # imports take longer than designs
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=_serve, args=(other,), daemon=True)
            self.process.start()
            other.close()
        self.pipe.send((given, which))
        try:
            if self.pipe.poll(_PATIENCE):
                return self.pipe.recv()
        except EOFError:
            pass
        self.close()
        return None, "no answer", np.nan

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process = None


@dataclasses.dataclass
class Tally:
    """What became of the plants of one kind."""

    stable: int = 0
    unstable: int = 0
    reasons: int = 0
    without: int = 0
    exceeded: int = 0
    worse: int = 0
    times: list[float] = dataclasses.field(default_factory=list)


def _ours(given: Given, which: str) -> tuple[Any, float | str, float]:
    design = robust.hinfsyn if which == "hinf" else robust.h2syn
    start = time.perf_counter()
    try:
        d = design(*given)
        return d.controller, d.gamma, time.perf_counter() - start
    except ValueError as error:
        return None, str(error), time.perf_counter() - start


def bench(which: str, each: int) -> Iterator[Row]:
    """Rows of each kind, for lqrlab and slycot."""
    slycot = Slycot()
    for kind in KINDS:
        rng = np.random.default_rng(len(kind))
        tallies = {"lqrlab": Tally(), "slycot": Tally()}
        for _ in range(each):
            given = plant(kind, rng)
            if which == "h2" and given[-1] is None:
                given[3][: len(given[2]) - given[4], : given[1].shape[1] - given[5]] = 0  # white noise is not in z
            norms = {}
            for name, solve in (("lqrlab", _ours), ("slycot", slycot)):
                K, said, seconds = solve(given, which)
                tally = tallies[name]
                tally.times.append(seconds)
                if K is None:
                    # a mode, a level or a rank: more than that none was found
                    named = any(word in str(said) for word in ("mode at", "at γ =", "rank"))
                    tally.reasons, tally.without = tally.reasons + named, tally.without + (not named)
                    norms[name] = np.inf
                    continue
                K = types.SimpleNamespace(**dict(zip("ABCD", K))) if isinstance(K, tuple) else K
                norms[name] = found = norm(given, K, which)
                tally.stable += np.isfinite(found)
                tally.unstable += not np.isfinite(found)
                tally.exceeded += found > float(said) * (1 + _ROUNDING)
            for name, tally in tallies.items():
                tally.worse += norms[name] > min(norms.values()) * (1 + 1e-3)
        for name, tally in tallies.items():
            ours, head = name == "lqrlab", f"{which}, {kind}, {name}"
            yield row(f"{head}: stable loops", tally.stable, f"of {each}")
            yield row(f"{head}: unstable loops", tally.unstable, "", 0 if ours else None, least=False)
            yield row(f"{head}: norm above γ", tally.exceeded, "", 0 if ours else None, least=False)
            yield row(f"{head}: refused, with the reason", tally.reasons, "")
            yield row(f"{head}: refused, without, or no answer", tally.without, "", 0 if ours else None, least=False)
            yield row(f"{head}: worse than the other by 0.1 %", tally.worse, "")
            if np.isfinite(tally.times).any():
                yield row(
                    f"{head}: median time", 1e3 * np.nanmedian(tally.times), "ms", 50 if ours else None, least=False
                )
    slycot.close()


def bench_hinf(each: int = 8) -> Iterator[Row]:
    """H∞: each kind of plant, lqrlab and slycot in turn."""
    yield from bench("hinf", each)


def bench_h2(each: int = 8) -> Iterator[Row]:
    """H2: the same."""
    yield from bench("h2", each)


STRUCTURES: dict[str, tuple[list, list[int], list[int]]] = {
    "three complex scalars": ([1] * 3, [1] * 3, [2] * 3),
    "ten complex scalars": ([1] * 10, [1] * 10, [2] * 10),
    "full blocks of two, two and one": ([2, 2, 1], [2, 2, 1], [2] * 3),
    "three real, two complex scalars": ([-1] * 3 + [1] * 2, [1] * 5, [1] * 3 + [2] * 2),
}
"""Of uncertainty, for lqrlab, and as sizes and types for slycot."""


def bench_mu(number: int = 1000) -> Iterator[Row]:
    """Upper bounds of random matrices with slycot's AB13MD in a loop, and both of lqrlab's in one call."""
    import slycot

    rng = np.random.default_rng(0)
    for name, (blocks, sizes, kinds) in STRUCTURES.items():
        n = sum(sizes)
        M = rng.normal(size=(number, n, n)) + 1j * rng.normal(size=(number, n, n))
        start = time.perf_counter()
        found = robust.mu(M, blocks)
        middle = time.perf_counter()
        some = M[: max(number // 10, 1)]
        theirs = np.array([slycot.ab13md(m, np.array(sizes), np.array(kinds))[0] for m in some])
        ours, loop = (middle - start) / number, (time.perf_counter() - middle) / len(some)
        above = found.upper[: len(some)] / theirs - 1
        yield row(f"µ, {name}: matrices per second over slycot's", loop / ours, "×", 50)
        yield row(f"µ, {name}: largest upper bound over slycot's", 100 * above.max(), "%", 0.1, least=False)
        yield row(f"µ, {name}: least upper bound over slycot's", 100 * above.min(), "%")
        yield row(f"µ, {name}: lower over upper bound, median", float(np.median(found.lower / found.upper)), "")


PARTS: Parts = {"hinf": (bench_hinf, {"each": 1}), "h2": (bench_h2, {"each": 1}), "mu": (bench_mu, {"number": 10})}

if __name__ == "__main__":
    main(PARTS)

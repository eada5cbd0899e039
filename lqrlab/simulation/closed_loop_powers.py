"""Many loops of one linear plant under one gain: whole trajectories as powers of the closed loop, by NumPy's BLAS.

Measured on 2 cores (``python -m benchmarks.simulation``, one plant for all): about twice as fast as the batch-last
engine at 4 and at 12 states. Nothing is compiled.
"""

import numpy as np
from jaxtyping import Float

from lqrlab.compute.threads import aligned, on_threads
from lqrlab.control import Sampled, stage_weight
from lqrlab.simulation.constant_gain import Loops

_ENTRIES, _LOOPS = 64_000, 1600  # of matrices in a piece, which stay in the cache; loops in a piece, at most
_SAMPLES = 200  # that one product makes
_MULTIPLICATIONS = 260_000  # in one product: above, OpenBLAS starts threads beside those of this subpackage


def simulate(
    loops: Loops, x0: Float[np.ndarray, "loops n"], num_steps: int, keep: tuple[str, ...]
) -> dict[str, np.ndarray] | None:
    """``xs``, ``us``, ``costs`` as far as they are kept, of loops of one plant that nothing disturbs or limits.

    None where a power of F = A − BK overflows, which a state need not do.
    """
    assert isinstance(loops.model, Sampled)
    A, B, Q, R, N, K = (np.asarray(a)[0] for a in (*loops.model, loops.K.astype(loops.model.A.dtype)))
    with np.errstate(over="ignore", invalid="ignore"):
        factor = _powers(A - B @ K, min(num_steps, _SAMPLES)).astype(x0.dtype)
    if not np.isfinite(factor).all():
        return None
    count, n = x0.shape
    sizes = {"xs": (num_steps + 1, n), "us": (num_steps, len(K)), "costs": (num_steps,)}
    result = {name: aligned((count, *sizes[name]), x0.dtype) for name in keep}
    gain, weight = -K.T.astype(x0.dtype), stage_weight(Q, R, N, K).astype(x0.dtype)
    some = max(min(_LOOPS, _ENTRIES // n**2), 1)

    @np.errstate(over="ignore", invalid="ignore")  # of the thread that runs it: a loop may leave all numbers
    def piece(first: int) -> None:
        at = slice(first, first + some)
        xs = result["xs"][at] if "xs" in keep else np.empty((len(x0[at]), *sizes["xs"]), x0.dtype)
        _write(factor, x0[at], xs)
        before = xs[:, :-1]
        if "us" in keep:
            np.matmul(before, gain, out=result["us"][at])
        if "costs" in keep:
            np.matmul((before @ weight) * before, np.ones(n, x0.dtype), out=result["costs"][at])

    on_threads(piece, range(0, count, some), "powers of the closed loop")
    return result


def _powers(F: np.ndarray, num: int) -> np.ndarray:
    """F, F², … transposed in a row ``[n, num · n]``, by doubling, in the plant's precision: single would drift."""
    powers, power = np.eye(len(F))[None].astype(F.dtype), F.T
    while len(powers) <= num:
        powers, power = np.concatenate([powers, powers @ power]), power @ power
    return np.moveaxis(powers[1 : num + 1], 0, 1).reshape(len(F), -1)


def _write(factor: np.ndarray, x0: np.ndarray, out: np.ndarray) -> None:
    """States from x0 ``[s, n]`` into out ``[s, T+1, n]``: x times the powers is many samples at once."""
    n, width = x0.shape[1], factor.shape[1]
    loops, rows = out.reshape(len(x0), -1), max(_MULTIPLICATIONS // factor.size, 1)
    loops[:, :n] = x0
    whole = len(loops) // rows * rows
    for part in (loops[:whole].reshape(-1, rows, loops.shape[1]), loops[None, whole:]):
        for first in range(0, loops.shape[1] - n, width):
            new = part[:, :, first + n : first + n + width]
            np.matmul(part[:, :, first : first + n], factor[:, : new.shape[2]], out=new)

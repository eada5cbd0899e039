"""A barrier method: the positive definite combination of given matrices that a linear map takes nearest to zero.

Source: S. Boyd and L. Vandenberghe, Convex Optimization (2004), sections 9.6 (damped Newton steps on self-concordant
functions), 10.2 (an equality constraint) and 11.6 (logarithmic barriers of cones).
"""

import numpy as np
from jaxtyping import Float

_LEAST = 1e-12  # barrier parameter at the end: ‖Gw‖ vanishes to about this, times the conditioning
_NEWTON = 50  # steps for one barrier parameter; some five are usual


def analytic_centre(
    G: Float[np.ndarray, "N c k"], Qs: Float[np.ndarray, "k n n"], Rs: Float[np.ndarray, "k m m"]
) -> Float[np.ndarray, "N k"]:
    """w with the least ‖Gw‖ under Q = Σ wᵢQᵢ > 0, R = Σ wᵢRᵢ > 0 and tr Q/n + tr R/m = 2, for N problems at once.

    For μ = 1, 0.1, … it minimises ψ(‖Gw/μ‖²) − log det Q − log det R by Newton's method. ψ(v) = √(1+v) − log(1+√(1+v))
    is the barrier of the cone ‖Gw‖ ≤ s with the bound s minimised out. Of many w with Gw = 0 it thus ends at the one
    farthest from singular weights.
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
    right = np.stack([-gradient * scale, trace * scale], axis=-1)
    down, along = np.moveaxis(np.linalg.solve(scaled, right), -1, 0)
    share = np.sum(trace * scale * down, axis=1) / np.sum(trace * scale * along, axis=1)
    return (down - share[:, None] * along) * scale

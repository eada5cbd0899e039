"""A network whose activations are matrices, and whose layers multiply and invert them.

It is asked about a problem in *normal form*, coordinates of the state that its own costs choose, so that all problems
look alike, at several *sample times*, because a plant that is slow at one of them is quick at another.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.compute.linalg import batch_last, symmetric
from lqrlab.compute.linalg.batch_last import mul, t
from lqrlab.control import Sampled, stage_weight
from lqrlab.control.lyapunov import smith
from lqrlab.control.riccati.doubling import twice
from lqrlab.learning.models.network import Context, FixedGain, check_described, register
from lqrlab.learning.train_config import ModelConfig
from lqrlab.simulation import Told

# The normal form --------------------------------------------------------------------------------------------

_AHEAD = 6  # doublings: 64 samples
_FLOOR = 1e-3  # of W, relative to what states cost if they stay and to inputs that move them; of H, relative to W


@pytree
@dataclasses.dataclass(frozen=True)
class NormalForm:
    """Problems x[t+1] = (I + D) x + B v with the cost Σ xᵀHx + vᵀv, zero in padding, and the way back.

    With weights Q, R, N of a step, the input v = R^½(u + R⁻¹Nᵀx) removes R and N: F = A − BR⁻¹Nᵀ, H = Q − NR⁻¹Nᵀ. The
    optimal cost of the next 64 samples is made the identity, if the state after them costs W = Σ FᵏᵀHFᵏ, what it costs
    in 64 samples without control, with a floor. Problems that differ by units, any other coordinates of the state, or a
    factor of the cost become one up to a rotation, and one that an input hardly reaches looks like others.

    Attributes:
        D, B, H: ``[b, n, n]``, ``[b, n, m]``, ``[b, n, n]``.
        into, out: the new state is ``into`` times the old one, and back ``[b, n, n]``.
        root, cross: u = ``root`` (v − ``cross`` x), with the old state x ``[b, m, m]``, ``[b, m, n]``.
    """

    D: Array
    B: Array
    H: Array
    into: Array
    out: Array
    root: Array
    cross: Array

    @classmethod
    def of(cls, d: "Told | Sampled", live: Array) -> "NormalForm":
        """Of problems ``[b, …]`` with these states ``[b, n]``."""
        one, absent = (jnp.eye(live.shape[-1], dtype=live.dtype)[None] * a[:, None] for a in (live, 1 - live))
        _, root = _factors(d.R)
        B, cross = d.B @ root, root.mT @ d.N.mT
        form = cls(d.A - one - B @ cross, B, symmetric(d.Q - cross.mT @ cross), one, one, root, cross)
        form = form._scaled(_size_of_states(one + form.D, B, form.H, jnp.sum(live, axis=-1)) + absent)
        return form._scaled(_horizon(one + form.D, form.B, form.H + _FLOOR * one) + absent)

    def _scaled(self, size: Array) -> "NormalForm":
        """In coordinates in which ``size`` is the identity."""
        C, back = _factors(size)
        H = symmetric(back.mT @ self.H @ back)
        return NormalForm(C @ self.D @ back, C @ self.B, H, C @ self.into, self.out @ back, self.root, self.cross)

    def sampled(self, live: Array) -> Sampled:
        """The problem in these coordinates."""
        one, R = (jnp.eye(k, dtype=live.dtype)[None] for k in self.B.shape[-2:])
        R = jnp.broadcast_to(R, self.root.shape)
        return Sampled(one * live[:, None] + self.D, self.B, self.H, R, jnp.zeros_like(self.B))

    def gain(self, K: Array) -> Array:
        """The gain of u = −Kx from that of v = −Kx here, ``[b, m, n]``."""
        return self.root @ (K @ self.into + self.cross)


def _horizon(A: Array, B: Array, H: Array) -> Array:
    """The optimal cost of the next samples, if the state after them costs the identity."""
    A, B, H = (jnp.moveaxis(a, 0, -1) for a in (A, B, H))
    A, G, H = jax.lax.fori_loop(0, _AHEAD, lambda _, now: twice(*now), (A, mul(B, t(B)), H))
    P = H + mul(t(A), batch_last.quotient(batch_last.eye(len(A), A) + G, A))
    return jnp.moveaxis(batch_last.symmetric(P), -1, 0)


def _size_of_states(F: Array, B: Array, H: Array, count: Array) -> Array:
    """W with its floor: what the next samples cost without control, of a growing F as if it did not grow."""
    size = jnp.maximum(control.spectral_radius(F), 1.0)
    F, W, reached = F / size[:, None, None], H, B @ B.mT
    for _ in range(_AHEAD):
        W, reached, F = W + F.mT @ W @ F, reached + F @ reached @ F.mT, F @ F
    # what states cost in a sample; of one that costs nothing, what it takes to move it
    sample = symmetric(H + W / 2**_AHEAD)
    far, cost = (jnp.diagonal(a, axis1=-1, axis2=-2) for a in (reached, sample))
    moved = jnp.where(cost > 0, 0.0, 1 / jnp.where(far > 0, far, 1.0))
    sample = sample + moved[:, None] * jnp.eye(F.shape[-1], dtype=F.dtype)[None]
    effect = jnp.sum(B * (sample @ B), axis=(-1, -2)) / count
    floor = _FLOOR * (2**_AHEAD + jnp.where(effect > 0, 1 / jnp.where(effect > 0, effect, 1.0), 0.0))
    return symmetric(W) + floor[:, None, None] * sample


def _factors(a: Array) -> tuple[Array, Array]:
    """C with CᵀC = a, and C⁻¹, of definite a ``[b, k, k]``, to the same digits in any units."""
    size = jnp.diagonal(a, axis1=-1, axis2=-2)
    unit = jnp.sqrt(jnp.where(size > 0, size, 1.0))
    last = jnp.moveaxis(a / unit[:, None] / unit[:, :, None], 0, -1)
    upper = t(batch_last.cholesky(last, 4 * float(jnp.finfo(a.dtype).eps)))
    C, back = (jnp.moveaxis(a, -1, 0) for a in (upper, batch_last.inverse(upper)))
    return C * unit[:, None], back / unit[:, :, None]


# The sample times -------------------------------------------------------------------------------------------

_DOUBLINGS = (0, 1, 2, 4, 6, 8, 10)
"""Of the plant's sample time: 1, 2, 4, 16, 64, 256 and 1024 times that."""
_LEAST = 1e-9  # cost of a direction in normal form
_GROWN = 1e9  # entry of A in normal form: so much growth between two inputs is not controlled
_AGAIN = tuple(b - a > 1 for a, b in zip(_DOUBLINGS, (*_DOUBLINGS[1:], 12)))


def held(problem: Sampled) -> Sampled:
    """The problem ``[b, …]`` with its inputs held for two samples."""
    A, B, Q, R, N = problem
    cross, paid = N + A.mT @ (Q @ B + N), N.mT @ B
    R, Q = 2 * R + B.mT @ Q @ B + paid + paid.mT, symmetric(Q + A.mT @ Q @ A)
    return Sampled(A @ A, A @ B + B, Q, symmetric(R), cross)


def _improved(problem: Sampled, P: Array) -> Array:
    """The gain that is optimal if the next state costs P."""
    A, B, _, R, N = problem
    S = jnp.moveaxis(R + B.mT @ P @ B, 0, -1)
    return jnp.moveaxis(batch_last.inverse(S), -1, 0) @ (B.mT @ P @ A + N.mT)


def _paid(problem: Sampled, K: Array) -> Array:
    """The logarithm of what loops cost ``[b]``, its mean over all directions in any units; infinite where unstable."""
    A, B, Q, R, N = problem
    closed, weight = (jnp.moveaxis(a, 0, -1) for a in ((A - B @ K).mT, stage_weight(Q, R, N, K)))
    P, reach = smith(closed, weight, float(jnp.finfo(closed.dtype).eps) ** 0.5 / 4)
    root = batch_last.cholesky(batch_last.symmetric(P), _LEAST)
    cost = 2 * jnp.mean(jnp.log(jnp.diagonal(root)), axis=-1)
    return jnp.where((reach < jnp.inf) & jnp.isfinite(cost), cost, jnp.inf)


def best_gain(cost_of: Callable[[NormalForm], Array], problem: Sampled, live: Array) -> Array:
    """The gain ``[b, m, n]`` of the least cost: the network is asked at sample times from 1 to 1024 of the plant's.

    What the network takes for the cost to go of a problem in normal form (``cost_of``) gives a gain for the plant's own
    sample time by a step of policy improvement. What its loop costs is computed, in the plant's normal form; ``live``
    ``[b, n]`` says which states exist.
    """
    form = NormalForm.of(problem, live)
    own = form.sampled(live)

    def ask(problem: Sampled, again: Array) -> tuple[Sampled, tuple[Array, Array]]:
        now = NormalForm.of(problem, live)
        gain = _improved(own, now.into.mT @ cost_of(now) @ now.into)
        longer = held(problem)
        longer = jax.tree.map(lambda a, b: jnp.where(again, a, b), held(longer), longer)
        # a plant that has grown so much is asked again as it is: its powers overflow, and so would their slopes
        good = (jnp.max(jnp.abs(longer.A), axis=(-1, -2)) < _GROWN)[:, None, None]
        longer = jax.tree.map(lambda a, b: jnp.where(good, a, b), longer, problem)
        return longer, (gain, _paid(*jax.lax.stop_gradient((own, gain))))

    _, (gains, costs) = jax.lax.scan(ask, own, jnp.array(_AGAIN))
    best = jnp.argmin(costs, axis=0)  # the plant's own sample time, where none is stable
    return form.gain(jnp.take_along_axis(gains, best[None, :, None, None], axis=0)[0])


# The network ------------------------------------------------------------------------------------------------

_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Costs to go, times the identity, whose optimal inputs a network is shown."""
_INPUTS = 7 + 2 * len(_STRENGTHS)


def _mixed(weight: Array, X: Array) -> Array:
    """Channels ``[c, b, N, N]`` mixed by ``[c, d]``: one product of matrices."""
    return (weight.T @ X.reshape(X.shape[0], -1)).reshape(weight.shape[1], *X.shape[1:])


def _inverse(a: Array) -> Array:
    """a⁻¹ ``[…, k, k]`` of symmetric a ≥ 1, at least in float32."""
    wide = a if a.dtype.itemsize >= 4 else a.astype(jnp.float32)
    last = jnp.moveaxis(wide.reshape(-1, *a.shape[-2:]), 0, -1)
    return jnp.moveaxis(batch_last.inverse(last), -1, 0).reshape(a.shape).astype(a.dtype)


@jax.custom_vjp
def _resolvent(V: Array) -> Array:
    """(I + V Vᵀ)⁻¹, which is symmetric and between 0 and 1 whatever V is."""
    return _inverse(jnp.broadcast_to(jnp.eye(V.shape[-1], dtype=V.dtype), V.shape) + V @ V.mT)


def _resolvent_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array]:
    V, R = kept
    change = R @ (slope @ R)
    return (-jax.lax.optimization_barrier(change + change.mT) @ V,)


_resolvent.defvjp(lambda V: (R := _resolvent(V), (V, R)), _resolvent_backward)


def _size(X: Array, n: Array) -> Array:
    """Frobenius norm over √n ``[c, b]``, n ``[1, b]``: the same for a padded plant."""
    return jnp.sqrt(jnp.sum(X * X, axis=(-1, -2)) / n + 1e-12)


class Invariants(nnx.Module):
    """Scalars that no rotation changes, to factors for ``count`` channels ``[count, b, 1, 1]``."""

    def __init__(self, config: ModelConfig, count: int, *, rngs: nnx.Rngs):
        width = config.width
        self.first = nnx.Linear(2 * width, 4 * width, rngs=rngs)
        self.second = nnx.Linear(4 * width, count, kernel_init=nnx.initializers.normal(0.01), rngs=rngs)

    def __call__(self, X: Array, size: Array, n: Array) -> Array:
        """From matrices ``[c, b, N, N]``, their sizes ``[c, b]`` and the numbers of states ``[1, b]``."""
        trace = jnp.trace(X, axis1=-2, axis2=-1) / n
        seen = jnp.concatenate([jnp.arcsinh(10 * trace), jnp.log(size + 1e-3)]).T
        return self.second(jax.nn.gelu(self.first(seen))).T[..., None, None]


class RationalLayer(nnx.Module):
    """X + mix(left(X) (I + V Vᵀ)⁻¹ right(X)) with V = middle(X), kept from growing.

    A Riccati equation's solution is a rational function, no polynomial of moderate degree, as doubling shows.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.width

        def square(size: float) -> nnx.Param:
            return nnx.Param(size * jax.random.normal(rngs.params(), (width, width), jnp.float32) / width**0.5)

        self.left, self.right, self.middle, self.back = square(1.0), square(1.0), square(1.0), square(0.3)
        self.factors = Invariants(config, 4 * width, rngs=rngs)

    def __call__(self, X: Array, n: Array) -> Array:
        """``[c, b, N, N]``."""
        size = _size(X, n)
        left, right, middle, back = jnp.split(1 + self.factors(X, size, n), 4)
        small = X / (1 + size)[..., None, None]
        halfway = _mixed(self.left[...], left * small) @ _resolvent(_mixed(self.middle[...], middle * small))
        Y = back * (halfway @ _mixed(self.right[...], right * small))
        return X + _mixed(self.back[...], Y / (1 + _size(Y, n))[..., None, None])


@register("matrix")
class MatrixNetwork(FixedGain):
    """Description to a cost to go P = H + S Sᵀ, and the gain that is optimal if P is what the next state costs.

    Any weights, any size: :class:`NormalForm` leaves open a rotation T of the state, which turns the optimal cost with
    it, P(TFTᵀ, TGTᵀ, THTᵀ) = T P Tᵀ. So it does here with any parameters: activations are ``width`` matrices made from
    F − I, its transpose, G = BBᵀ and H; a layer mixes, multiplies, inverts and scales them.
    """

    any_weights = any_size = True
    options = ("width", "depth")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        check_described(config)
        self.config = config
        width = config.width
        start = jax.random.normal(rngs.params(), (_INPUTS, width), jnp.float32)
        self.enter = nnx.Param(start / _INPUTS**0.5)
        self.layers = nnx.List([RationalLayer(config, rngs=rngs) for _ in range(config.depth)])
        self.factors = Invariants(config, width, rngs=rngs)
        start = jax.random.normal(rngs.params(), (width, 1), jnp.float32)
        self.leave = nnx.Param(0.1 * start / width**0.5)

    def encode(self, d: Told) -> Context:
        """The gain itself, asked at the plant's own sample time."""
        form = NormalForm.of(d, d.state_mask)
        P = self._cost(form, d.state_mask)
        return self._context(d, form.gain(_improved(form.sampled(d.state_mask), P)))

    def decide(self, d: Told) -> Context:
        """The best of the gains that it has at several sample times, see :func:`best_gain`."""
        live, problem = d.state_mask, Sampled(d.A, d.B, d.Q, d.R, d.N)
        return self._context(d, best_gain(lambda form: self._cost(form, live, rolled=True), problem, live))

    def _context(self, d: Told, gain: Array) -> Context:
        return Context(d.state_mask[..., :0], gain.reshape(len(gain), -1), d.state_mask, d.input_mask)

    def _cost(self, problem: NormalForm, live: Array, *, rolled: bool = False) -> Array:
        """P of problems in normal form ``[b, n, n]``, in the type of these, which are rounded to the network's first.

        ``rolled`` makes a program of one layer: an eighth of the time to compile, a slower gradient.
        """
        dtype = self.enter[...].dtype
        finer = np.promote_types(dtype, np.float32)
        D, B, H, mask = (a.astype(finer) for a in (problem.D, problem.B, problem.H, live))
        n, eye = jnp.sum(mask, axis=-1)[None], jnp.eye(mask.shape[-1], dtype=mask.dtype)[None] * mask[:, None]
        X = _mixed(self.enter[...], _seen(D, B, H, eye, n[0]).astype(dtype))
        n = n.astype(dtype)
        if rolled:
            structures, weights = zip(*(nnx.split(layer) for layer in self.layers))
            each = jax.tree.map(lambda *a: jnp.stack(a), *weights)
            X, _ = jax.lax.scan(lambda X, one: (nnx.merge(structures[0], one)(X, n), None), X, each)
        else:
            for layer in self.layers:
                X = layer(X, n)
        S = _mixed(self.leave[...], X * jnp.exp(self.factors(X, _size(X, n), n)))[0]
        S = (eye + S.astype(eye.dtype) * mask[:, None] * mask[:, :, None]).astype(live.dtype)
        return problem.H + S @ S.mT


def _seen(D: Array, B: Array, H: Array, eye: Array, n: Array) -> Array:
    """Matrices that a network begins with ``[_INPUTS, b, n, n]``, of the states ``[b]`` in number."""

    def unit(a: Array, least: float) -> Array:
        return a / (jnp.sqrt(jnp.sum(a * a, axis=(-1, -2)) / n) + least)[:, None, None]

    G, near, full = B @ B.mT, unit(D, 1e-3), jnp.eye(eye.shape[-1], dtype=eye.dtype)[None]
    seen = [eye, 3 * D, 3 * D.mT, near, near.mT, unit(H, 1e-6), 4 * H]
    for strength in _STRENGTHS:  # if the next state cost so much: what input leaves of it, and of the step
        left = _inverse(full + strength * G) @ eye
        seen += [left, left @ (eye + D)]
    return jnp.stack(seen)

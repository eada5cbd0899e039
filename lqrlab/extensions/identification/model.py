"""A linear model in innovation form, from a log, for a design."""

import dataclasses
from functools import cached_property

import jax
import numpy as np
import scipy.linalg
from jaxtyping import ArrayLike, Complex, Float, PRNGKeyArray

from lqrlab import control, systems
from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, check_log, require_unit
from lqrlab.extensions.identification.residuals import Residuals, fit_percent
from lqrlab.systems import Linear, Signal


@dataclasses.dataclass(frozen=True, eq=False)
class LinearModel:
    """x[t+1] = A x + B u + K e, y = C x + D u + e, with u, y as deviations from ``u_mean``, ``y_mean``.

    Attributes:
        A, B, C, D, K: the matrices; K is the stationary Kalman gain of the predictor.
        noise: covariance of the innovations e.
        dt: sample time [s].
        inputs, outputs: the log's signals.
        u_mean, y_mean: where the deviations are taken from.
        covariance: of the entries of A, B, C, D, K, one matrix after the other, row by row; None where the method
            gives none. In coordinates of the state that data cannot tell it is zero.
    """

    A: Float[np.ndarray, "n n"]
    B: Float[np.ndarray, "n m"]
    C: Float[np.ndarray, "p n"]
    D: Float[np.ndarray, "p m"]
    K: Float[np.ndarray, "n p"]
    noise: Float[np.ndarray, "p p"]
    dt: float
    inputs: tuple[Signal, ...]
    outputs: tuple[Signal, ...]
    u_mean: Float[np.ndarray, " m"]
    y_mean: Float[np.ndarray, " p"]
    covariance: Float[np.ndarray, "k k"] | None = None

    @property
    def order(self) -> int:
        """Number of states."""
        return len(self.A)

    @cached_property
    def poles(self) -> Complex[np.ndarray, " n"]:
        """Eigenvalues of A, the slowest first."""
        return np.linalg.eigvals(self.A).astype(complex)[self._slowest]

    @cached_property
    def pole_std(self) -> Float[np.ndarray, "n 2"]:
        """Standard errors of the poles' real and imaginary parts, to first order."""
        if self.covariance is None:
            raise ValueError("pole_std: this method gives no covariance; identification.refine(model, log) does")
        values, left, right = scipy.linalg.eig(self.A, left=True, right=True)
        slopes = np.einsum("ik,jk->kij", left.conj(), right) / np.sum(left.conj() * right, 0)[:, None, None]
        J = slopes.reshape(self.order, -1)
        P = self.covariance[: J.shape[1], : J.shape[1]]
        variances = [np.sum((part @ P) * part, 1) for part in (J.real, J.imag)]
        return np.sqrt(np.stack(variances, 1))[np.argsort(-np.abs(values), kind="stable")]

    @cached_property
    def _slowest(self) -> np.ndarray:
        return np.argsort(-np.abs(np.linalg.eigvals(self.A)), kind="stable")

    def sample(self, key: PRNGKeyArray, num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A, B, C, D ``[num, …]`` of models as likely as the log makes them: normal, to first order.

        The log says nothing of the state's coordinates, and a step along them that is not small would change the
        model: draws have no part along such steps, which to first order takes nothing from what can be seen.

        Raises:
            ValueError: the method that found the model gives no covariance.
        """
        checks.random_key(key)
        if self.covariance is None:
            raise ValueError("sample: this method gives no covariance; identification.refine(model, log) does")
        parts = (self.A, self.B, self.C, self.D)
        idle = self._coordinate_steps()
        k = len(idle)
        rest = np.eye(k) - idle @ np.linalg.pinv(idle)
        values, vectors = np.linalg.eigh(rest @ self.covariance[:k, :k] @ rest)
        half = vectors * np.sqrt(np.maximum(values, 0))
        draws = np.asarray(jax.random.normal(key, (checks.whole("num", num), len(half)))) @ half.T
        cuts = np.cumsum([a.size for a in parts])
        moved = (d.reshape(num, *a.shape) for d, a in zip(np.split(draws, cuts, axis=1), parts))
        A, B, C, D = (a + d for a, d in zip(parts, moved))
        return A, B, C, D

    def _coordinate_steps(self) -> Float[np.ndarray, "k n_n"]:
        """Steps of the entries of A, B, C, D along each entry of X where the state becomes (I + X) x."""
        A, B, C, D = self.A, self.B, self.C, self.D
        n = len(A)
        units = np.eye(n * n).reshape(-1, n, n)
        steps = ((X @ A - A @ X, X @ B, -C @ X, 0 * D) for X in units)
        return np.stack([np.concatenate([a.ravel() for a in step]) for step in steps], 1)

    def simulate(self, log: Log) -> Float[np.ndarray, "T p"]:
        """Outputs from the inputs alone; the initial state of each record is fitted to it."""
        return self.run(log, np.zeros_like(self.K))[0]

    def predict(self, log: Log) -> Float[np.ndarray, "T p"]:
        """Outputs one step ahead, from the inputs and the outputs before."""
        return self.run(log, self.K)[0]

    def run(
        self, log: Log, K: Float[np.ndarray, "n p"]
    ) -> tuple[Float[np.ndarray, "T p"], Float[np.ndarray, "records n"]]:
        """Outputs with the predictor's gain K, and the initial state of each record that fits it best."""
        self.check(log)
        made = []
        for us, ys in log.records:
            u, y = us - self.u_mean, ys - self.y_mean
            drive = u @ (self.B - K @ self.D).T + y @ K.T
            forced, free = responses(self.A - K @ self.C, self.C, drive[:, :, None])
            known = forced[..., 0] + u @ self.D.T
            x0 = np.linalg.lstsq(free.reshape(-1, self.order), (y - known).ravel(), rcond=None)[0]
            made.append((known + free @ x0 + self.y_mean, x0))
        outputs, starts = zip(*made)
        return np.concatenate(outputs), np.stack(starts)

    def check(self, log: Log) -> None:
        """Refuse a log of other signals, or of another sample time."""
        check_log(log)
        names = [[s.name for s in given] for given in (self.inputs, self.outputs, log.inputs, log.outputs)]
        if names[:2] != names[2:]:
            raise ValueError(f"log: expected the signals {names[:2]} of the model, but found {names[2:]}")
        for s in (*self.inputs, *self.outputs):
            require_unit(log, s, "the model's")
        if not np.isclose(log.dt, self.dt):
            raise ValueError(f"log: expected the model's sample time {self.dt:g} s, but found {log.dt:g} s; resample")

    def fit_percent(self, log: Log, *, predicted: bool = False) -> Float[np.ndarray, " p"]:
        """100 (1 − ‖y − ŷ‖ / ‖y − mean‖) of each output, simulated or predicted one step ahead."""
        outputs = self.predict(log) if predicted else self.simulate(log)
        return fit_percent(log.ys, outputs)

    def residuals(self, log: Log, lags: int = 25) -> Residuals:
        """Tests of the prediction errors: whiteness, independence of the inputs."""
        return Residuals.of(log, log.ys - self.predict(log), lags)

    def continuous(self) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "n m"]]:
        """(A, B) of the continuous plant whose zero-order hold this is.

        Raises:
            ValueError: a pole at zero or on the negative real axis, which no continuous plant of this order has.
        """
        n, m = self.B.shape
        values = self.poles
        bad = (np.abs(values.imag) < 1e-12) & (values.real <= 0)
        if bad.any():
            raise ValueError(
                f"order: the pole {values.real[bad][0]:.3g} of the sampled model belongs to no continuous plant of "
                f"order {n}; design with the sampled matrices (control.dlqr), take another order, or sample faster"
            )
        flow = scipy.linalg.logm(np.block([[self.A, self.B], [np.zeros((m, n)), np.eye(m)]])).real / self.dt
        return flow[:n, :n], flow[:n, n:]

    def plant(self, Q: ArrayLike | None = None, R: ArrayLike | None = None) -> Linear:
        """The continuous :class:`~lqrlab.systems.Linear` plant, deviations from where the log was.

        Args:
            Q, R: weights; if left out, outputs and inputs count one each (CᵀC and the identity).
        """
        self._without_feedthrough()
        A, B = self.continuous()
        Q = self.C.T @ self.C if Q is None else Q
        labels = [f"{s.name} [{s.unit or '1'}]" for s in self.inputs]
        measured = self.C.shape[0] == self.order and np.array_equal(self.C, np.eye(self.order))
        states = [f"{s.name} [{s.unit or '1'}]" for s in self.outputs] if measured else []
        return systems.from_matrices(A, B, self.C, Q=Q, R=R, dt=self.dt, inputs=labels, states=states)

    def _without_feedthrough(self) -> None:
        if np.any(self.D):
            raise ValueError("D: the model has feedthrough, a plant has none; identify with feedthrough=False")

    def lqg(self, Q: ArrayLike, R: ArrayLike) -> control.LQG:
        """The sampled LQG controller: the regulator of Q, R fed by the predictor with the identified gain K."""
        self._without_feedthrough()
        S = self.K @ self.noise  # the noise of the sensors is that of the state
        return control.lqg(self.A, self.B, self.C, Q, R, S @ self.K.T, self.noise, S=S, discrete=True)


def responses(
    A: Float[np.ndarray, "n n"], C: Float[np.ndarray, "p n"], drive: Float[np.ndarray, "T n c"]
) -> tuple[Float[np.ndarray, "T p c"], Float[np.ndarray, "T p n"]]:
    """Outputs C x of x[t+1] = A x + drive[t] from rest, one for each column, and from each unit initial state."""
    n, columns = drive.shape[1:]
    X = np.concatenate([np.zeros((n, columns)), np.eye(n)], 1)
    out = np.empty((len(drive), len(C), columns + n))
    for t, d in enumerate(drive):
        out[t] = C @ X
        X = A @ X
        X[:, :columns] += d
    return out[..., :columns], out[..., columns:]


def placed(covariance: Float[np.ndarray, "k k"], index: np.ndarray) -> Float[np.ndarray, "q q"]:
    """The covariance of numbers of which the ``index`` [q] says which of the known they are; 0 of those with −1."""
    full, used = np.zeros((len(index), len(index))), index >= 0
    full[np.ix_(used, used)] = covariance[np.ix_(index[used], index[used])]
    return full

"""Physical parameters of a plant from a log: output error by single or multiple shooting, from many starts."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize
from jaxtyping import Float, PRNGKeyArray

from lqrlab import simulation
from lqrlab.compute import checks
from lqrlab.identification.log import Log, require_excitation
from lqrlab.identification.residuals import Residuals, fit_percent
from lqrlab.identification.shooting import DEFECT, Segments, first_states
from lqrlab.systems import Plant, check_plant, parameter_fields

METHODS = ("auto", "single", "multiple")
_TELLS_NOTHING = 0.5  # standard error, relative, of a combination of parameters that the log does not tell


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """A plant with the parameters that explain a log, and how sure they are; prints as sentences.

    Attributes:
        plant: with the estimates.
        names: of the parameters.
        values, std: estimates and standard errors, in SI units; inf where the log tells nothing.
        information: JᵀJ of the scaled parameters (logarithms where the range is above zero), initial states and
            offsets eliminated: the Hessian of half the sum of squares in units of the noise.
        noise: standard deviation of each output's error.
        offsets: of the sensors.
        x0: state at the start of each segment.
        predicted: the outputs as the plant gives them.
        fit_percent, r2: of each output.
        starts: sum of squares reached from each start that was followed to its end.
        segments: the problem as it was solved.
        log: what was explained.
    """

    plant: Plant
    names: tuple[str, ...]
    values: Float[np.ndarray, " k"]
    z: Float[np.ndarray, " k"]
    information: Float[np.ndarray, "k k"]
    noise: Float[np.ndarray, " p"]
    offsets: Float[np.ndarray, " p"]
    x0: Float[np.ndarray, "S n"]
    predicted: Float[np.ndarray, "T p"]
    starts: Float[np.ndarray, " s"]
    segments: Segments
    log: Log

    @property
    def fit_percent(self) -> Float[np.ndarray, " p"]:
        """100 (1 − ‖y − ŷ‖ / ‖y − mean‖) of each output."""
        return fit_percent(self.log.ys, self.predicted)

    @property
    def r2(self) -> Float[np.ndarray, " p"]:
        """Share of each output's variance that the plant explains."""
        return 1 - (1 - self.fit_percent / 100) ** 2

    @property
    def _slopes(self) -> np.ndarray:
        return self.segments.coordinates.slopes(self.z)

    @property
    def hessian(self) -> Float[np.ndarray, "k k"]:
        """:attr:`information` by the parameters themselves."""
        return self.information / np.outer(self._slopes, self._slopes)

    @property
    def eigen(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
        """Eigenvalues of :attr:`information`, the least first, and the combinations of parameters as columns."""
        values, vectors = np.linalg.eigh(self.information)
        return np.maximum(values, 0.0), vectors

    def _covariance(self, prior: bool = False) -> np.ndarray:
        """Of z. With ``prior`` the ranges count as what was known before."""
        c = self.segments.coordinates
        width = np.clip(np.minimum(c.high, self.z + 3) - np.maximum(c.low, self.z - 3), 1e-9, None) / np.sqrt(
            12
        )
        H = self.information + (np.diag(width**-2.0) if prior else 0.0)
        values, vectors = np.linalg.eigh(H)
        floor = 1e-12 * max(values.max(initial=0), 1e-300)
        return (vectors / np.maximum(values, floor)) @ vectors.T

    @property
    def covariance(self) -> Float[np.ndarray, "k k"]:
        """Of the parameters, in SI units."""
        return self._covariance() * np.outer(self._slopes, self._slopes)

    @property
    def std(self) -> Float[np.ndarray, " k"]:
        """Standard errors."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def correlation(self) -> Float[np.ndarray, "k k"]:
        """Of the estimates."""
        std = np.sqrt(np.diagonal(self._covariance()))
        return self._covariance() / np.outer(std, std)

    @property
    def table(self) -> pd.DataFrame:
        """One row a parameter: value, standard error, the same relative, unit."""
        fields = parameter_fields(type(self.plant))
        units = [fields[name].metadata["unit"] for name in self.names]
        relative = 100 * self.std / np.maximum(np.abs(self.values), 1e-300)
        columns = {"value": self.values, "std": self.std, "std [%]": relative, "unit": units}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="parameter"))

    @property
    def unidentifiable(self) -> tuple[str, ...]:
        """Combinations of parameters that this log does not tell, in words."""
        values, vectors = self.eigen
        weak = values < _TELLS_NOTHING**-2
        return tuple(
            _in_words(self.names, v, self.segments.coordinates.span == 0) for v in vectors[:, weak].T
        )

    def residuals(self, lags: int = 25) -> Residuals:
        """Whether what is left is white and independent of the inputs."""
        return Residuals.of(self.log, self.log.ys - self.predicted, lags)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What cannot be told, what ended at its bound, what was fitted badly."""
        c, said = self.segments.coordinates, list(self.unidentifiable)
        for i, name in enumerate(self.names):
            if min(self.z[i] - c.low[i], c.high[i] - self.z[i]) < 1e-6:
                said.append(
                    f"{name} ended at the edge of its range, {self.values[i]:g}: the model lacks something"
                )
        for s, percent in zip(self.log.outputs, self.fit_percent):
            if percent < 50:
                said.append(
                    f"{s.name}: only {percent:.0f} % is explained; look at units and signs, at what the plant "
                    "leaves out, or start nearer"
                )
        return tuple(said)

    def __str__(self) -> str:
        return "\n".join([self.table.to_string(float_format=lambda v: f"{v:.4g}"), *self.remarks])

    def simulate(
        self, log: Log, x0: Float[np.ndarray, "*records n"] | None = None
    ) -> Float[np.ndarray, "T p"]:
        """Outputs of the plant for another log's inputs.

        Args:
            log: of the same signals.
            x0: initial state of each record; fitted to the record if left out.
        """
        c = self.segments
        own = Segments.of(self.plant, log, (), None, c.substeps, np.zeros(len(c.which), bool))
        if x0 is None:
            states = first_states(own, log)
            states = _solved(own, own.packed(np.zeros(0), np.zeros(len(c.which)), states), self.noise, 30)[1]
        else:
            states = np.broadcast_to(np.asarray(x0, float), (len(own.us), self.plant.n))
        ys = np.asarray(own.outputs(jnp.zeros(0), jnp.asarray(states))[0]) + self.offsets
        return ys[own.mask]

    def sample(self, key: PRNGKeyArray, num: int) -> Plant:
        """Plants as likely as the log and the ranges make them: Laplace's posterior, kept within the ranges."""
        checks.random_key(key)
        checks.whole("num", num)
        c, P = self.segments.coordinates, self._covariance(prior=True)
        values, vectors = np.linalg.eigh(P)
        half = vectors * np.sqrt(np.maximum(values, 0))
        draws = np.asarray(jax.random.normal(key, (num, len(self.z)))) @ half.T
        zs = np.clip(self.z + draws, c.low, c.high)
        batch = c.plant(self.segments.plant, jnp.asarray(zs))
        return jax.tree.map(
            lambda a: (
                jnp.broadcast_to(jnp.asarray(a), (num, *np.shape(a)[1:])) if np.ndim(a) else jnp.full(num, a)
            ),
            batch,
        )

    def profile(self, name: str, num: int = 7, widths: float = 3.0) -> pd.DataFrame:
        """The least sum of squares, in units of the noise, with one parameter held at values around its estimate.

        Where it is a parabola, the standard error says all; where it is flat, it does not.
        """
        i = self.names.index(checks.choice("name", name, self.names))
        c, others = self.segments.coordinates, tuple(n for n in self.names if n != name)
        std = np.sqrt(min(self._covariance(prior=True)[i, i], 4.0))
        grid = np.clip(
            self.z[i] + widths * std * np.linspace(-1, 1, checks.whole("num", num, 3)), c.low[i], c.high[i]
        )
        rows = []
        for z in grid:
            moved = self.z.copy()
            moved[i] = z
            plant = dataclasses.replace(self.plant, **{name: c.values(moved)[i]})
            own = dataclasses.replace(self.segments, plant=plant, coordinates=c.of(plant, others))
            free = own.packed(np.zeros(len(others)), self.offsets, self.x0)
            rows.append((float(c.values(moved)[i]), _minimised(own, free, self.noise, 60)[1]))
        values, costs = np.array(rows).T
        return pd.DataFrame({name: values, "excess": 2 * (costs - costs.min())}).set_index(name)


def _in_words(names: Sequence[str], v: np.ndarray, logarithmic: np.ndarray) -> str:
    """The combination of parameters along v, along which the outputs hardly change."""
    v = v / np.abs(v).max()
    parts = np.flatnonzero(np.abs(v) > 0.03)
    named = [names[i] for i in parts]
    if len(parts) == 1:
        return f"{named[0]} has no effect that this log shows: fix it, or excite what it acts on"
    if len(parts) == 2 and logarithmic[parts].all():
        ratio = v[parts[1]] / v[parts[0]]
        for sign, word in ((-1, "product"), (1, "ratio")):
            if abs(ratio - sign) < 0.15:
                return f"{named[0]} and {named[1]} enter only as their {word} in this log: fix one of them"
    steps = ", ".join(f"{names[i]} {100 * 0.1 * v[i]:+.0f} %" for i in parts)
    listed = f"{', '.join(named[:-1])} and {named[-1]}"
    return f"{listed} cannot be told apart: {steps} changes no output; fix one of them"


def fit(
    plant: Plant, log: Log, parameters: Sequence[str] | None = None, *, method: str = "auto", starts: int = 8,
    offsets: bool | Sequence[str] = False, defect: float = DEFECT, segment: int | None = None,
    substeps: int | None = None, seed: int = 0, iterations: int = 100,
) -> Fit:  # fmt: skip
    """Physical parameters of a plant from a log of its inputs and (some) outputs, named as the plant names them.

    Minimised is the sum of squares of the outputs' errors in units of their noise, which is estimated along, over the
    parameters, the initial state of each record, and offsets. SciPy's trust-region least squares is the solver: it
    keeps bounds, needs no new dependency, and gets exact Jacobians from JAX; starts are compared under ``vmap``.

    Args:
        plant: of any class, with values to start from.
        log: the record or records.
        parameters: names of those that are free; all that vary between variants if left out.
        method: ``"single"`` shooting simulates each record in one go; ``"multiple"`` in segments that have to meet,
            which unstable plants and long records need; ``"auto"`` looks at the plant's poles.
        starts: parameter values tried, the plant's own and others around them; the best few are followed.
        offsets: free constant offsets, of all outputs or of those named.
        defect: by how much segments may fail to meet, relative to the states' scales: larger allows for disturbances.
        segment: samples in a segment; from the plant's fastest unstable mode if left out.
        substeps: Runge-Kutta steps in a sample time; enough for the plant's fastest mode at its operating point if left
            out.
        seed: of the starts.
        iterations: at most so many evaluations from each start.

    Raises:
        ValueError: signals that the plant does not have, nothing excited, too few samples; says what to do.

    Source: H. G. Bock, Recent advances in parameter identification techniques for ODE (1983), multiple shooting;
    L. Ljung, System Identification, 2nd ed. (1999), chapters 7, 9.
    """
    check_plant(plant)
    if plant.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
    checks.instance("log", log, Log, "a log, as identification.read makes")
    names = _free(plant, parameters)
    checks.whole("starts", starts)
    checks.choice("method", method, METHODS)
    segments = _cut(plant, log, names, method, segment, _offset(log, offsets), substeps)
    require_excitation(log, len(names) + plant.n)
    _plausible(segments, log)
    begin = first_states(segments, log)
    zs = _candidates(segments, starts, seed)
    sigma = np.maximum(0.05 * log.ys.std(0), 1e-12)
    if len(zs) > 1:
        costs = np.asarray(segments.costs(jnp.asarray(zs), jnp.asarray(begin), jnp.asarray(sigma)))
        zs = zs[np.argsort(np.where(np.isfinite(costs), costs, np.inf), kind="stable")][:3]
    reached = []
    for z in zs:
        free = segments.packed(z, np.zeros(len(sigma)), begin)
        reached.append(_minimised(segments, free, sigma, iterations, defect, 1e-3))
    best = min(reached, key=lambda r: r[1])[0]
    for _ in range(3):  # the noise, and what it weighs
        sigma = _noise(segments, best, len(names))
        best, _ = _minimised(segments, best, sigma, iterations, defect)
    return _finished(
        segments, best, _noise(segments, best, len(names)), defect, np.array([c for _, c in reached]), log
    )


def _free(plant: Plant, parameters: Sequence[str] | None) -> tuple[str, ...]:
    fields = parameter_fields(type(plant))
    if not fields:
        raise ValueError(
            f"plant: {plant.name} declares no parameters; write a class with systems.param, or use subspace"
        )
    if parameters is None:
        return tuple(name for name, f in fields.items() if f.metadata["vary"])
    for name in parameters:
        checks.choice("parameters", name, fields, f"some of {plant.name}'s parameters:")
    return tuple(parameters)


def _offset(log: Log, offsets: bool | Sequence[str]) -> np.ndarray:
    names = [s.name for s in log.outputs]
    if isinstance(offsets, bool):
        return np.full(len(names), offsets)
    for name in offsets:
        checks.choice("offsets", name, names, "outputs of the log:")
    return np.array([name in offsets for name in names])


def _cut(
    plant: Plant, log: Log, names: tuple[str, ...], method: str, segment: int | None, offsets: np.ndarray,
    substeps: int | None = None,
) -> Segments:  # fmt: skip
    """Segments in which errors grow by a factor of ten at most."""
    growth = float(np.linalg.eigvals(np.asarray(plant.matrices()[0])).real.max())
    longest = max(len(u) for u, _ in log.records)
    if method == "auto":
        method = "multiple" if segment or growth * longest * log.dt > 3 else "single"
    if method == "single":
        length = None
    else:
        fits = round(2.0 / max(growth * log.dt, 1e-9)) if growth > 0 else longest // 10
        length = checks.whole("segment", segment) if segment else int(np.clip(fits, 5, max(longest // 2, 5)))
    substeps = simulation.env(plant, dt=log.dt, substeps=substeps).substeps
    return Segments.of(plant, log, names, length, substeps, offsets)


def _plausible(segments: Segments, log: Log) -> None:
    """Refuse signals that are far from anything that the plant means: most likely another unit."""
    plant = segments.plant
    scales, at = {s.name: s for s in (*plant.inputs, *plant.states)}, dict(log.signals)
    for signal, a in at.items():
        s = scales.get(signal.name)
        if s is not None and s.scale and np.abs(a - s.at).max() > 1e3 * s.scale + 1e3 * abs(s.at):
            raise ValueError(
                f"log: {signal.name} reaches {np.abs(a).max():.3g}, where {s.scale:g} {s.unit} is large for "
                f"{plant.name}: is it in another unit? read(..., units={{'{signal.name}': 'deg'}}) converts"
            )


def _candidates(segments: Segments, starts: int, seed: int) -> np.ndarray:
    """The plant's own values, and others within a factor of some four of them."""
    c = segments.coordinates
    draws = np.random.default_rng(seed).uniform(-1.4, 1.4, (starts, len(c.names)))
    draws[:, c.span != 0] = np.abs(draws[:, c.span != 0]) * 2 - 1
    draws[0] = 0.0
    return np.clip(draws, c.low, c.high)


def _minimised(
    segments: Segments, free: np.ndarray, sigma: np.ndarray, iterations: int, defect: float = DEFECT,
    tolerance: float = 1e-7,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """The unknowns that miss the log least, and half the sum of squares."""
    kept: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def both(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if v.tobytes() not in kept:
            kept.clear()
            kept[v.tobytes()] = segments.condensed(v, sigma, defect)
        return kept[v.tobytes()]

    c = segments.coordinates
    rest = len(free) - len(c.names)
    bounds = (
        np.append(c.low - 1e-9, np.full(rest, -np.inf)),
        np.append(c.high + 1e-9, np.full(rest, np.inf)),
    )
    found = scipy.optimize.least_squares(
        lambda v: both(v)[0], free, lambda v: both(v)[1], bounds=bounds, x_scale="jac", max_nfev=iterations,
        xtol=1e-8, ftol=tolerance, gtol=1e-10,
    )  # fmt: skip
    return found.x, float(found.cost)


def _solved(
    segments: Segments, free: np.ndarray, sigma: np.ndarray, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and starts that miss the log least."""
    _, offsets, starts = segments.unpacked(_minimised(segments, free, sigma, iterations)[0])
    return offsets, starts


def _outputs(segments: Segments, free: np.ndarray) -> np.ndarray:
    z, offsets, starts = segments.unpacked(free)
    return (np.asarray(segments.outputs(jnp.asarray(z), jnp.asarray(starts))[0]) + offsets)[segments.mask]


def _noise(segments: Segments, free: np.ndarray, k: int) -> np.ndarray:
    """Standard deviation of each output's error, less the freedom of the fit."""
    e = _outputs(segments, free) - segments.ys[segments.mask]
    records = int(np.sum(~segments.follows))
    used = (k + records * segments.plant.n) / e.shape[1] + segments.offsets
    rms = np.sqrt(np.sum(e**2, 0) / np.maximum(len(e) - used, 1))
    return np.maximum(rms, 1e-9 * np.maximum(segments.ys[segments.mask].std(0), 1e-12))


def _finished(
    segments: Segments, free: np.ndarray, sigma: np.ndarray, defect: float, costs: np.ndarray, log: Log
) -> Fit:
    z, offsets, starts = segments.unpacked(free)
    k = len(z)
    J = segments.condensed(free, sigma, defect, 0.0)[1]
    R = np.linalg.qr(np.concatenate([J[:, k:], J[:, :k]], 1), mode="r")[
        -k:, -k:
    ]  # all but the parameters eliminated
    c = segments.coordinates
    plant = c.plant(segments.plant, jnp.asarray(z))
    values = np.asarray(c.values(z))
    return Fit(
        plant,
        c.names,
        values,
        z,
        R.T @ R,
        sigma,
        offsets,
        starts,
        _outputs(segments, free),
        costs,
        segments,
        log,
    )

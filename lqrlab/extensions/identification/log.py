"""A log: the inputs and outputs of a plant, sampled, in one or several records."""

import dataclasses
import fractions
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import scipy.signal
from jaxtyping import Float

from lqrlab.compute import checks
from lqrlab.extensions.identification import units
from lqrlab.systems import Plant, Signal

Record = tuple[Float[np.ndarray, "T m"], Float[np.ndarray, "T p"]]
"""Inputs and outputs of one record."""


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
    """Inputs and outputs sampled together, in SI units and absolute: y[t] is measured when u[t] begins to act.

    Attributes:
        us: inputs, held from one sample to the next.
        ys: outputs.
        dt: sample time [s].
        inputs, outputs: their names and units.
        first: the rows at which records begin, 0 first; nothing is assumed of what happened between two records.
        notes: what was found and done when it was read, in words.

    >>> log = identification.read(np.eye(4), inputs=["force"], outputs=["x", "v", "a"], dt=0.1)
    >>> len(log), log.us.shape, log.outputs[1].name
    (4, (4, 1), 'v')
    """

    us: Float[np.ndarray, "T m"]
    ys: Float[np.ndarray, "T p"]
    dt: float
    inputs: tuple[Signal, ...]
    outputs: tuple[Signal, ...]
    first: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse samples from which no model can come: missing ones, of other shapes, of no signal or of two."""
        checks.number("dt", self.dt, "a sample time above 0 s", above=0)
        for name, a, of in (("us", self.us, self.inputs), ("ys", self.ys, self.outputs)):
            found = np.asarray(checks.real(name, a))
            if found.ndim != 2 or not len(found) or found.shape != (len(self.us), len(of)):
                wanted = f"[{len(self.us)}, {len(of)}], samples by signals"
                raise ValueError(f"{name}: expected samples {wanted}, at least one, but found shape {found.shape}")
            if not (good := np.isfinite(found).all(1)).all():
                raise ValueError(
                    f"{name}: expected finite numbers, but found inf or NaN in row {np.argmin(good)}: no model comes "
                    "from a sample that is missing; identification.read leaves it out and begins a new record there"
                )
        for s in (*self.inputs, *self.outputs):
            checks.text("names", checks.instance("inputs, outputs", s, Signal, "signals").name, "the name of a signal")
        names = [s.name for s in (*self.inputs, *self.outputs)]
        if twice := [name for name in names if not name or names.count(name) > 1]:
            raise ValueError(f"inputs, outputs: expected each signal once and with a name, but found {twice[0]!r}")
        if self.first[:1] != (0,) or list(self.first) != sorted(set(self.first)) or self.first[-1] >= len(self.us):
            raise ValueError(
                f"first: expected the rows at which records begin, 0 first, all below {len(self.us)}, but found "
                f"{self.first}"
            )

    def __len__(self) -> int:
        return len(self.us)

    @property
    def records(self) -> list[Record]:
        """Inputs and outputs of each record."""
        return list(zip(np.split(self.us, self.first[1:]), np.split(self.ys, self.first[1:])))

    def centred(self) -> tuple[list[Record], Float[np.ndarray, " m"], Float[np.ndarray, " p"]]:
        """Records less the means of the whole log, and the means of inputs and outputs."""
        u_mean, y_mean = self.us.mean(0), self.ys.mean(0)
        return [(u - u_mean, y - y_mean) for u, y in self.records], u_mean, y_mean

    @property
    def signals(self) -> Iterator[tuple[Signal, np.ndarray]]:
        """Each signal with its samples ``[T]``."""
        return zip((*self.inputs, *self.outputs), np.concatenate([self.us, self.ys], 1).T)

    def _each(self, change: Any, note: str, least: int = 1, **more: Any) -> Self:
        """``change(samples [T, k])`` of each record of ``least`` samples, joined again; shorter ones are left out."""
        made = [(change(u), change(y)) for u, y in self.records if len(u) >= least]
        if short := len(self.first) - len(made):
            if not made:
                longest = max(len(u) for u, _ in self.records)
                raise ValueError(f"log: expected a record of {least} samples or more, but the longest has {longest}")
            note += f"; {short} of {len(self.first)} records left out, which have fewer than {least} samples"
        kept = list(zip(*(pair for pair in made if len(pair[0]))))
        us, ys = (np.concatenate(parts) for parts in kept)
        first = (0, *(int(i) for i in np.cumsum([len(u) for u in kept[0]])[:-1]))
        return dataclasses.replace(self, us=us, ys=ys, first=first, notes=(*self.notes, note), **more)

    def detrended(self, kind: str = "constant") -> Self:
        """Less the mean (``"constant"``) or a straight line (``"linear"``) of each signal in each record."""
        least = {"constant": 2, "linear": 3}[checks.choice("kind", kind, ("constant", "linear"))]
        return self._each(lambda a: scipy.signal.detrend(a, axis=0, type=kind), f"{kind} trend removed", least)

    def filtered(self, cutoff: float, kind: str = "lowpass", order: int = 4) -> Self:
        """All signals through one Butterworth filter, forwards and backwards: no phase is lost.

        Args:
            cutoff: corner frequency [Hz].
            kind: ``"lowpass"`` or ``"highpass"``.
            order: of the filter, which acts twice.
        """
        nyquist = 0.5 / self.dt
        checks.number("cutoff", cutoff, f"a frequency in (0, {nyquist:g}) Hz", above=0, below=nyquist)
        checks.choice("kind", kind, ("lowpass", "highpass"))
        sos = scipy.signal.butter(checks.whole("order", order), cutoff / nyquist, kind, output="sos")
        note = f"{kind} filter at {cutoff:g} Hz, zero phase"
        return self._each(lambda a: scipy.signal.sosfiltfilt(sos, a, axis=0), note, 6 * order + 1)

    def resampled(self, dt: float) -> Self:
        """At another sample time [s], by polyphase filtering: nothing folds back."""
        checks.number("dt", dt, "a sample time above 0 s", above=0)
        ratio = fractions.Fraction(self.dt / dt).limit_denominator(1000)
        if ratio == 0 or abs(float(ratio) * dt / self.dt - 1) > 1e-9:
            raise ValueError(f"dt: expected {self.dt:g} s times a ratio of whole numbers to 1000, but found {dt!r}")

        def change(a: np.ndarray) -> np.ndarray:
            return scipy.signal.resample_poly(a, ratio.numerator, ratio.denominator, axis=0, padtype="line")

        return self._each(change, f"resampled from {self.dt:g} s to {dt:g} s", dt=dt)

    def split(self, share: float = 0.5) -> tuple[Self, Self]:
        """Estimation and validation: the first ``share`` of each record, to whole samples, and the rest."""
        checks.number("share", share, "a share in (0, 1)", above=0, below=1)
        if sum(round(share * len(u)) for u, _ in self.records) in (0, len(self)):
            raise ValueError("share: one of the two parts would have no samples")
        first = self._each(lambda a: a[: round(share * len(a))], f"first {share:.0%}")
        return first, self._each(lambda a: a[round(share * len(a)) :], f"last {1 - share:.0%}")

    def cut(self, start: float = 0.0, stop: float | None = None) -> Self:
        """Each record from ``start`` to ``stop`` [s] after it began; those that had ended before are left out."""
        low = round(checks.number("start", start, "a time ≥ 0 s", low=0) / self.dt)
        high = None if stop is None else round(checks.number("stop", stop, "a time after start", above=start) / self.dt)
        if low >= max(len(u) for u, _ in self.records):
            raise ValueError(f"start: all records have ended before {start:g} s")
        if high is not None and high <= low:
            raise ValueError(f"stop: expected a sample time of {self.dt:g} s or more after start, but found {stop!r}")
        return self._each(lambda a: a[low:high], f"cut to {start:g} s … {stop or 'end'}", low + 1)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """With other names: ``{"pos_mm": "position"}``."""
        self._check_known("names", names, "new names by the old ones, such as {'pos_mm': 'position'}")
        inputs, outputs = (
            tuple(dataclasses.replace(s, name=names.get(s.name, s.name)) for s in given)
            for given in (self.inputs, self.outputs)
        )
        return dataclasses.replace(self, inputs=inputs, outputs=outputs)

    def _check_known(self, kind: str, names: object, what: str) -> None:
        known = [s.name for s, _ in self.signals]
        for name in checks.instance(kind, names, Mapping, what):  # type: ignore[type-abstract]
            if name not in known:
                raise ValueError(f"{kind}: the log has no signal {name!r}{checks.did_you_mean(name, known)}")

    def converted(self, to: Mapping[str, str]) -> Self:
        """With signals in other units: ``{"angle": "deg"}``; one without a unit is taken to be in it already."""
        self._check_known("to", to, "units by names, such as {'angle': 'deg'}")
        signals, columns = [], []
        for s, a in self.signals:
            if s.name in to:
                wanted = checks.text(f"to: {s.name}", to[s.name], "a unit such as 'deg'")
                if (found := units.conversion(s.unit or wanted, wanted)) is None:
                    raise ValueError(f"to: {s.name} is in {s.unit}, which cannot be converted to {wanted}")
                factor, zero = found
                s, a = Signal(s.name, wanted, factor * s.scale, factor * s.at + zero), factor * a + zero
            signals.append(s)
            columns.append(a)
        m, values = len(self.inputs), np.stack(columns, 1)
        note = f"converted: {', '.join(f'{name} to {unit}' for name, unit in to.items())}"
        inputs, outputs = tuple(signals[:m]), tuple(signals[m:])
        us, ys, notes = values[:, :m], values[:, m:], (*self.notes, note)
        return dataclasses.replace(self, us=us, ys=ys, inputs=inputs, outputs=outputs, notes=notes)

    def chosen(self, inputs: Sequence[str], outputs: Sequence[str]) -> Self:
        """With these signals alone."""
        changed: dict[str, Any] = {}
        for kind, samples, wanted in (("inputs", "us", inputs), ("outputs", "ys", outputs)):
            given = getattr(self, kind)
            known = [s.name for s in given]
            if not wanted:
                raise ValueError(f"{kind}: expected one or more of {', '.join(known)}, but found none chosen")
            at = [known.index(checks.choice(kind, name, known)) for name in wanted]
            changed |= {kind: tuple(given[k] for k in at), samples: getattr(self, samples)[:, at]}
        return dataclasses.replace(self, **changed)

    def remarks(self) -> list[str]:
        """Remarks of a careful engineer on the signals: notes of reading, constants, saturation, steps.

        Also inputs that move together, too few samples, and outputs that do not follow any input.
        """
        found = list(self.notes)
        for signal, a in self.signals:
            found += _remarks_of(signal.name, a)
        if len(self.inputs) > 1 and (twins := collinear(self.us)) is not None:
            named = [self.inputs[i].name for i in np.flatnonzero(np.abs(twins) > 0.05)]
            found.append(
                f"{' and '.join(named)} move together: their effects are indistinguishable; excite them independently"
            )
        coherence = self.coherence()[1]
        for i, signal in enumerate(self.outputs):
            if np.isfinite(coherence[i]).all() and coherence[i].max() < 0.3:
                found.append(f"{signal.name}: no input explains it at any frequency (coherence below 0.3)")
        return found

    def spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies [Hz] and power densities ``[m + p, f]`` of all signals by Welch's method, means removed."""
        z = np.concatenate([self.us, self.ys], 1).T
        return scipy.signal.welch(z, 1 / self.dt, nperseg=self._segment, detrend="constant")

    def coherence(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies [Hz] and the multiple coherence ``[p, f]``: the share of each output that inputs explain."""
        segment, m = self._segment, len(self.inputs)
        z = np.concatenate([self.us, self.ys], 1).T
        f, S = scipy.signal.csd(z[:, None], z[None], 1 / self.dt, nperseg=segment, detrend="constant")
        S = np.moveaxis(S, -1, 0)  # [f, m + p, m + p]
        Suu, Suy = S[:, :m, :m], S[:, :m, m:]
        explained = np.einsum("fip,fip->fp", Suy.conj(), np.linalg.pinv(Suu, hermitian=True) @ Suy).real
        power = np.einsum("fpp->fp", S[:, m:, m:]).real
        with np.errstate(divide="ignore", invalid="ignore"):
            return f, np.clip(explained / power, 0, 1).T

    @property
    def _segment(self) -> int:
        return max(min(len(self) // 8, 1024), 8) if len(self) >= 8 else len(self)


def _remarks_of(name: str, a: np.ndarray) -> list[str]:
    """Constant, saturated, coarse."""
    low, high = a.min(), a.max()
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        return [f"{name}: is constant, at {low:g}: it tells nothing"]
    found, few = [], np.unique(a)
    if len(few) > 20:  # a relay or a binary sequence is at its limits by intention
        for end, words in ((low, "lower"), (high, "upper")):
            share = np.mean(a == end)
            if share > 0.02:
                found.append(f"{name}: is at its {words} limit, {end:g}, in {share:.0%} of the samples: saturated?")
    steps = np.diff(few)
    if 8 < len(few) < len(a) / 4:
        step = np.quantile(steps, 0.05)
        whole = np.abs(steps / step - np.round(steps / step)) < 0.05
        if step > 0 and whole.mean() > 0.9:
            found.append(f"{name}: comes in steps of {step:.3g}: quantised, {step / 12**0.5:.2g} of noise rms")
    return found


def check_log(log: object) -> None:
    """Raise ValueError unless this is a log."""
    checks.instance("log", log, Log, "a log, as identification.read makes")


def collinear(us: Float[np.ndarray, "T m"]) -> Float[np.ndarray, " m"] | None:
    """The combination of the inputs, each scaled by its spread, that hardly moves; None if there is none."""
    centred = us - us.mean(0)
    spread = centred.std(0)
    scaled = centred / np.where(spread > 0, spread, 1.0)
    _, s, v = np.linalg.svd(scaled, full_matrices=False)
    return v[-1] if s[-1] < 1e-3 * s[0] else None


def require_excitation(log: Log, samples: int) -> None:
    """Refuse a log from which nothing can be found: too short, a constant input, inputs that move together."""
    if len(log) < samples:
        raise ValueError(
            f"log: expected at least {samples} samples for this many unknowns, but found {len(log)}; record longer, "
            "or ask for a lower order"
        )
    for i, signal in enumerate(log.inputs):
        if np.ptp(log.us[:, i]) <= 1e-12 * max(np.abs(log.us[:, i]).max(), 1e-300):
            raise ValueError(
                f"log: expected an input that moves, but {signal.name} is constant, so its effect is unknown; "
                "excite it (identification.excitation), or leave it out of inputs"
            )
    if len(log.inputs) > 1 and collinear(log.us) is not None:
        names = " and ".join(s.name for s in log.inputs)
        raise ValueError(
            f"log: {names} move together, so their effects are indistinguishable; excite them independently"
        )


def select(log: Log, plant: Plant) -> tuple[np.ndarray, list[int]]:
    """The log's inputs in the plant's order ``[T, m]``, and which of (states, outputs) of the plant each y is."""
    names = [s.name for s in log.inputs]
    for s in plant.inputs:
        if s.name not in names:
            raise ValueError(
                f"log: expected the input {s.name} of {plant.name}, but found {', '.join(names)}"
                f"{checks.did_you_mean(s.name, names)}; log.renamed({{...}}) gives them the plant's names"
            )
    known = [s.name for s in (*plant.states, *plant.outputs)]
    for s in log.outputs:
        if s.name not in known:
            raise ValueError(
                f"log: {s.name} is neither a state nor an output of {plant.name}, which has "
                f"{', '.join(dict.fromkeys(known))}{checks.did_you_mean(s.name, known)}; "
                "log.renamed({...}) gives it the plant's name"
            )
    for s in (*plant.outputs, *plant.states, *plant.inputs):
        require_unit(log, s, f"{plant.name}'s")
    return log.us[:, [names.index(s.name) for s in plant.inputs]], [known.index(s.name) for s in log.outputs]


def require_unit(log: Log, expected: Signal, whose: str) -> None:
    """Refuse a log in which a signal has another unit than is expected; units that are not said are believed."""
    for s, _ in log.signals:
        if s.name == expected.name and s.unit and expected.unit and not units.same(s.unit, expected.unit):
            cure = f"log.converted({{{s.name!r}: {expected.unit!r}}}) converts it"
            if units.conversion(s.unit, expected.unit) is None:
                cure = "there is no conversion: is it another signal, or is its unit misspelt?"
            raise ValueError(f"log: {s.name} is in {s.unit}, {whose} is in {expected.unit}; {cure}")


def signals_of(texts: Sequence[str]) -> tuple[Signal, ...]:
    """``"angle [rad]"`` → Signal("angle", "rad")."""
    split = (text.rstrip("])").replace("(", "[").partition("[") for text in texts)
    return tuple(Signal(name.strip(), unit.strip()) for name, _, unit in split)

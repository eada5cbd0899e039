"""Functional mock-up units for co-simulation, as plants in a loop: their own solver moves them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from lqrlab.compute import checks
from lqrlab.extensions.deployment.fmu_plants import described, instantiated


class CoSimulation:
    """A unit for co-simulation, FMI 2.0 or 3.0, called once a sample: the plant of :func:`realtime`, in its own code.

    It takes the input that has acted since the sample before (None at first: nothing moves) and gives its outputs, in
    the order of its description. With :func:`to_fmu` any plant of the catalogue is one, in C.

    Args:
        path: of the file.
        dt: sample time [s].
        trusted: whether the unit's binary may be executed here: it can do whatever you can.
        start: values of variables before the first step, by name.

    Raises:
        ValueError: hostile archives, before anything is unpacked; a unit without inputs, outputs or co-simulation, or
            that refuses a value or a step.
        ImportError: without the package ``fmpy``, which the extra ``deployment`` installs.

    Source: Functional Mock-up Interface, Modelica Association, versions 2.0.4 and 3.0.1.
    """

    def __init__(
        self, path: str | Path, dt: float, *, trusted: bool = False, start: Mapping[str, float] | None = None
    ) -> None:
        self.file, self.dt, self.time = checks.path("path", path), checks.number("dt", dt, "a time", above=0), 0.0
        try:
            self._start(described(self.file, trusted), dict(start or {}))
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from error

    def _start(self, about: Any, start: dict[str, float]) -> None:
        found = {v.name: v for v in about.modelVariables if v.type in ("Real", "Float64") and not v.shape}
        self.inputs, self.outputs = (
            tuple(name for name, v in found.items() if v.causality == kind) for kind in ("input", "output")
        )
        if about.coSimulation is None or not self.inputs or not self.outputs:
            raise ValueError("expected a unit for co-simulation with scalar inputs and outputs")
        if unknown := sorted(set(start) - set(found)):
            raise ValueError(f"start: {unknown[0]} is no variable of {about.modelName}, which has {', '.join(found)}")
        self._numbers = {name: v.valueReference for name, v in found.items()}
        self._unit = instantiated(self, self.file, about, "CoSimulation")
        newer = about.fmiVersion.startswith("3")
        self._set, self._get = (
            getattr(self._unit, f"{verb}{'Float64' if newer else 'Real'}") for verb in ("set", "get")
        )
        try:
            if not newer:
                self._unit.setupExperiment(startTime=0.0)
            self._unit.enterInitializationMode()
            self._set([self._numbers[name] for name in start], list(start.values()))
            self._unit.exitInitializationMode()
        except Exception as error:
            raise ValueError(f"refuses its start: {type(error).__name__}: {error}") from error

    def __call__(self, u: ArrayLike | None = None) -> Float[np.ndarray, " p"]:
        """Move by a sample time under the input ``u`` [m], then measure; only measure if it is None."""
        if u is not None:
            given = np.asarray(u, float)
            if given.shape != (len(self.inputs),):
                raise ValueError(f"u: expected {len(self.inputs)} numbers, {self.inputs}, but found {given.shape}")
            try:
                self._set([self._numbers[name] for name in self.inputs], given.tolist())
                self._unit.doStep(currentCommunicationPoint=self.time, communicationStepSize=self.dt)
            except Exception as error:
                raise ValueError(f"{self.file}: refused a step at {self.time:g} s: {error}") from error
            self.time += self.dt
        return np.array(self._get([self._numbers[name] for name in self.outputs]))

"""Regions of attraction in a plane of two states: which starts converge on the nonlinear plant, policy by policy."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Array, Float

from lqrlab import evaluation
from lqrlab.compute import checks
from lqrlab.evaluation import Attraction
from lqrlab.simulation import LinearPolicy, Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures.loop_design import FREE, largest_inputs, one_plant
from lqrlab.workbench.panels.controls import revealing_plane
from lqrlab.workbench.panels.live_panel import Check


def optimal(problem: Problem) -> LinearPolicy:
    """The plant's sampled-data LQR."""
    return LinearPolicy(problem.K)


@dataclasses.dataclass(frozen=True, eq=False)
class AttractionSetting:
    """A map: the plant, the policies and the plane."""

    plant: Plant
    policies: dict[str, object]
    across: int  # number of the state that is varied along the plane's width; those not varied start at 0
    up: int  # and along its height
    span: float = 4.0  # how far the map reaches, in scales of its states
    limit: float = 1.0  # of the inputs, in their scales; FREE or more for none
    num: int = 100_000  # rollouts, shared out among the policies
    num_steps: int = 500  # samples after which a loop that neither converged nor diverged is undecided

    def __post_init__(self) -> None:
        for name in ("span", "limit"):
            checks.number(name, getattr(self, name), "a number above 0", above=0.0, finite=False)
        for name in ("num", "num_steps"):
            checks.whole(name, getattr(self, name))

    @classmethod
    def of(
        cls,
        plant: str | Plant,
        policies: Mapping[str, object] | None,
        plane: Sequence[str] | None,
        **sizes: float,
    ) -> "AttractionSetting":
        """The plant's LQR and the policies, in a plane of two named states; ``sizes`` are the other attributes.

        Without names the plane is that of :func:`revealing_plane`.
        """
        plant = one_plant(plant)
        across, up = revealing_plane(plant)
        names = [s.name for s in plant.states]
        if plane is not None:
            chosen = [plane] if isinstance(plane, str) else list(plane)
            if len(chosen) != 2 or chosen[0] == chosen[1] or not set(chosen) <= set(names):
                given = ", ".join(map(str, chosen)) or "none"
                raise ValueError(f"plane: expected two of {', '.join(names)}, but found {given}")
            across, up = (names.index(name) for name in chosen)
        if not isinstance(policies, Mapping | None):
            raise ValueError(f"policies: expected {{label: policy}}, but found {type(policies).__name__}")
        if "optimal" in (policies or {}):
            raise ValueError("policies: expected other labels than 'optimal', which is the LQR's own")
        return cls(plant, {"optimal": optimal, **(policies or {})}, across, up, **sizes)  # type: ignore[arg-type]

    @property
    def limits(self) -> tuple[Float[Array, " m"], Float[Array, " m"]] | None:
        """Of the actuators, absolute; None for none."""
        u_eq, size = self.plant.equilibrium()[1], largest_inputs(self.plant, self.limit)
        return None if self.limit >= FREE else (u_eq - size, u_eq + size)

    @functools.cached_property
    def problem(self) -> Problem:
        """The nonlinear plant within its limits, with its LQR."""
        return Problem.of(self.plant, limits=self.limits)

    @property
    def reach(self) -> tuple[float, float]:
        """Half-widths of the map in its states' units."""
        scales = np.asarray(self.plant.scales[0])
        return self.span * float(scales[self.across]), self.span * float(scales[self.up])

    def starts(self, num: int | None = None) -> Float[np.ndarray, "side side n"]:
        """Initial deviations, rows from below, in the middles of the picture's squares; for ``num`` rollouts."""
        side = max(int(math.sqrt((num or self.num) / len(self.policies))), 2)
        middles = (np.arange(side) + 0.5) / side * 2 - 1
        x0 = np.zeros((side, side, self.plant.n), np.float32)
        x0[..., self.across] = self.reach[0] * middles
        x0[..., self.up] = self.reach[1] * middles[:, None]
        return x0


def maps(
    setting: AttractionSetting, check: Check = lambda: None, num: int | None = None
) -> dict[str, Attraction]:
    """The verdict on each start of the plane under each policy."""
    x0, regions = setting.starts(num), {}
    for label, policy in setting.policies.items():
        try:
            regions[label] = evaluation.attraction(
                setting.problem, policy, x0, num_steps=setting.num_steps, check=check
            )
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error
    return regions

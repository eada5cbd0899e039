"""The data card: a description of a data set, with numbers, in its folder."""

import dataclasses
import string
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from lqrlab.dataset.manifest import REASONS, splits
from lqrlab.dataset.store import SPLITS

if TYPE_CHECKING:
    from lqrlab.dataset.store import Dataset

_SHOWN = 64  # trajectories of each family

_TEMPLATE = Path(__file__).with_name("card_template.txt")


def write(data: "Dataset") -> str:
    """The card as Markdown."""
    config, record = data.config, data.record
    what = f"closed loops of {config.num_steps} steps"
    left_out = [
        f"- {family}: {number} {REASONS[reason]}"
        for family, reasons in data.left_out.items()
        for reason, number in reasons.items()
        if number
    ]
    fields = {
        "trajectories": record["trajectories"],
        "what": f"segments of {config.segment_length} steps from {what}" if config.segmented else what,
        "variants": record["variants"],
        "families": len(config.families),
        "windows": record["trajectories"] * config.row_steps,
        "megabytes": f"{sum(shard['bytes'] for shard in data.shards) / 1e6:.1f}",
        "files": len(data.shards),
        "model": "linearised, by exact zero-order hold" if config.linear else "nonlinear, by Runge-Kutta 4 in substeps",
        "held_out": ", ".join(config.held_out or ()) or "no family",
        "rows": "segments" if config.segmented else "trajectories",
        "table": "\n".join("| " + " | ".join(_row(data, family)) + " |" for family in config.families),
        "shown": _SHOWN,
        "left_out": "\n".join(left_out) or "Nothing.",
        "config": config.to_json(),
        "row": "a segment of a closed loop, which begins at its step `start`" if config.segmented else "a closed loop",
        "file": data.shards[0]["file"],
    }
    return string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(dataclasses.asdict(config) | fields)


def _row(data: "Dataset", family: str) -> list[str]:
    """The cells of a family."""
    of_split = splits(data.config, family).astype(str).tolist()
    files = [s for s in data.shards if s["family"] == family]
    n, m = files[0]["arrays"]["variants/B"]["shape"][1:]
    x, u = sample(data, data.shards.index(files[0]))
    far = float(np.mean(np.any(np.abs(x) > 3, axis=(1, 2)))) if len(x) else 0.0
    return [
        family,
        f"{n}, {m}",
        *(str(of_split.count(name)) for name in SPLITS),
        str(sum(s["trajectories"] for s in files)),
        str(sum(data.left_out[family].values())),
        *("{:.2f} … {:.2f}".format(*np.quantile(a, (0.01, 0.99))) if a.size else "none" for a in (x, u)),
        f"{100 * far:.0f} %",
    ]


def sample(
    data: "Dataset", number: int, count: int = _SHOWN
) -> tuple[Float[np.ndarray, "N samples n"], Float[np.ndarray, "N T m"]]:
    """States and inputs of the first trajectories of a file, in units of their scales."""
    names = ("variant", "states", "controls")
    arrays = data.read(data.shards[number], [f"trajectories/{name}" for name in names])
    of, states, controls = (a[:count] for a in arrays.values())
    coordinates = data.coordinates(number, of)
    n, m = states.shape[-1], controls.shape[-1]
    return coordinates.scale_state(states)[..., :n], coordinates.scale_input(controls)[..., :m]

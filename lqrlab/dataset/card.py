"""The data card: what a data set is, in words and numbers, for a reader who has the folder alone."""

import string
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from lqrlab.dataset import shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import REASONS, splits
from lqrlab.dataset.variant_table import SPLITS
from lqrlab.dataset.windows import ARRAYS

if TYPE_CHECKING:
    from lqrlab.dataset.store import Dataset

_SHOWN = 64  # trajectories of each family

_TEMPLATE = Path(__file__).with_name("card_template.txt")


def write(data: "Dataset") -> str:
    """The card as Markdown."""
    config, record = data.config, data.record
    what, row = f"closed loops of {config.num_steps} steps", "a closed loop"
    if config.segmented:
        what = f"segments of {config.segment_length} steps from {what}"
        row = "a segment of a closed loop, which begins at its step `start`"
    left_out = [
        f"- {family}: {number} {REASONS[reason]}"
        for family, reasons in data.left_out.items()
        for reason, number in reasons.items()
        if number
    ]
    fields = {
        "trajectories": record["trajectories"],
        "what": what,
        "variants": record["variants"],
        "families": len(config.families),
        "windows": record["trajectories"] * config.row_steps,
        "megabytes": f"{sum(shard['bytes'] for shard in data.shards) / 1e6:.1f}",
        "files": len(data.shards),
        "how": _how(config),
        "rows": "segments" if config.segmented else "trajectories",
        "table": "\n".join("| " + " | ".join(_row(data, family)) + " |" for family in config.families),
        "shown": _SHOWN,
        "left_out": "\n".join(left_out) or "Nothing.",
        "config": config.to_json(),
        "row": row,
        "imports": "import h5py" + ", hdf5plugin  # the trajectories are compressed" * bool(config.compression),
        "file": data.shards[0]["file"],
    }
    return string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(fields)


def _how(config: DataConfig) -> str:
    """The simulation of the loops, in words."""
    runner = f"the policy “{config.controller}”; the optimum is recorded as the target"
    if config.controller == "lqr":
        runner = "each plant's optimal gain (sampled-data LQR)"
        if config.gain_error:
            runner += f", its entries {100 * config.gain_error:g} % off in the loop"
    model = "linearised, by exact zero-order hold"
    if not config.linear:
        model = "nonlinear, by Runge-Kutta 4 in substeps"
    noises = {
        "excitation added to the input": config.excitation,
        "a disturbance of the state at each step": config.noise,
        "sensor noise in the state that the controller sees": config.sensor_noise,
    }
    added = [f"{words} of standard deviation {value:g}" for words, value in noises.items() if value]
    text = (
        f"Plants are {model}, their parameters drawn within ±{100 * config.spread:g} % of the defaults, and controlled "
        f"by {runner}, with {' and '.join(added) or 'nothing added'} (in units of each signal's scale)."
    )
    if config.saturation is not None:
        text += f" Inputs are limited to ±{config.saturation:g} of their scale."
    if config.segmented:
        text += (
            f" Of every {config.keep_every} segments of {config.segment_length} steps of a loop the first is kept, "
            f"{len(config.starts)} of each loop; what was left out is counted in whole loops."
        )
    held_out = ", ".join(config.held_out or ()) or "no family"
    return (
        f"{text} A share of {config.validation:g} of the variants of each trained family is kept for validation; "
        f"{held_out} is never trained on."
    )


def _row(data: "Dataset", family: str) -> list[str]:
    """The cells of a family."""
    config = data.config
    names, counts = np.unique(splits(config, family), return_counts=True)
    split = dict(zip(names.astype(str), counts.tolist()))
    files = [s for s in data.shards if s["family"] == family]
    n, m = files[0]["arrays"]["variants/B"]["shape"][1:]
    left_out = {reason: number for reason, number in data.left_out.get(family, {}).items() if number}
    x, u = sample(data, data.shards.index(files[0]))
    far = float(np.mean(np.any(np.abs(x) > 3, axis=(1, 2)))) if len(x) else 0.0
    return [
        family,
        f"{n}, {m}",
        *(str(split.get(name, 0)) for name in SPLITS),
        str(sum(s["trajectories"] for s in files)),
        ", ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in left_out.items()) or "0",
        *(_range(a) for a in (x, u)),
        f"{100 * far:.0f} %",
    ]


def _range(a: np.ndarray) -> str:
    if not a.size:
        return "none"
    low, high = np.quantile(a, (0.01, 0.99))
    return f"{low:.2f} … {high:.2f}"


def sample(
    data: "Dataset", number: int, count: int = _SHOWN
) -> tuple[Float[np.ndarray, "N samples n"], Float[np.ndarray, "N T m"]]:
    """States and inputs of the first trajectories of a file, in units of their scales."""
    path = data.path / data.shards[number]["file"]
    with shards.opened(path, only=ARRAYS) as arrays:
        of, states, controls = (shards.rows(path, arrays, name, 0, count) for name in ARRAYS)
    coordinates = data.coordinates(number, of)
    n, m = states.shape[-1], controls.shape[-1]
    return coordinates.scale_state(states)[..., :n], coordinates.scale_input(controls)[..., :m]

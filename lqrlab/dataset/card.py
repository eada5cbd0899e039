"""The data card: what a data set is, in words and numbers, for a reader who has the folder alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from lqrlab.dataset import shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import REASONS, splits
from lqrlab.dataset.table import SPLITS
from lqrlab.dataset.windows import ARRAYS

if TYPE_CHECKING:
    from lqrlab.dataset.store import Dataset

_SHOWN = 64  # trajectories of each family

_READING = Path(__file__).with_name("card_reading.txt")


def write(data: "Dataset") -> str:
    """The card as Markdown."""
    config, record = data.config, data.record
    size = sum(shard["bytes"] for shard in data.shards)
    rows = "segments" if config.segmented else "trajectories"
    left_out = [
        f"- {family}: {number} {REASONS[reason]}"
        for family, reasons in data.left_out.items()
        for reason, number in reasons.items()
        if number
    ]
    lines = [
        "# Data card",
        "",
        f"{record['trajectories']} {_what(config)} of {record['variants']} plants from "
        f"{len(config.families)} families: {record['trajectories'] * config.row_steps} windows to learn from, "
        f"{size / 1e6:.1f} MB in {len(data.shards)} files.",
        "",
        _how(config),
        "",
        "## Contents",
        "",
        f"| family | states, inputs | train | validation | held out | {rows} | left out | states, 1 % … 99 % "
        f"| inputs, 1 % … 99 % | {rows} beyond 3 scales |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *("| " + " | ".join(_row(data, family)) + " |" for family in config.families),
        "",
        "States and inputs in units of their scales (`scale_x`, `scale_u`: the deviation that counts as large), of up "
        f"to {_SHOWN} {rows} of each family.",
        "",
        "## What was left out, and why",
        "",
        *(left_out or ["Nothing."]),
        "",
        "## Config",
        "",
        "```json",
        config.to_json(),
        "```",
        "",
        "With this, `lqrlab data generate` makes the same bytes again with the same versions (in each file's "
        "attributes), in one process or in many.",
        "",
    ]
    return "\n".join(lines) + "\n" + _reading(config, data.shards[0]["file"])


def _reading(config: DataConfig, file: str) -> str:
    """How to read the files without this package."""
    text = _READING.read_text(encoding="utf-8").replace("{file}", file)
    if config.segmented:
        row = "a segment of a closed loop, which begins at its step `start`"
        text = text.replace("one row a closed loop", f"one row {row}")
    if config.compression:
        text = text.replace("import h5py\n", "import h5py, hdf5plugin  # the trajectories are compressed\n")
    return text


def _what(config: DataConfig) -> str:
    """What a row is, in words."""
    whole = f"closed loops of {config.num_steps} steps"
    return f"segments of {config.segment_length} steps from {whole}" if config.segmented else whole


def _how(config: DataConfig) -> str:
    """How the loops were simulated, in words."""
    runner = f"the policy “{config.controller}”; the optimum is recorded as the target"
    if config.controller == "lqr":
        runner = "each plant's optimal gain (sampled-data LQR)"
        if config.gain_error:
            runner += f", its entries {100 * config.gain_error:g} % off in the loop"
    model = (
        "linearised, by exact zero-order hold" if config.linear else "nonlinear, by Runge-Kutta 4 in substeps"
    )
    noises = {
        "excitation added to the input": config.excitation,
        "a disturbance of the state at each step": config.noise,
        "sensor noise in the state that the controller sees": config.sensor_noise,
    }
    added = [f"{words} of standard deviation {value:g}" for words, value in noises.items() if value]
    limit = (
        "" if config.saturation is None else f" Inputs are limited to ±{config.saturation:g} of their scale."
    )
    cut = ""
    if config.segmented:
        cut = (
            f" Of every {config.keep_every} segments of {config.segment_length} steps of a loop the first is kept, "
            f"{len(config.starts)} of each loop; what was left out is counted in whole loops."
        )
    return (
        f"Plants are {model}, their parameters drawn within ±{100 * config.spread:g} % of the defaults, and controlled "
        f"by {runner}, with {' and '.join(added) or 'nothing added'} (in units of each signal's scale)."
        f"{limit}{cut} A share of {config.validation:g} of the variants of each trained family is kept for validation; "
        f"{', '.join(config.held_out or ()) or 'no family'} is never trained on."
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

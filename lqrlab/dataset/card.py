"""The data card: what a data set is, in words and numbers, for whoever finds the folder without us."""

from typing import TYPE_CHECKING

import numpy as np

from lqrlab.dataset import shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import splits
from lqrlab.dataset.windows import ARRAYS

if TYPE_CHECKING:
    from lqrlab.dataset.store import Dataset

FILE = "card.md"
_LOOKED_AT = 64  # trajectories of each family

REASONS = {
    "no_stabilizing_design": "variants without a stabilizing optimal gain (no trajectory of theirs is kept)",
    "diverged": "trajectories that left the model for good, a state a thousand scales from the equilibrium",
    "saturated": "trajectories whose input stayed at its limit while the state went away",
}
"""What each reason for leaving something out means."""

_READING = """\
## Reading it without this program

Each `.h5` file is complete in itself: plain HDF5, numbers only, SI units (each array says its own), deviations from
the equilibrium. `variants/*` has one row a plant (`A`, `B`, `Q`, `R`: continuous; `K`, `P`: optimum of the sampled
problem; `dt`; `scale_x`, `scale_u`; `parameters/*`; `split`), `trajectories/*` one row a closed loop: `states`
[N, T+1, n], `controls` [N, T, m], `x0`, `cost`, and `variant`, the row of its plant in the same file. The optimal
input at any state is `-K x`.

Python, with h5py alone (PyTorch: `torch.from_numpy`):

```python
import h5py
with h5py.File("{file}") as f:
    t, v = f["trajectories"], f["variants"]
    of = t["variant"][...]                                    # row of each trajectory's plant
    x, u = t["states"][...], t["controls"][...]
    target = -(v["K"][...][of][:, None] @ x[:, :-1, :, None])[..., 0]
    train = v["split"][...][of] == b"train"                   # split by plant, never by window
```

MATLAB (which counts from 1 and lists dimensions the other way round):

```matlab
x  = h5read('{file}', '/trajectories/states');       % n x (T+1) x N
u  = h5read('{file}', '/trajectories/controls');     % m x T x N
of = h5read('{file}', '/trajectories/variant') + 1;  % row of each trajectory's plant
K  = permute(h5read('{file}', '/variants/K'), [2 1 3]);      % m x n x variants
```

`manifest.json` has the SHA-256 of every array; `lqrlab data verify .` checks them, and the laws that the numbers obey.
"""


def write(data: "Dataset") -> str:
    """The card as Markdown."""
    config, record = data.config, data.record
    size = sum(shard["bytes"] for shard in data.shards)
    rows = "trajectories" if config.keep_every == 1 else "stretches"
    lines = [
        "# Data card",
        "",
        f"{record['trajectories']} {_what(config)} of {record['variants']} plants from "
        f"{len(config.families)} families: {record['trajectories'] * config.row_steps} windows to learn from, "
        f"{size / 1e6:.1f} MB in {len(data.shards)} files.",
        "",
        _how(config),
        "",
        "## What is in it",
        "",
        f"| family | states, inputs | train | validation | held out | {rows} | left out | states, 1 % … 99 % "
        "| inputs, 1 % … 99 % | farther than 3 scales |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for family in config.families:
        lines.append("| " + " | ".join(_row(data, family)) + " |")
    lines += [
        "",
        "States and inputs in units of their scales (`scale_x`, `scale_u`: the deviation that counts as large), of up "
        f"to {_LOOKED_AT} {rows} of each family.",
        "",
        "## What was left out, and why",
        "",
    ]
    said = [
        f"- {family}: {number} {REASONS[reason]}"
        for family, reasons in data.left_out.items()
        for reason, number in reasons.items()
        if number
    ]
    lines += said or ["Nothing."]
    lines += ["", "## What it was made from", "", "```json", config.to_json(), "```", ""]
    lines += [
        "With this, `lqrlab data generate` makes the same bytes again with the same versions (in each file's "
        "attributes), whoever makes them: one process or many.",
        "",
    ]
    reading = _READING.replace("{file}", data.shards[0]["file"])
    if config.keep_every > 1:
        row = "a stretch of a closed loop, which begins at its step `start`"
        reading = reading.replace("one row a closed loop", f"one row {row}")
    if config.compression:
        reading = reading.replace("import h5py\n", "import h5py, hdf5plugin  # the trajectories are packed\n")
    return "\n".join(lines) + "\n" + reading


def _what(config: DataConfig) -> str:
    """What a row is, in words."""
    if config.keep_every == 1:
        return f"closed loops of {config.num_steps} steps"
    return f"stretches of {config.segment_length} steps from closed loops of {config.num_steps} steps"


def _how(config: DataConfig) -> str:
    """How the loops were run, in words."""
    runner = {
        "lqr": "each plant's own optimal gain (sampled-data LQR)"
        + (f", its entries {100 * config.gain_error:g} % off in the loop" if config.gain_error else "")
    }.get(config.controller, f"the policy “{config.controller}”; the optimum is kept beside it")
    model = (
        "linearised, by exact zero-order hold" if config.linear else "nonlinear, by Runge-Kutta 4 in substeps"
    )
    added = [
        f"{words} of standard deviation {value:g}"
        for words, value in (
            ("excitation added to the input", config.excitation),
            ("a disturbance of the state at each step", config.noise),
            ("sensor noise in what the controller sees", config.sensor_noise),
        )
        if value
    ]
    limit = (
        "" if config.saturation is None else f" Inputs are limited to ±{config.saturation:g} of their scale."
    )
    cut = (
        ""
        if config.keep_every == 1
        else f" Of every {config.keep_every} stretches of {config.segment_length} steps of a loop the first is kept, "
        f"{len(config.starts)} of each loop; what was left out is counted in whole loops."
    )
    return (
        f"Plants are {model}, their parameters drawn within ±{100 * config.spread:g} % of the defaults, and run by "
        f"{runner}, with {' and '.join(added) if added else 'nothing added'} (in units of each signal's scale)."
        f"{limit}{cut} A share of {config.validation:g} of the variants of each trained family is kept for validation; "
        f"{', '.join(config.held_out or ()) or 'no family'} is never trained on."
    )


def _row(data: "Dataset", family: str) -> list[str]:
    config = data.config
    names, counts = np.unique(splits(config, family), return_counts=True)
    split = dict(zip(names.astype(str), counts.tolist()))
    mine = [s for s in data.shards if s["family"] == family]
    n, m = mine[0]["arrays"]["variants/B"]["shape"][1:]
    out = {k: v for k, v in data.left_out.get(family, {}).items() if v}
    left = ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in out.items()) or "0"
    number = data.shards.index(mine[0])
    x, u = looked_at(data, number)
    far = float(np.mean(np.any(np.abs(x) > 3, axis=(1, 2)))) if len(x) else 0.0
    return [
        family,
        f"{n}, {m}",
        *(str(split.get(name, 0)) for name in ("train", "validation", "held_out")),
        str(sum(s["trajectories"] for s in mine)),
        left,
        *(_range(a) for a in (x, u)),
        f"{100 * far:.0f} % of {'loops' if config.keep_every == 1 else 'stretches'}",
    ]


def _range(a: np.ndarray) -> str:
    if not a.size:
        return "none"
    low, high = np.quantile(a, (0.01, 0.99))
    return f"{low:.2f} … {high:.2f}"


def looked_at(data: "Dataset", number: int, count: int = _LOOKED_AT) -> tuple[np.ndarray, np.ndarray]:
    """States ``[N, T+1, n]`` and inputs ``[N, T, m]`` of the first trajectories of a file, in units of scales."""
    path = data.path / data.shards[number]["file"]
    with shards.opened(path, only=ARRAYS) as found:
        of, states, controls = (shards.part(path, found, name, 0, count) for name in ARRAYS)
    coordinates = data.coordinates(number, of)
    n, m = states.shape[-1], controls.shape[-1]
    return coordinates.scale_state(states)[..., :n], coordinates.scale_input(controls)[..., :m]

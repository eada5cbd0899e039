"""Tables: what is read off the catalogue, a training log or a score, as pandas frames that a report shows well."""

import functools
import html
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from lqrlab import control, systems
from lqrlab.evaluation import Judgement, Score
from lqrlab.systems import Plant
from lqrlab.workbench.figures import digits, plant_card
from lqrlab.workbench.figures.charts import percent


def catalogue(names: Sequence[str]) -> pd.DataFrame:
    """One row a family: what it is, dimensions, sample time, open-loop poles in words."""
    rows = [
        {
            "plant": plant.name,
            "what it is": plant_card.phrase(plant.title),
            "states": plant.n,
            "inputs": plant.m,
            "dt [ms]": 1e3 * float(plant.dt),
            "least stable mode": control.modes_in_words(plant)[0][1],
        }
        for plant in map(systems.make, names)
    ]
    return pd.DataFrame(rows).set_index("plant")


def parameters(plant: Plant) -> pd.DataFrame:
    """One row a parameter: value, unit, range, meaning."""
    head = ["parameter", *plant_card.PARAMETERS[1:]]
    return pd.DataFrame(plant_card.parameter_rows(plant), columns=head).set_index("parameter")


def scores(by_policy: Mapping[str, Score], groups: Sequence[str]) -> pd.DataFrame:
    """One row a family, of which ``groups`` has each variant's, and policy: shares, excess cost in percent."""
    rows = []
    for family in dict.fromkeys(groups):
        members = np.flatnonzero(np.array(groups) == family)
        rows += [{"plant": family, "controller": k, **s[members].summary()} for k, s in by_policy.items()]
    return pd.DataFrame(rows).set_index(["plant", "controller"])


def judgement(found: Judgement) -> pd.DataFrame:
    """One row a scenario and controller that gave an answer there, as :func:`scores` has them for families."""
    frame = pd.DataFrame(found.rows()).set_index(["plants", "controller"])
    frame = frame.drop(columns=["worst", "step [s]", "slowest step [s]"])
    return frame[frame["diverged"].notna()].dropna(axis="columns", how="all")


def training(rows: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """One row a line of ``metrics.jsonl``: step, losses, 1 − efficiency of unseen variants' loops, how many diverge."""
    log = pd.DataFrame(list(rows))
    columns = {
        "step": log["step"].astype(float),
        "loss": log["loss"],
        "imitation": log.get("imitation", np.nan),
        "validation": log["validation_loss"],
        "1 − efficiency [%]": 100 * (1 - log["validation_efficiency"]),
        "loops diverged [%]": 100 * log["validation_diverged"],
    }
    return pd.DataFrame(columns)


def show(
    frame: pd.DataFrame, caption: str = "", formats: Mapping[str, str | Callable[..., str]] | None = None
) -> Styler:
    """A frame as a report shows it: captioned, words to the left, numbers to the right with four digits.

    A value of the first column that repeats the one above is left blank.
    """
    flat = frame.reset_index()
    first = flat.columns[0]
    if flat[first].dtype.kind not in "biufc":
        flat[first] = flat[first].where(flat[first] != flat[first].shift(), "")
    words = [c for c in flat.columns if flat[c].dtype.kind not in "biufc"]
    numbers: dict[str, str | Callable[..., str]] = {
        c: functools.partial(digits, count=4) for c in flat.columns if flat[c].dtype.kind == "f"
    }
    styler = flat.style.hide(axis="index").format(numbers | dict(formats or {}), escape="html")
    styler = styler.format_index(escape="html", axis="columns")
    left = {"text-align": "left", "white-space": "normal"}
    styler = styler.set_properties(subset=words, **left)
    heads = {c: [{"selector": "th", "props": [("text-align", "left")]}] for c in words}
    styler = styler.set_table_styles(heads, overwrite=False)
    return styler.set_caption(html.escape(caption)) if caption else styler


def show_scores(frame: pd.DataFrame, caption: str = "") -> Styler:
    """A frame from :func:`scores`, with units in its head."""
    names = {c: f"{c} [%]" for c in frame.columns}
    if caption and "bounded" in frame.columns:
        caption += "; bounded: loops that neither converge nor diverge"
    styler = show(frame.rename(columns=names), caption, {c: percent for c in names.values()})
    # the table is about the network: its rows stand out
    mine = [str(name) == "network" for name in frame.index.get_level_values("controller")]
    return styler.set_properties(subset=pd.IndexSlice[mine, :], **{"font-weight": "bold"})

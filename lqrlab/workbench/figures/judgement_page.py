"""The page of a judgement: where controllers are good or bad, the tails of their costs, and the worst loops."""

import dataclasses
import itertools
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Array, PRNGKeyArray

import lqrlab
from lqrlab import control, systems
from lqrlab.evaluation import Judgement, Scenario, judging
from lqrlab.simulation import LinearPolicy, Problem, rollout
from lqrlab.workbench import figures
from lqrlab.workbench.figures import charts, svg, tables
from lqrlab.workbench.figures.svg import Picture, Stroke, element, px, text

GOOD = 10.0
"""Percent above the optimum at p99 up to which a controller is good, if none of its loops fails."""
_WIDTHS = {"lq-wide": 860.0, "lq-narrow": 350.0}  # of the picture [px], on a page and on a phone
_LOOK = ".lq-narrow{display:none}@media(max-width:40rem){.lq-narrow{display:block}.lq-wide{display:none}}"
_DECADES = -3, 5  # of the cost above the optimum [%] that is drawn
_ROW, _LOST = 13.0, 64.0  # height of a controller's line, width of what stands at the right edge [px]


def answer(judgement: Judgement, *names: str, most: int = 3) -> str:
    """Two sentences on each controller (all if none is named), where it is good and where it is bad, as Markdown; they
    name at most so many scenarios of each kind."""
    found = {name: words for name, words in _sentences(judgement, most).items() if name in names or not names}
    return "\n\n".join(f"**{_plain(name)}:** {_plain(words)}" for name, words in found.items())


def write(judgement: Judgement, path: str | Path, *, command: str = "", loops: Sequence[tuple[str, str]] = ()) -> Path:
    """Write a judgement as one HTML file, to be mailed; ``loops`` are those of :func:`worst`.

    What the judgement's recipe says of date, processor, command or else stands on the page as it is.
    """
    from lqrlab.workbench.runs import report, session  # and nbconvert: a second

    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    made = {"date": session.now().replace("T", " ")[:16], "processor": machine, "command": command}
    return report.fill(
        Path(path),
        "judgement.html.j2",
        whole=True,
        judgement=judgement,
        answers=_sentences(judgement),
        good=GOOD,
        tails=tails(judgement).html,
        table=_table(judgement),
        times=_times(judgement),
        loops=loops,
        facts={**made, **judgement.recipe},
        versions=session.versions(),
        run={},
    )


def worst(
    controllers: Mapping[str, object],
    scenarios: Mapping[str, Scenario],
    judgement: Judgement,
    *,
    key: PRNGKeyArray,
    num: int = 5,
) -> list[tuple[str, str]]:
    """The loops that cost most in a judgement, run again, in words and drawn: first the worst of each scenario.

    Of scenarios without noise and events. Scenarios and key are those of ``evaluation.judge``.
    """
    ranked, found = [], []
    for (scenario, one), name in itertools.product(scenarios.items(), controllers):
        score = judgement.scores.get(scenario, {}).get(name)
        if score is not None and not (one.noise or one.events or one.told == "units"):
            excess = 100 * np.nan_to_num(score.ratio, nan=1.0, posinf=math.inf) - 100
            order = [i for i in np.argsort(-excess.max(1), kind="stable")[:num].tolist() if excess[i].max() > 1e-3]
            ranked += [
                (rank, -float(excess[i].max()), scenario, name, i, int(excess[i].argmax()))
                for rank, i in enumerate(order)
            ]
    for _, excess, scenario, name, i, start in sorted(ranked)[:num]:
        starts, of_scenario = judgement.scores[scenario][name].ratio.shape[1], judging.key_of(key, scenario)
        cost = "does not converge" if math.isinf(excess) else f"{percent(-excess)} % above the optimum"
        plant = judgement.plants[scenario][i].replace("_", " ")
        try:
            loop = judging.loop_of(controllers[name], scenarios[scenario], of_scenario, i, start, starts)
            begun, drawn = _responses(*loop, name, plant)
        except Exception as error:  # a controller's fault costs its own picture
            begun, drawn = f"a start from which it is not run again: {error}", ""
        found.append((f"{plant} ({scenario}), {name}: {cost}. From {begun}.", drawn))
    return found


def _controllers(judgement: Judgement) -> list[str]:
    return list(dict.fromkeys(name for by in judgement.scores.values() for name in by))


def _plain(words: str) -> str:
    """Words in which Markdown sees no markup."""
    return re.sub(r"[\\`*|\[\]]|<(?=\S)|(?<!\w)_|_(?!\w)", r"\\\g<0>", words)


def percent(value: float) -> str:
    """A percentage in two digits: others do not repeat on another machine."""
    if abs(value) < 1e-3 or 1e6 <= value < math.inf:
        return "< 0.001" if value < 1 else "> 1,000,000"
    return figures.digits(value, 2)


def share(value: float) -> str:
    """A share of the loops in percent, to a tenth."""
    return "–" if math.isnan(value) else "< 0.1" if 0 < value < 0.05 else f"{value:.1f}".removesuffix(".0")


_COLUMNS = {
    **dict.fromkeys(("diverged", "failed", "no answer", "no optimum"), share),
    **dict.fromkeys(("p99", "p95", "median", "beyond limit"), percent),
}


def _sentences(judgement: Judgement, most: int = 3) -> dict[str, str]:
    """Controller → good and bad scenarios; of many scenarios some, those with most diverged cases first."""
    summary, found = judgement.summary(), {}
    for name in _controllers(judgement):
        grades: dict[str, list[str]] = {"good": [], "bad": [], "weak": [], "no answer": [], "not tried": []}
        each = [(scenario, by[name]) for scenario, by in summary.items() if name in by]
        for scenario, numbers in sorted(each, key=lambda one: -np.nan_to_num(one[1]["diverged"])):
            grade, why = _grade(numbers)
            if grade == "no answer" and "A and B, which are unknown" in str(judgement.refused[name][scenario]):
                grade, why = "not tried", ", since it needs A and B"
            grades[grade].append(scenario + why)
        parts = {
            grade: f"{grade} on {'; '.join(rows[:most])}" + f"; and {len(rows) - most} more below" * (len(rows) > most)
            for grade, rows in grades.items()
            if rows
        }
        said = parts.pop("good", "good nowhere"), "; ".join(parts.values()) or "bad nowhere: no case fails"
        found[name] = " ".join(f"{a[0].upper()}{a[1:]}." for a in said).replace(" %)", " % above the optimum)", 1)
    return found


def _grade(numbers: Mapping[str, float]) -> tuple[str, str]:
    """Words on how good a controller is in a scenario, and why, in brackets."""
    if numbers.get("no answer") == 100:
        return "no answer", ""
    diverged, failed, hopeless = numbers["diverged"], numbers["failed"], numbers.get("no optimum", 0.0)
    low, p99 = percent(numbers["median"]), percent(numbers["p99"])
    said = [f"median {low} %", f"99 of 100 cases {'at most ' * (p99[0] not in '<>')}{p99} %"]
    if failed > 0:
        said[1] = f"{share(diverged)} % of the cases diverge" if diverged else f"{share(failed)} % of the cases fail"
        said += [f"{share(hopeless)} % have no optimum within the limits"] * (hopeless > 0)
    grade = "bad" if failed >= 1 else "good" if failed == 0 and numbers["p99"] <= GOOD else "weak"
    return grade, f" ({', '.join(said)})"


def _table(judgement: Judgement) -> str:
    """A row a scenario and controller, of those numbers that there are."""
    frame = pd.DataFrame(judgement.rows()).rename(columns={"plants": "scenario"})
    frame = frame.reindex(columns=["scenario", "controller", *_COLUMNS]).dropna(axis="columns", how="all")
    frame = frame.fillna({"no answer": 0.0}).set_index("scenario")
    return tables.show(frame, formats={name: _COLUMNS[name] for name in frame.columns[1:]}).to_html()


def _times(judgement: Judgement) -> list[tuple[str, ...]]:
    """Controller, median and longest time of a step, and the shortest sample time of the families."""
    names = {name for plants in judgement.plants.values() for name in plants} & set(systems.names())
    fast = [f"{charts.duration(t)} ({name})" for t, name in sorted((systems.make(n).dt, n) for n in names)]
    written = {name: [charts.duration(float(f"{t:.1e}")) for t in taken] for name, taken in judgement.seconds.items()}
    return [(name, *taken, *(fast or ["–"])[:1]) for name, taken in written.items()]


def tails(judgement: Judgement, *names: str) -> svg.HtmlPage:
    """The :func:`picture` of controllers, of all if none is named, for a page and for a phone."""
    kept = {s: {k: v for k, v in by.items() if k in names or not names} for s, by in judgement.scores.items()}
    drawn = {look: picture(dataclasses.replace(judgement, scores=kept), width) for look, width in _WIDTHS.items()}
    body = "".join(f'<div class="{look}">{one.svg}</div>' for look, one in drawn.items())
    return svg.HtmlPage(f"<style>{_LOOK}</style>{body}", drawn["lq-wide"].alt, "Tails")


def picture(judgement: Judgement, width: float = 860.0) -> Picture:
    """The tails: of each scenario and controller a line from the median to p95 and p99; diverged loops at the edge."""
    summary, looks = judgement.summary(), svg.strokes(_controllers(judgement))
    keys = "".join(svg.legend(2, 12 + 15 * k, {n[-40:]: Stroke(c)}) for k, (n, (c, _)) in enumerate(looks.items()))
    top, tall = 24 + 15.0 * len(looks), sum(20 + _ROW * len(by) for by in summary.values())
    tails = [n["p99"] for by in summary.values() for n in by.values() if math.isfinite(n["p99"])]
    low, high = _DECADES[0], min(math.ceil(math.log10(max([*tails, 10.0]))), _DECADES[1])
    axes = charts.Axes((0.0, top, width, tall), (low, high), (0.0, 1.0), (22, _LOST, 0, 0))
    start, end, _, bottom = axes.edges
    edge = {"class": "lq-forbidden", "x": px(end + 8), "y": px(top), "width": px(_LOST - 8), "height": px(tall)}
    body = element("rect", edge) + text(end + 12, top - 4, "diverge", look="lq-soft")
    body += text(start, top - 4, "cost above the optimum [%]", look="lq-soft")
    for decade in range(low, high + 1, 1 if width > 500 else 2):
        at, label = float(axes.place(decade, 0.0)[0]), f"{10.0**decade:,.10g}"
        body += element("path", {"class": "lq-grid", "d": f"M{px(at)} {px(top)}V{px(bottom)}"})
        body += text(at, bottom + 13, "≤ " * (decade == low) + label, look="lq-soft", anchor="middle")
    y = top
    for scenario, by in summary.items():
        body, y = body + text(start + 2, y + 12, scenario, look="lq-b"), y + 20
        for name, numbers in by.items():
            body, y = body + _tail(axes, y + 2, numbers, looks[name]), y + _ROW
    alt = f"Cost above the optimum in each scenario of {', '.join(looks)}; the table below has the numbers"
    return Picture(svg.document(keys + body, width, bottom + 20, alt), alt)


def _tail(axes: charts.Axes, y: float, numbers: Mapping[str, float], stroke: Stroke) -> str:
    """The line of one controller, and its share of diverged loops."""
    start, end, *_ = axes.edges
    values = [numbers[key] for key in ("median", "p95", "p99")]
    if any(map(math.isnan, values)):
        words = "no answer" if numbers.get("no answer") == 100 else "no optimum to compare with"
        return text(start + 4, y + 3.5, words, look="lq-soft")
    levels = [math.log10(min(max(value, 10.0 ** axes.x[0]), 10.0 ** axes.x[1])) for value in values]
    median, p95, p99 = (end + 8 if v == math.inf else float(axes.place(a, 0.0)[0]) for a, v in zip(levels, values))
    paths = {f"M{px(median)} {px(y)}H{px(p99)}m0 -3v6": 1.5, f"M{px(median)} {px(y)}H{px(p95)}m0 -3v6": 4}
    paths[f"M{px(median)} {px(y - 5)}v10"] = 3
    look = f"lq-curve lq-c{stroke.colour}"
    drawn = (element("path", {"class": look, "style": f"stroke-width:{wide}", "d": d}) for d, wide in paths.items())
    lost = numbers["diverged"]
    return "".join(drawn) + (text(end + 12, y + 3.5, f"{share(lost)} %") if lost else "")


def _responses(problem: Problem, x0: Array, controller: object, label: str, plant: str) -> tuple[str, str]:
    """The start of a loop in words, and its six signals that move most, next to the optimum.

    The optimum within limits makes at each step the shortest plan that needs no limits at its end.
    """
    assert problem.plant is not None
    best: object = LinearPolicy(problem.K)
    if problem.limits is not None:
        best = lqrlab.predictive.mpc(problem, int(lqrlab.predictive.optimum(problem, x0).horizon))
    steps = control.settling_steps(np.linalg.eigvals(np.asarray(problem.closed_loop())))
    label = label[-40:]
    runs = {name: rollout(problem, one, x0, steps) for name, one in (("optimal", best), (label, controller))}
    signals, scales = charts.channels(problem.plant), np.concatenate([problem.scale_x, problem.scale_u])
    peaks = [np.nanmax(np.abs(one.values(runs[label]))) / scale for one, scale in zip(signals, scales)]
    shown = [signals[i] for i in sorted(np.argsort(peaks)[-6:])]
    drawn, bottom = charts.responses(shown, runs, (0, 0, 350), columns=2, lead=1, named=True)
    start = [
        f"{one.name} {figures.digits(x, 2)} {one.signal.unit}".removesuffix(" 1")
        for one, x in zip(signals, np.asarray(x0))
    ]
    alt = f"Responses of {plant}: {', '.join(runs)}"
    return ", ".join(start).replace("-", "−"), svg.document(drawn, 358, bottom + 4, alt)

"""The picture of docs/network_of_mpc.md: cost over the constrained optimum, and time a step.

python -m benchmarks.constrained_network families --json > families.json
python -m benchmarks.constrained_network speed --json > speed.json
python docs/limits.py families.json speed.json docs/limits.svg
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

FLOOR = 1e-4  # percent: less is drawn there


def main(families: str, speed: str, out: str) -> None:
    """Draw the two tables."""
    rows = [json.loads(line) for line in Path(families).read_text().splitlines() if line.startswith("{")]
    names = list(dict.fromkeys(row["controller"] for row in rows))[::-1]
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "limits", "font.family": "sans-serif", "font.size": 10}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2), layout="constrained")
    for label, color, shift in (("trained", "#1f5fa8", 0.16), ("held out", "#c05a00", -0.16)):
        for row in (row for row in rows if row["plants"] == label):
            y = names.index(row["controller"]) + shift
            median, p95 = (max(row[key], FLOOR) for key in ("median", "p95"))
            left.plot([median, p95], [y, y], color=color, lw=1.5)
            left.plot(median, y, "o", color=color, label=f"{label}: median")
            left.plot(p95, y, "|", color=color, ms=11, mew=2, label=f"{label}: p95")
            left.annotate(
                f"{row['failed']:.1f} %", (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8
            )
    left.set(xscale="log", xlabel=f"cost above the constrained optimum in % ({FLOOR:g} and less at the left end)")
    left.set_yticks(range(len(names)), names)
    left.set_title("failed", fontsize=8, loc="right", x=1.08)
    for target in (2, 10):
        left.axvline(target, color="0.6", lw=0.8, ls=":")
    handles = dict(zip(*left.get_legend_handles_labels()[::-1]))
    figure.legend(handles.values(), handles, loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    times = [json.loads(line) for line in Path(speed).read_text().splitlines() if line.startswith("{")]
    times = [row for row in times if row["unit"] == "µs"]
    looks = {"clipped LQR": ("#777777", "s"), "network": ("#1f5fa8", "o"), "MPC 20": ("#c05a00", "^")}
    places = list(dict.fromkeys(row["name"].split(":")[0] for row in times))[::-1]
    for row in times:
        place, name = row["name"].split(": ")
        color, marker = looks[name]
        right.plot(row["value"] / int(place.split()[1]), places.index(place), marker, color=color, label=name)
    right.set(xscale="log", xlabel="time a step of one loop in µs")
    right.set_yticks(range(len(places)), places)
    handles = dict(zip(*right.get_legend_handles_labels()[::-1]))
    figure.legend(handles.values(), handles, loc="outside lower right", ncols=3, frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", lw=0.3)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])

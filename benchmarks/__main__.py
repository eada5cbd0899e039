"""``python -m benchmarks --help``: how fast this machine is, and how good controllers are."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lqrlab.workbench.cli.options import PATH, as_json
from lqrlab.workbench.runs.terminal import table

if TYPE_CHECKING:
    from benchmarks import Row, UnknownRow
    from lqrlab.evaluation import Trial


@click.group()
def bench() -> None:
    """Measure how fast this machine is, and how good controllers are."""


@bench.command("control")
@click.option("--states", multiple=True, type=int, default=(2, 4, 6, 12), help="Dimension; may be repeated.")
@click.option("--num", default=10_000, show_default=True, help="Problems of each dimension.")
@click.option(
    "--hard", is_flag=True, help="Not how fast but how sure: stiff, badly scaled problems, n = 1 … 12."
)
@as_json
def bench_control(states: tuple[int, ...], num: int, hard: bool, as_json: bool) -> None:
    """Riccati designs in bulk, against loops over SciPy's and slycot's solvers on the same problems."""
    import benchmarks

    _show(
        lambda: benchmarks.acceptance(num=num) if hard else benchmarks.bench_control(states, num=num),
        as_json,
    )


@bench.command("data")
@click.option("--large", is_flag=True, help="Only: stream 10 GB within 1 GiB of memory; some minutes.")
@click.option("--regenerate", is_flag=True, help="Only: compute 10⁸ windows; some minutes.")
@click.option("--loaders", is_flag=True, help="Only the loaders.")
@as_json
def bench_data(large: bool, regenerate: bool, loaders: bool, as_json: bool) -> None:
    """Closed loops against NumPy, generation against raw files, and the sources of windows."""
    import benchmarks

    asked = (
        (large, benchmarks.bench_large),
        (regenerate, benchmarks.bench_regeneration),
        (loaders, benchmarks.bench_loading),
    )
    _show(next((measure for wanted, measure in asked if wanted), benchmarks.bench_data), as_json)


@bench.command("train")
@click.option("--repeats", default=10, show_default=True, help="Steps of which the fastest counts.")
@as_json
def bench_train(repeats: int, as_json: bool) -> None:
    """Train steps compiled and eager, and what fit adds to them."""
    import benchmarks

    _show(lambda: benchmarks.bench_train(repeats=repeats), as_json)


@bench.command("identify")
@click.option("--num", default=50, show_default=True, type=click.IntRange(1), help="Records of each order.")
@as_json
def bench_identify(num: int, as_json: bool) -> None:
    """How near to the truth, and how fast, plants are found in logs; beside nfoursid and jax-sysid."""
    import benchmarks

    _show(lambda: benchmarks.bench_identify(num=num), as_json)


@bench.command("start")
@as_json
def bench_start(as_json: bool) -> None:
    """How long a person waits at first: new processes, with and without compiled programs on disk; some minutes."""
    import benchmarks

    _show(benchmarks.bench_start, as_json)


@bench.command("all")
@click.option(
    "--json",
    "path",
    required=True,
    type=PATH,
    help="File to write; resumes there when the command is repeated.",
)
@click.option("--markdown", type=PATH, help="Also write a page of Markdown.")
def bench_all(path: Path, markdown: Path | None) -> None:
    """All of control, data, env, train, identify and start into one file, for compare; about half an hour."""
    import benchmarks
    from lqrlab.compute import files

    _show(lambda: benchmarks.measure_all(path), as_json=False)
    if markdown is not None:
        files.write_atomic(markdown, benchmarks.page(benchmarks.read(path)))


@bench.command("compare")
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
def compare(old: Path, new: Path) -> None:
    """Which ratios in NEW are more than 20 % worse than in OLD, both written by bench all; exit status 1 if any is."""
    import benchmarks

    changes = benchmarks.compare(old, new)
    worse = [change for change in changes if change.regression]
    cells = [(c.name, f"{c.old:.4g}", f"{c.new:.4g}", f"{c.better:.2f}") for c in worse or changes[:3]]
    click.echo(table(cells, ("ratio", "old", "new", "times better")))
    click.echo(f"{len(worse)} of {len(changes)} ratios are more than 20 % worse")
    if worse:
        raise SystemExit(1)


@bench.command("recovery")
@click.option("--family", "families", multiple=True, help="A plant; may be repeated. All five if left out.")
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1), help="Trainings of each plant."
)
@click.option(
    "--num-steps", type=click.IntRange(1), help="Optimizer steps of a training, if not the plant's."
)
@as_json
def bench_recovery(families: tuple[str, ...], seeds: int, num_steps: int | None, as_json: bool) -> None:
    """Not how fast but from where: starts that policies recover which were trained through the simulator."""
    import benchmarks
    from benchmarks.recovery import FAMILIES

    _show(lambda: benchmarks.bench_recovery(families or FAMILIES, seeds=seeds, num_steps=num_steps), as_json)


@bench.command("env")
@click.option("--envs", default=4096, show_default=True, help="Environments at once.")
@as_json
def bench_env(envs: int, as_json: bool) -> None:
    """Environment steps a second, beside gymnax and Gymnasium on this machine."""
    import benchmarks

    _show(lambda: benchmarks.bench_env(envs), as_json)


@bench.command("rl")
@click.option("--family", "families", multiple=True, help="A plant; may be repeated. Eight if left out.")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="Trainings of each kind.")
@click.option(
    "--steps", default=200_000, show_default=True, type=click.IntRange(0), help="Of PPO; 0 leaves it out."
)
@click.option(
    "--sac-steps", default=20_000, show_default=True, type=click.IntRange(0), help="Of SAC; 0 leaves it out."
)
@as_json
def bench_rl(families: tuple[str, ...], seeds: int, steps: int, sac_steps: int, as_json: bool) -> None:
    """Cost above the optimum of learned policies: imitation, gradient through the simulator, PPO, SAC, LQR."""
    import benchmarks
    from benchmarks import learned_agents
    from lqrlab import compute

    compute.setup()
    if (steps or sac_steps) and not learned_agents.has_rejax():
        click.echo("PPO and SAC are left out: pip install 'lqrlab[rl]'", err=True)
    size = benchmarks.Training(ppo_steps=steps, sac_steps=sac_steps)
    rows = benchmarks.bench_rl(families or learned_agents.PLANTS, seeds=seeds, size=size)
    if as_json:
        return _lines(rows)
    heads = ("plant", "policy", "median %", "p95 %", "worst %", "diverged %", "environment steps", "seconds")
    click.echo(table((tuple(map(_shown, dataclasses.astuple(row))) for row in rows), heads))


def _shown(value: str | int | float) -> str:
    return f"{value:.3g}".replace("inf", "∞") if isinstance(value, float) else str(value)


def _lines(rows: Iterable) -> None:
    """One JSON object a line."""
    from lqrlab.workbench.runs import session

    for row in rows:
        click.echo(json.dumps(session.plain(dataclasses.asdict(row)), ensure_ascii=False))


@bench.command("unknown")
@click.option("--quick", is_flag=True, help="One loop of each family; within a minute.")
@click.option("--families", is_flag=True, help="Also a row for each family.")
@click.option("--tune", is_flag=True, help="Only: the grid that the baselines' settings are from.")
@click.option(
    "--run", "folder", type=PATH, help="Only: the network of a run, trained with description=false."
)
@as_json
def bench_unknown(quick: bool, families: bool, tune: bool, folder: Path | None, as_json: bool) -> None:
    """Controllers of plants that nobody has described to them: cost above the exact LQR's, and what diverges."""
    import benchmarks
    from lqrlab import compute, learning

    compute.setup()
    size = benchmarks.QUICK if quick else benchmarks.FULL
    only = None
    if folder is not None:
        only = {f"network of {folder.name}": partial(learning.policy, learning.load(folder / "checkpoints"))}
    rows: Iterable = (
        benchmarks.tune_unknown() if tune else benchmarks.bench_unknown(size, only, families=families)
    )
    if as_json:
        _lines(rows)
    elif tune:
        header = ("controller", "settings", "mean ratio", "median %", "p95 %", "failed %")
        click.echo(table(map(_tuned, rows), header))
    else:
        heads = ("controller", "plants", "σ", "median %", "p95 %", "failed %", "learned by")
        click.echo(table(map(_regulated, rows), heads))


def _tuned(row: "Trial") -> tuple[str, ...]:
    settings = ", ".join(f"{name} {value:g}" for name, value in row.settings.items())
    figures = (f"{row.summary[name]:.3g}" for name in ("median", "p95", "failed"))
    return row.controller, settings, f"{row.mean_ratio:.4f}", *figures


def _regulated(row: "UnknownRow") -> tuple[str, ...]:
    figures = (_span(a) for a in (row.median, row.p95, row.failed, row.learned))
    return row.controller, row.plants, f"{row.noise:g}", *figures


def _span(figure: tuple[float, float, float]) -> str:
    """Median over seeds, and from where to where they are."""
    middle, low, high = (f"{a:.3g}".replace("inf", "∞") for a in figure)
    return middle if low == high else f"{middle} [{low}, {high}]"


def _show(measure: "Callable[[], Iterable[Row]]", as_json: bool) -> None:
    """A benchmark's rows as a table, or one JSON object a line."""
    from lqrlab import compute

    compute.setup()
    if as_json:
        return _lines(measure())
    words = {True: "yes", False: "no", None: ""}
    cells = [
        (r.name, f"{r.value:.4g}", r.unit, "" if r.target is None else f"{r.target:g}", words[r.reached])
        for r in measure()
    ]
    click.echo(table(cells, ("figure", "value", "unit", "target", "reached")))


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")

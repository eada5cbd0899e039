"""``lqrlab bench``: how fast this machine is, beside other libraries."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from lqrlab.workbench.cli.options import as_json

if TYPE_CHECKING:
    from lqrlab.benchmarks.riccati import Row


@click.group()
def bench() -> None:
    """Measure how fast this machine is, beside other libraries."""


@bench.command("control")
@click.option("--states", multiple=True, type=int, default=(2, 4, 6, 12), help="Dimension; may be repeated.")
@click.option("--num", default=10_000, show_default=True, help="Problems of each dimension.")
@click.option(
    "--hard", is_flag=True, help="Not how fast but how sure: stiff, badly scaled problems, n = 1 … 12."
)
@as_json
def bench_control(states: tuple[int, ...], num: int, hard: bool, as_json: bool) -> None:
    """Riccati designs in bulk, beside SciPy's, slycot's and contrax's on the same problems."""
    from lqrlab.benchmarks import riccati, riccati_acceptance

    _show(
        lambda: riccati_acceptance.acceptance(num=num) if hard else riccati.bench_control(states, num=num),
        as_json,
    )


@bench.command("data")
@click.option("--large", is_flag=True, help="Only: stream 10 GB within 1 GiB of memory; some minutes.")
@click.option("--regenerate", is_flag=True, help="Only: compute 10⁸ windows; some minutes.")
@click.option("--loaders", is_flag=True, help="Only the loaders.")
@as_json
def bench_data(large: bool, regenerate: bool, loaders: bool, as_json: bool) -> None:
    """Closed loops beside NumPy, generation beside raw files, loaders beside PyTorch's and grain's if there."""
    from lqrlab.benchmarks import data, loading

    asked = (
        (large, loading.bench_large),
        (regenerate, data.bench_regeneration),
        (loaders, loading.bench_loading),
    )
    _show(next((measure for wanted, measure in asked if wanted), data.bench_data), as_json)


@bench.command("train")
@click.option("--repeats", default=10, show_default=True, help="Steps of which the fastest counts.")
@as_json
def bench_train(repeats: int, as_json: bool) -> None:
    """Train steps compiled and eager, and the transformer beside PyTorch's (if that is installed)."""
    from lqrlab.benchmarks import training

    _show(lambda: training.bench_train(repeats=repeats), as_json)


def _show(measure: "Callable[[], Iterable[Row]]", as_json: bool) -> None:
    """A benchmark's rows as a table, or one JSON object a line."""
    from lqrlab import compute
    from lqrlab.workbench.runs.terminal import table

    compute.setup()
    if as_json:
        for row in measure():
            click.echo(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    words = {True: "yes", False: "no", None: ""}
    cells = [
        (r.name, f"{r.value:.4g}", r.unit, "" if r.target is None else f"{r.target:g}", words[r.reached])
        for r in measure()
    ]
    click.echo(table(cells, ("figure", "value", "unit", "target", "reached")))

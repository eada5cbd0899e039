"""README's table of results: any controllers, judged, and written between two marks of the file.

``python -m benchmarks.judge`` prints it, ``--write README.md`` puts it into the file. PPO is trained first, an agent
for each of eight families, by rejax, and left out where that is missing.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import click
import jax

from benchmarks import learned_agents
from lqrlab import compute, controllers, environments, evaluation, learning, predictive
from lqrlab.evaluation import Judgement
from lqrlab.workbench.cli.options import PATH
from lqrlab.workbench.figures import judgement_page

BEGIN, END = "<!-- judged -->", "<!-- /judged -->"
_CONTROLLERS = ("lqr", "clipped", "mpc:20", "pid", "nominal", "network", "adaptive")
_SHOWN = {
    "trained families, ±20 %": "58 families that `network` was trained on, ±20 %",
    "families never trained on, ±20 %": "the other 2",
    "dense systems": "dense systems",
    "starts beyond limits": "beyond the limits",
    "another plant": "another plant, noise",
    "A and B unknown": "A and B not given",
}
"""Scenario → its head in the table."""


def table(found: Judgement, heads: Mapping[str, str] = _SHOWN) -> str:
    """Markdown, a controller a row: median and p99 of the cost above the least, and loops that failed, in percent."""
    summary = found.summary()
    rows = [["median / p99 / failed, in %", *heads.values()], ["---"] * (1 + len(heads))]
    for name in dict.fromkeys(name for by in found.scores.values() for name in by):
        rows.append([f"`{name}`", *(cell(summary[scenario].get(name, {})) for scenario in heads)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{better(found)}"


def better(found: Judgement) -> str:
    """Where one gain per family beats the network."""
    home = next(iter(_SHOWN))
    fixed, network = (found.by_plant(home, name) for name in ("nominal", "network"))
    by = {key: sum(fixed[name][key] < network[name][key] for name in fixed) for key in ("median", "p95")}
    return (
        f"One fixed gain per family beats the network on {by['median']} of {len(fixed)} families at the median, "
        f"on {by['p95']} at p95."
    )


def cell(numbers: Mapping[str, float]) -> str:
    """The numbers of a cell, to digits that repeat on another machine."""
    if not numbers or numbers.get("no answer") == 100:
        return "–"
    percent, share = judgement_page.percent, judgement_page.share
    partly = "*" if numbers.get("no answer") else ""
    return f"{percent(numbers['median'])} / {percent(numbers['p99'])} / {share(numbers['failed'])}{partly}"


def agents(families: list[str], steps: int) -> dict[str, environments.AgentPolicy]:
    """PPO's agent of each family, trained on its default parameters."""
    size = learned_agents.Training(ppo_steps=steps)
    keys = jax.random.split(jax.random.key(0), 1)
    found = {}
    for name in families:
        env = learned_agents.task(name)
        click.echo(f"PPO: {name}", err=True)
        found[name] = environments.AgentPolicy.of(env, learned_agents.ppo(env, size, keys)[0])
    return found


def judged(variants: int, steps: int, save: Path) -> Judgement:
    """All controllers on all scenarios of the table; what is done is saved after each.

    Starts beyond the limits are those of the agents' families: the constrained optimum of each takes long.
    """
    trained, key = list(learning.card("regulator")["trained"]), jax.random.key(0)
    few = [name for name in learned_agents.PLANTS if name in trained]
    scenarios = evaluation.suite(trained, key=key, variants=variants)
    scenarios |= {
        name: one
        for name, one in evaluation.suite(few, key=key, variants=1, limit=1.0, others=[]).items()
        if one.limit is not None
    }
    rows: dict[str, object] = {word: controllers.load(word) for word in _CONTROLLERS}
    rows["network alone"] = lambda problem: learning.policy(learning.pretrained("regulator"), problem, verify=False)
    if learned_agents.has_rejax():
        rows["PPO"] = agents(few, steps)

    def say(scenario: str, name: str) -> None:
        click.echo(f"{name}: {scenario}", err=True)

    parts = []
    for name in _SHOWN:
        one = {name: scenarios[name]}
        parts.append(evaluation.judge(rows, one, key=key, reference=predictive.reference, progress=say))
        Judgement.together(parts).save(save)
    return Judgement.together(parts)


@click.command()
@click.option("--variants", default=4, show_default=True, help="Of each family.")
@click.option("--steps", default=200_000, show_default=True, help="Of PPO, for each family.")
@click.option("--save", type=PATH, default="data/judged.json", show_default=True, help="Its numbers.")
@click.option("--write", "file", type=PATH, help="File whose table is replaced.")
def main(variants: int, steps: int, save: Path, file: Path | None) -> None:
    """Judge the controllers of README's table."""
    compute.setup()
    found = judged(variants, steps, save)
    written = table(found)
    click.echo(written)
    if file is not None:
        text = file.read_text(encoding="utf-8")
        new = re.sub(f"{BEGIN}.*{END}", f"{BEGIN}\n{written}\n{END}", text, flags=re.S)
        file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.judge")

"""``python -m benchmarks.pretrain``: the weights that come with the package, made again."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import click

from lqrlab import unknown
from lqrlab.workbench.cli.options import PATH

_LIMITS = {
    "adaptive": "States are measured; units, sample time and noise are known; at most 12 states and 6 inputs. Plants "
    "whose error doubles in fewer samples than they have states and inputs often diverge, under strong noise most.",
    "regulator": "Trained on at most 12 states and 6 inputs. Nothing is proved of plants that it has not met: "
    "learning.policy verifies each gain.",
}


@click.group(hidden=True)  # for who publishes the package
def pretrain() -> None:
    """Make the weights that come with the package, with a card that says how they score."""


@pretrain.command("adaptive")
@click.argument("file", type=PATH, default="adaptive.safetensors")
@click.option("--updates", default=100, show_default=True, help="Steps of the optimizer.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option("--quick", is_flag=True, help="Score it on fewer loops.")
def pretrain_adaptive(file: Path, updates: int, seed: int, quick: bool) -> None:
    """The adaptive regulator's prior: some ten minutes, and as many to score it."""
    from benchmarks import adaptive_prior, unknown_plants
    from lqrlab import compute
    from lqrlab.learning import weight_files
    from lqrlab.workbench.runs import session

    compute.setup()
    prior = adaptive_prior.adaptive_prior(seed=seed, num_updates=updates, report=_line)
    size = unknown_plants.QUICK if quick else unknown_plants.FULL
    rows = unknown_plants.bench_unknown(size, {"adaptive": partial(unknown.adaptive, prior=prior)})
    card = {
        "data": f"{len(adaptive_prior.TRAINED)} families ±20 %, each also taken out, and random linear systems",
        "command": f"python -m benchmarks.pretrain adaptive {file.name} --updates {updates} --seed {seed}",
        "seeds": {"training": seed, "score": list(range(size.seeds))},
        "scores": [session.plain(dataclasses.asdict(row)) for row in rows],
        "limits": _LIMITS["adaptive"],
    }
    weight_files.write(file, prior, card)
    click.echo(f"wrote {file}")


@pretrain.command("student")
@click.argument("file", type=PATH, default="student.safetensors")
@click.option("--quick", is_flag=True, help="Score it on fewer loops.")
def pretrain_student(file: Path, quick: bool) -> None:
    """The adaptive regulator's prior with a network: ten minutes on a GPU; it goes on where it was cut off."""
    import jax
    import jax.numpy as jnp

    from benchmarks import student_prior, unknown_plants
    from lqrlab import compute
    from lqrlab.learning import weight_files
    from lqrlab.workbench.runs import session

    compute.setup()
    network = student_prior.train(student_prior.FILE)
    network = jax.tree.map(lambda a: a.astype(jnp.float16), network)  # half as large a file
    prior = student_prior.with_guess(jax.tree.map(lambda a: a.astype(jnp.float32), network))
    size = unknown_plants.QUICK if quick else unknown_plants.FULL
    rows = unknown_plants.bench_unknown(size, {"student": partial(unknown.adaptive, prior=prior)})
    card = {
        "data": student_prior.DATA,
        "command": f"python -m benchmarks.pretrain student {file.name}",
        "seeds": {"training": 0, "score": list(range(size.seeds))},
        "scores": [session.plain(dataclasses.asdict(row)) for row in rows],
        "limits": _LIMITS["adaptive"],
    }
    weight_files.write(file, student_prior.with_guess(network), card)
    click.echo(f"wrote {file}")


@pretrain.command("regulator")
@click.argument("file", type=PATH, default="regulator.safetensors")
@click.option("--run", "folder", type=PATH, default="data/runs/wide", help="Folder of a run of notebooks 02 and 03.")
@click.option("--variants", default=24, show_default=True, help="Of each family, to score it.")
def pretrain_regulator(file: Path, folder: Path, variants: int) -> None:
    """The network of a run, such as lqrlab run 02_data_generation 03_training --profile wide, as one file."""
    import jax

    from lqrlab import compute, evaluation, learning
    from lqrlab.compute.files import read_object
    from lqrlab.learning import weight_files
    from lqrlab.workbench.runs import session

    compute.setup()
    model = learning.load(folder / "checkpoints")
    settings: dict[str, Any] = read_object(folder / "checkpoints" / "settings.json")
    data, training = settings["data"], settings["train"]
    trained = [name for name in data["families"] if name not in data["held_out"]]
    wanted = {
        "network alone": lambda problem: learning.policy(model, problem, verify=False),
        "network, verified": model,
        "network, one Newton step": lambda problem: learning.policy(model, problem, repair=1),
    }
    key = jax.random.key(1)
    suite = evaluation.suite(trained, key=key, variants=variants, noise=0.0)
    judged = evaluation.judge(wanted, suite, key=key)
    card = {
        "data": f"{len(trained)} families ±{100 * data['spread']:g} %, {training['random_systems']} random systems",
        "command": f"python -m benchmarks.pretrain regulator {file.name} --run {folder.name}",
        "trained": trained,
        "seeds": {"training": training["seed"], "score": 1},
        "scores": [session.plain(row) for row in judged.rows()],
        "repaired": {name: _repaired(model, one) for name, one in suite.items()},
        "limits": _LIMITS["regulator"],
    }
    weight_files.write(file, model, card)
    click.echo(f"wrote {file}")


def _repaired(model: Any, scenario: Any) -> dict[str, float]:
    """Percent of a scenario's plants whose gain was repaired, and microseconds a plant: alone, verified, designed."""
    import numpy as np

    from lqrlab import compute, control, learning, simulation

    problem = simulation.Problem.of(list(scenario.plants.values()), linear=True)
    problem = problem[problem.has_optimum]
    calls = {
        "alone": lambda: learning.policy(model, problem, verify=False).context.gain,
        "verified": lambda: learning.policy(model, problem).context.gain,
        "dlqr": lambda: control.dlqr(*problem.sampled).K,
    }
    micros = {name: 1e6 * compute.timeit(call, repeats=5).median / len(problem) for name, call in calls.items()}
    return {"percent": 100 * float(np.mean(np.asarray(learning.policy(model, problem).repaired))), **micros}


def _line(row: dict[str, Any]) -> None:
    click.echo(f"{row['step']:4d}  loss {row['loss']:.3f}  failed {100 * row['failed']:.1f} %")


if __name__ == "__main__":
    pretrain(prog_name="python -m benchmarks.pretrain")

"""Sweeps whose points need no notebook: all of them in compiled programs, thousands a second.

Two kinds. *Designs*: a plant at points of its parameters, weights and sample time, designed for and tried in closed
loop. *Trainings*: the notebook of training at seeds and learning rates, side by side in one program.
"""

import functools
import json
import operator
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from lqrlab.workbench.runs.notebooks import Notebook, Parameter
from lqrlab.workbench.runs.terminal import Progress

FILE = "numbers.jsonl"  # what is known of each point, a line each
MANY = 16  # trainings from which on one program is taken unasked
NUMBERS = {  # of each design, and their units, in the order in which they are shown
    "cost": "1",
    "nominal_excess": "%",
    "nonlinear_p95": "%",
    "nonlinear_diverged": "%",
    "nonlinear_median": "%",
    "time_constant": "s",
    "slowest": "1",
    "gain": "1",
}
HORIZONS = (100, 200, 500, 1000, 2000)  # steps that designs are tried for: two settling times of the slowest
TRIALS = 16  # initial states that each design is tried from
_BYTES = 1e8  # of states that one program writes
Point = Mapping[str, Any]
Rows = Iterator[list[tuple[int, dict[str, Any]]]]


def conduct(
    nb: Notebook, jobs: Sequence[dict[str, Any]], folder: Path, source: Path | None, stream: TextIO
) -> dict[str, Any]:
    """Compute the jobs' points and note each as it is known; returns what the sweep's record says of it."""
    import jax

    from lqrlab import compute

    compute.setup()
    begun, count = time.monotonic(), 0
    progress = Progress(nb.name, len(jobs), stream)
    progress.update(0, "compiling")
    if nb.kind == "plant":
        rows = tried(nb.name, plants(nb.name, [job["point"] for job in jobs]))
    else:
        assert source is not None
        rows = trainings(source, [job["values"] for job in jobs])
    mark, text = "■", "stopped"
    try:
        with (folder / FILE).open("a+", encoding="utf-8") as file:
            if file.tell() and not (folder / FILE).read_bytes().endswith(b"\n"):
                file.write("\n")  # a line that was cut short stays alone
            for some in rows:
                for i, found in some:
                    file.write(json.dumps({"fingerprint": jobs[i]["fingerprint"], **found}) + "\n")
                file.flush()
                os.fsync(file.fileno())
                count += len(some)
                progress.update(count, "points")
        mark, text = "✓", f"{count} points"
    finally:
        progress.close(mark, text)
    device = jax.devices()[0]
    return {"seconds": round(time.monotonic() - begun, 2), "device": f"1 × {device.platform}"}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What is known: fingerprint of a point → its numbers, or its ``error``. A line cut short is none."""
    known = {}
    path = folder / FILE
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            known[row.pop("fingerprint")] = row
        except (ValueError, KeyError):
            continue
    return known


# Designs ------------------------------------------------------------------------------------------------


@functools.cache
def weighted(name: str) -> Any:
    """The family ``name`` with its sample time and a factor for each diagonal weight as further parameters."""
    from lqrlab import systems
    from lqrlab.systems import param

    cls: Any = systems.family(name)

    def weights(self: Any) -> Any:
        import jax.numpy as jnp

        found = super(made, self).weights()
        factors = ([getattr(self, k) for k in keys] for keys in (q, r))
        roots = (jnp.sqrt(jnp.stack(jnp.broadcast_arrays(*f), axis=-1)) for f in factors)
        return tuple(w * s[..., :, None] * s[..., None, :] for w, s in zip(found, roots))

    q, r = [f"q_{s.name}" for s in cls.states], [f"r_{s.name}" for s in cls.inputs]
    body: dict[str, Any] = {
        "dt": param(float(cls.dt), "s", "sample time", float(cls.dt) / 1000, float(cls.dt) * 1000)
    }
    for key, signal in zip((*q, *r), (*cls.states, *cls.inputs)):
        body[key] = param(1.0, "1", f"factor of the weight of {signal.name}", 1e-9, 1e9)
    body |= {"__annotations__": dict.fromkeys(body, Any), "__doc__": cls.__doc__, "weights": weights}
    made: Any = type(cls)(cls.__name__, (cls,), body)
    return made


def declaration(name: str) -> Notebook:
    """What can be set of the plant ``name``, declared as a notebook declares its parameters."""
    from lqrlab import systems

    fields = systems.parameter_fields(weighted(name))
    parameters = {key: Parameter(key, float, f.default, _about(f.metadata)) for key, f in fields.items()}
    parameters["run"] = Parameter("run", str, "", "folder")  # every notebook has it
    title = systems.family(name).title.partition(";")[0]
    heading = {"cell_type": "markdown", "metadata": {}, "source": f"# {title}"}
    return Notebook(Path(name), (heading,), {}, parameters, kind="plant")


def units(name: str) -> dict[str, str]:
    """Units of what can be set of the plant and of what is found."""
    from lqrlab import systems

    fields = systems.parameter_fields(weighted(name)).items()
    return {key: f.metadata["unit"] for key, f in fields} | NUMBERS


def _about(meta: Any) -> str:
    return meta["about"] + (f" [{meta['unit']}]" if meta["unit"] != "1" else "")


def plants(name: str, points: Sequence[Point]) -> Any:
    """The batch of plants at ``points``; a value outside of its range is refused by its name."""
    import jax.numpy as jnp

    from lqrlab.systems import check_parameter, parameter_fields

    cls, values = weighted(name), {}
    for key, f in parameter_fields(cls).items():
        column = [float(point.get(key, f.default)) for point in points]
        values[key] = (
            check_parameter(cls, key, column)
            if any(key in point for point in points)
            else jnp.asarray(column)
        )
    return cls(**values)


def tried(name: str, batch: Any) -> Rows:
    """Design for each plant and try it on the nonlinear plant; yields (position, numbers) as they are done.

    The numbers: ``cost``, the mean x0ᵀP x0 of typical starts; ``nominal_excess`` [%], what the gain of the default
    parameters pays above that on the linear plant, on average (inf where it does not stabilise);
    ``nonlinear_p95`` and ``nonlinear_median`` [%], cost on the nonlinear plant above x0ᵀP x0 over 16 typical starts (a
    gentle nonlinearity can make it less), and ``nonlinear_diverged`` [%], the share of them that do not come
    back; ``time_constant`` [s] and ``slowest`` |λ| of the loop's slowest mode; ``gain`` ‖K‖₂ in the signals' scales.
    A point without a stabilising design has an ``error`` in their place.
    """
    import jax
    import numpy as np

    from lqrlab import control, systems

    (A, B), (Q, R) = batch.matrices(), batch.weights()
    design = control.lqrd(A, B, Q, R, batch.dt)
    good = np.asarray(design.stabilizing)
    sx, su = (np.asarray(s) for s in batch.scales)
    slowest = np.abs(np.asarray(design.poles)).max(-1)
    usual = systems.make(name)
    nominal = control.lqrd(*usual.matrices(), *usual.weights(), usual.dt)
    paid = np.asarray(_price(batch, nominal.K, sx))
    cost = np.einsum("vii,i->v", np.asarray(design.P), sx**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = {
            "cost": cost,
            "nominal_excess": np.where(np.isfinite(paid), 100 * (paid / cost - 1), np.inf),
            "time_constant": -np.asarray(batch.dt) / np.log(slowest),
            "slowest": slowest,
            "gain": np.linalg.norm(np.nan_to_num(design.K) * sx / su[:, None], 2, axis=(-2, -1)),
        }
    bad = np.flatnonzero(~good)
    if bad.size:
        one = [functools.partial(control.lqrd, *(a[i] for a in (A, B, Q, R, batch.dt))) for i in bad]
        yield [(int(i), {"error": _why(design)}) for i, design in zip(bad, one)]
    left = np.flatnonzero(good)
    if not left.size:
        return
    # a point's numbers are its own: its horizon follows from its own loop, and all points start from the same states
    settled = 2 * np.log(1e-3) / np.log(np.clip(slowest, 1e-9, 1 - 1e-9))
    horizon = np.array([next((n for n in HORIZONS if n >= least), HORIZONS[-1]) for least in settled])
    one = jax.tree.map(operator.itemgetter(0), batch)
    x0 = one.initial_state(key=jax.random.key(0), num=TRIALS)
    for steps in np.unique(horizon[left]):
        yield from _tried(batch, design, table, left[horizon[left] == steps], int(steps), x0)


def _tried(batch: Any, design: Any, table: dict[str, Any], left: Any, steps: int, x0: Any) -> Rows:
    """The nonlinear loops of those points that take so many steps."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from lqrlab import evaluation, simulation

    size = 8 * TRIALS * (steps + 1) * (batch.n + batch.m + 1)
    chunk = int(
        min(max(_BYTES // size, 1), 2 ** np.ceil(np.log2(max(len(left), 64))))
    )  # few shapes, few programs
    for first in range(0, len(left), chunk):
        rows = left[first : first + chunk]
        padded = np.resize(rows, chunk)
        some = jax.tree.map(operator.itemgetter(padded), batch)
        score = evaluation.evaluate(
            simulation.LinearPolicy(design.K[padded]),
            some,
            key=jax.random.key(0),
            x0=jnp.broadcast_to(x0, (chunk, *x0.shape)),
            num_steps=steps,
            linear=False,
        )
        above = 100 * (np.asarray(score.ratio)[: len(rows)] - 1)
        diverged = 100 * np.asarray(jnp.mean(score.diverged, -1))[: len(rows)]
        middle, high = np.quantile(above, (0.5, 0.95), axis=-1, method="higher")
        part = {k: v[rows] for k, v in table.items()}
        part |= {"nonlinear_p95": high, "nonlinear_diverged": diverged, "nonlinear_median": middle}
        yield [(int(i), {k: float(part[k][j]) for k in NUMBERS}) for j, i in enumerate(rows)]


def _price(batch: Any, K: Any, scale: Any) -> Any:
    """What one constant gain pays on average on each plant, from starts of spread ``scale``; NaN if unstable."""
    import jax.numpy as jnp

    from lqrlab import control, simulation

    A, B, Q, R, N = simulation.env(batch, linear=True).sampled
    weight = control.stage_weight(Q, R, N, K)
    return jnp.einsum("vii,i->v", control.dlyap(jnp.swapaxes(A - B @ K, -1, -2), weight), scale**2)


def _why(design: Callable[[], Any]) -> str:
    """Why one plant has no design, as ``control`` puts it."""
    try:
        design()
    except ValueError as error:
        return str(error)
    return "no stabilising design was found"


# Trainings ----------------------------------------------------------------------------------------------


def trainable(nb: Notebook, values: Sequence[Point], varied: Sequence[str]) -> str:
    """Why the notebook's points cannot be trained side by side in one program; empty where they can.

    They can where its metadata say ``{"lqrlab": {"vmap": [...]}}`` of all that differs (seeds and learning rates), the
    points are a full grid of these, and all runs take the same steps.
    """
    can = nb.metadata.get("lqrlab", {}).get("vmap", [])
    if not can:
        return f"{nb.name} does more than one program does"
    if other := [k for k in varied if k not in can]:
        return f"{other[0]} differs, and one program has one {other[0]}"
    axes = [list(dict.fromkeys(v[k] for v in values)) for k in can]
    if len(values) != len(axes[0]) * len(axes[1]):
        return f"the points are no full grid of {' and '.join(can)}"
    one = values[0]
    if one.get("dagger_rounds") or one["num_steps"] % one["report_every"]:
        steps = "dagger_rounds = 0 and num_steps a multiple of report_every would"
        return f"the runs do not all take the same steps: {steps}"
    if not one.get("jit", True) or one.get("debug", "off") != "off" or one.get("mesh"):
        return "mesh, jit and debug are for one run at a time"
    return ""


def trainings(folder: Path, values: Sequence[Point]) -> Rows:
    """Train at all points in one program, on the data set in ``folder``; one batch of rows at the end."""
    import dataclasses

    from lqrlab import compute, dataset, learning
    from lqrlab.learning import seed_grid

    def config(kind: Any) -> Any:
        known = {f.name for f in dataclasses.fields(kind)}
        return kind(**{k: v for k, v in values[0].items() if k in known})

    seeds, rates = (list(dict.fromkeys(v[k] for v in values)) for k in ("seed", "learning_rate"))
    model = config(learning.ModelConfig)
    sizes = {"batch_size": values[0]["batch_size"], "window": model.window}
    source = dataset.source(dataset.open(folder / "dataset"), kind=values[0].get("loading", "auto"), **sizes)
    curves = seed_grid.grid(
        source,
        model,
        config(learning.TrainConfig),
        seeds=seeds,
        learning_rates=rates,
        backend=config(compute.Backend),
    )
    yield [
        (i, {k: float(a[seeds.index(v["seed"]), rates.index(v["learning_rate"]), -1]) for k, a in
             curves.metrics.items()})
        for i, v in enumerate(values)
    ]  # fmt: skip

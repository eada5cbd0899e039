"""Python source of what a panel shows, for *copy as code*."""

from collections.abc import Mapping
from pathlib import Path

from lqrlab import systems
from lqrlab.systems import Plant
from lqrlab.workbench.figures.loop_design import FREE, LoopSetting


def panel(function: str, arguments: Mapping[str, object], values: Mapping[str, object]) -> str:
    """Code that makes a panel with its controls at such values; an object that cannot be written goes by its name."""
    given = {name: value for name, value in arguments.items() if value is not None}
    written = [f"{name}={literal(value) or name}" for name, value in given.items()]
    if values:
        # ten digits: a browser moves what is off a slider's grid onto it
        numbers = {k: float(f"{v:.10g}") if isinstance(v, float) else v for k, v in values.items()}
        written.append("values={" + ", ".join(f"{k!r}: {v!r}" for k, v in numbers.items()) + "}")
    makes = any(part.partition("=")[2].startswith("systems.") for part in written)
    lines = ["from lqrlab import systems"] * makes + ["from lqrlab.workbench import widgets", ""]
    return "\n".join([*lines, f"widgets.{function}({', '.join(written)})"])


def literal(value: object) -> str:
    """A value as code; nothing for what has none."""
    if isinstance(value, Plant):
        if value.name not in systems.names() or type(value) is not systems.family(value.name):
            return ""
        usual = systems.make(value.name).parameters
        moved = {k: float(v) for k, v in value.parameters.items() if float(v) != float(usual[k])}
        return f"systems.make({value.name!r}{''.join(f', {k}={v!r}' for k, v in moved.items())})"
    if isinstance(value, Path):
        return repr(str(value))
    return repr(value) if isinstance(value, str | int | float | list | tuple) else ""


def regulator(s: LoopSetting) -> str:
    """Code that makes the designer's gain, and runs its loop where it has no delay."""
    weights = []
    for name, factors in (("Q", s.states), ("R", s.inputs)):
        if (factors != 1).any():
            numbers = ", ".join(f"{f:.6g}" for f in factors)
            weights += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
    late = f", {s.delay / s.sample:g}" if s.delay and s.known else ""
    note = "# run.cost charges the plant's own weights; Q and R above are those K is optimal for"
    if late:
        run = ["# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way"]
    else:
        run = [] if s.delay else [*_run(s), *([note] if weights else [])]
    lines = [
        *(["import jax.numpy as jnp", ""] if weights else []),
        "from lqrlab import compute, control, simulation, systems",
        "",
        "compute.setup()",
        f"plant = {literal(s.plant) or '...  # your own plant'}",
        "(A, B), (Q, R) = plant.matrices(), plant.weights()",
        *weights,
        f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {s.dt:g}{late}).K",
        *run,
    ]
    return "\n".join(lines)


def _run(s: LoopSetting) -> list[str]:
    lines, more = [f"x0 = [{', '.join(f'{x:g}' for x in s.x0)}]"], f", dt={s.dt:g}"
    if s.limit < FREE:
        lines = ["u_eq = plant.equilibrium()[1]", f"limit = {s.limit:g} * plant.scales[1]", *lines]
        more += ", limits=(u_eq - limit, u_eq + limit)"
    call = f"simulation.rollout(plant, simulation.LinearPolicy(K), x0, {s.ticks // s.sample}{more})"
    return [*lines, f"run = {call}"]

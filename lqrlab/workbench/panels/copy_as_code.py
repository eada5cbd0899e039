"""Python source of what a panel shows, for *copy as code*."""

from collections.abc import Mapping
from pathlib import Path

from lqrlab import control, systems
from lqrlab.systems import Plant
from lqrlab.workbench.figures import loop_controllers
from lqrlab.workbench.figures.loop_controllers import KINDS
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
    lines = [
        *(["import jax.numpy as jnp", ""] if weights or s.controller.kind == "LQG" else []),
        "from lqrlab import compute, control, simulation, systems",
        "",
        "compute.setup()",
        f"plant = {literal(s.plant) or '...  # your own plant'}",
        "(A, B), (Q, R) = plant.matrices(), plant.weights()",
        *weights,
    ]
    if s.controller.kind != KINDS[0]:
        more = ["# the delay is not in this code"] if s.delay else []
        return "\n".join([*lines, *_designed(s), *more, *_run(s, "design")])
    late = f", {s.delay / s.sample:g}" if s.delay and s.known else ""
    lines.append(f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {s.dt:g}{late}).K")
    note = ["# run.cost charges the plant's own weights; Q and R above are those K is optimal for"] if weights else []
    if late:
        return "\n".join([*lines, "# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way"])
    return "\n".join(lines if s.delay else [*lines, *_run(s, "simulation.LinearPolicy(K)"), *note])


def _designed(s: LoopSetting) -> list[str]:
    """Lines that make the controller of a kind."""
    c, sampled = s.controller, f"A, B, Q, R, N = control.discretize(A, B, Q, R, {s.dt:g})"
    rows, optimum = "plant.output_matrix()", control.lqrd(*s.plant.matrices(), *s.weights, s.dt)
    match c.kind:
        case "pole placement":
            poles = [complex(z) for z in loop_controllers.wanted_poles(c, optimum, s.dt)]
            written = ", ".join(repr(z if z.imag else z.real) for z in poles)
            return [sampled, f"design = control.place(A, B, [{written}])"]
        case "integral action":
            C, weight = (
                f"C = {rows}[{c.held}:{c.held + 1}]",
                loop_controllers.integral_weight(c, s.plant, optimum, s.dt),
            )
            return [sampled, C, f"design = control.lqi(A, B, C, Q, R, [[{weight:.10g}]], N, discrete=True)"]
    at = f"jnp.array({list(c.measured)})"
    scales = [s.plant.outputs[i].scale for i in c.measured]
    return [
        sampled,
        f"C = {rows}[{at}]",
        f"W = jnp.diag(({c.disturbance:.10g} * plant.scales[0]) ** 2) * {s.dt:g}",
        f"V = jnp.diag(({c.sensor:.10g} * jnp.array({scales})) ** 2)",
        "design = control.lqg(A, B, C, Q, R, W, V, N, discrete=True)",
    ]


def _run(s: LoopSetting, controller: str) -> list[str]:
    lines, more = [f"x0 = [{', '.join(f'{x:g}' for x in s.x0)}]"], f", dt={s.dt:g}"
    if s.limit < FREE:
        lines = ["u_eq = plant.equilibrium()[1]", f"limit = {s.limit:g} * plant.scales[1]", *lines]
        more += ", limits=(u_eq - limit, u_eq + limit)"
    call = f"simulation.rollout(plant, {controller}, x0, {s.ticks // s.sample}{more})"
    return [*lines, f"run = {call}"]

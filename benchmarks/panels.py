"""Time from a slider to a new picture, in a real kernel, spoken to as JupyterLab does.

A message that a slider has moved goes in, and the clock runs until the message with the new picture has come out. All
panels stand in one kernel, and a slider of each moves; its first move, which may compile, counts apart. What the
browser then takes to draw the picture is not in it.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jupyter_client.manager import start_new_kernel

from benchmarks.measurement import Parts, main

PANELS = """
import os, tempfile
os.environ["JPY_SESSION_NAME"] = "bench"
from lqrlab import compute, dataset, simulation
compute.setup()
from lqrlab.workbench import widgets
folder = tempfile.mkdtemp()
config = dataset.DataConfig(families=("pendulum", "cart_pole"), held_out=(), variants=4, trajectories=4)
data = dataset.generate(config, folder + "/set")
panels = {{
    "lqr_designer": widgets.lqr_designer({plant!r}),
    "mpc_designer": widgets.mpc_designer({plant!r}),
    "attraction_map": widgets.attraction_map({plant!r}, num=10_000),
    "policy_inspector": widgets.policy_inspector(simulation.no_control, {plant!r}),
    "data_browser": widgets.data_browser(folder + "/set"),
    "training_monitor": widgets.training_monitor(folder),
}}
for panel in panels.values():
    panel.live.wait(300)
for name, panel in panels.items():
    moved = [c for c in panel._kept.values() if hasattr(c, "step") and c.max > c.min]
    if moved:
        first = moved[0]
        # factors below one: a limit that does not bind changes no picture, and none is sent
        ends = (first.base**first.min, 1.0) if hasattr(first, "base") else (first.min, first.max)
        print(name, first.comm.comm_id, *ends, first.step)
"""


def run(client: Any, code: str) -> str:
    """Execute a cell; what it printed."""
    said = []

    def hear(message: dict) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=300, output_hook=hear)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"{reply['content']['ename']}: {reply['content']['evalue']}")
    return "".join(said)


def latency(client: Any, slider: str, value: float) -> float:
    """Milliseconds from a slider's message to that of the first picture that changes."""
    content = {"comm_id": slider, "data": {"method": "update", "state": {"value": value}, "buffer_paths": []}}
    message = client.session.msg("comm_msg", content)
    begun = time.perf_counter()
    client.shell_channel.send(message)
    while True:
        heard = client.get_iopub_msg(timeout=60)
        state = heard["content"]["data"].get("state", {}) if heard["msg_type"] == "comm_msg" else {}
        if any("<svg" in str(state.get(name)) for name in ("value", "svg")):
            return 1e3 * (time.perf_counter() - begun)


@dataclasses.dataclass(frozen=True)
class PanelRow:
    """Milliseconds from a slider to the picture: the first move, the median of others, nine in ten."""

    plant: str
    panel: str
    first: float
    median: float
    p90: float


def bench_panels(plants: Sequence[str] = ("cart_pole", "quadrotor"), repeats: int = 60) -> Iterator[PanelRow]:
    """All panels in one kernel, plant by plant; a slider of each moves ``repeats`` times."""
    for plant in plants:
        manager, client = start_new_kernel(kernel_name="python3")
        try:
            lines = run(client, PANELS.format(plant=plant)).splitlines()
            for name, slider, *numbers in map(str.split, lines):
                low, high, step = map(float, numbers)
                values = _places(low, high, step, repeats + 1)
                first, *times = (latency(client, slider, value) for value in values)
                p90 = statistics.quantiles(times, n=10)[-1]
                yield PanelRow(plant, name, first, statistics.median(times), p90)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def _places(low: float, high: float, step: float, count: int) -> list[float]:
    """Values that a slider moves to, each another than the one before."""
    if step >= 1 and step.is_integer():
        return [int(low if i % 2 else high) for i in range(count)]
    return [low + (high - low) * (i % 10 + 0.5) / 11 for i in range(count)]


PARTS: Parts = {"sliders": (bench_panels, {"plants": ("pendulum",), "repeats": 2})}

if __name__ == "__main__":
    main(PARTS)

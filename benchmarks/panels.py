"""How long from a slider to a new picture: ``python tests/bench_panels.py [plant …] [--six]``; not a test.

A real kernel, spoken to as JupyterLab does: a message that a slider has moved goes in, and the clock runs until the
message with the new picture has come out. What the browser then takes to draw it is not in it. *Compute* is the design
and both loops alone, in a process without a kernel. With ``--six`` all six panels stand in one kernel, and a slider of
each moves; its first move, which may compile, counts apart.
"""

import argparse
import json
import statistics
import sys
import time

from jupyter_client.manager import start_new_kernel

OPEN = """
import os
os.environ["JPY_SESSION_NAME"] = "bench"
from lqrlab import compute
compute.setup()
from lqrlab.workbench.figures import loop_design, loop_picture
from lqrlab.workbench.panels import lqr_designer
panel = lqr_designer.Designer({plant!r})
panel.live.wait(300)
panel.delay.value = 1.0
panel.live.wait(300)
panel.delay.value = 0.0
panel.live.wait(300)
slider = list(panel.states.values())[0]
print(slider.comm.comm_id, panel.picture.comm.comm_id)
"""
COMPUTE = """
import statistics, time
def taken(work):
    times = []
    for _ in range({repeats}):
        begun = time.perf_counter()
        work(panel._question())
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)
print(taken(loop_design.design), taken(loop_picture.picture))
"""
SIX = """
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
    "plant_explorer": widgets.plant_explorer({plant!r}),
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
        print(name, first.comm.comm_id, panel.picture.comm.comm_id, first.min, first.max, first.step)
"""


def run(client, code: str) -> str:
    """Execute a cell; what it printed."""
    said = []

    def hear(message: dict) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=300, output_hook=hear)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"{reply['content']['ename']}: {reply['content']['evalue']}")
    return "".join(said)


def latency(client, slider: str, picture: str, value: float) -> float:
    """Milliseconds from a slider's message to the picture's."""
    content = {"comm_id": slider, "data": {"method": "update", "state": {"value": value}, "buffer_paths": []}}
    message = client.session.msg("comm_msg", content)
    begun = time.perf_counter()
    client.shell_channel.send(message)
    while True:
        heard = client.get_iopub_msg(timeout=60)
        same = heard["msg_type"] == "comm_msg" and heard["content"]["comm_id"] == picture
        if same and "value" in heard["content"]["data"].get("state", {}):
            return 1e3 * (time.perf_counter() - begun)


def six(client, plant: str, repeats: int) -> None:
    """Print a row for each of six panels in one kernel whose sliders move one after another."""
    for line in run(client, SIX.format(plant=plant)).splitlines():
        name, slider, picture, *numbers = line.split()
        low, high, step = map(float, numbers)
        whole = step >= 1 and step.is_integer()
        places = [low + (high - low) * (i % 10 + 0.5) / 11 for i in range(repeats + 1)]
        if whole:  # else some moves would lead nowhere
            places = [int(low if i % 2 else high) for i in range(repeats + 1)]
        first, *times = (latency(client, slider, picture, value) for value in places)
        row = {
            "panel": name,
            "first move [ms]": round(first),
            "median [ms]": round(statistics.median(times), 1),
        }
        print(
            json.dumps(
                row | {"90 % below [ms]": round(statistics.quantiles(times, n=10)[-1], 1)}, ensure_ascii=False
            )
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plants", nargs="*", default=["cart_pole", "quadrotor"])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--six", action="store_true")
    given = parser.parse_args()
    for plant in given.plants:
        manager, client = start_new_kernel(kernel_name="python3")
        try:
            if given.six:
                six(client, plant, given.repeats)
                continue
            slider, picture = run(client, OPEN.format(plant=plant)).split()
            times = []
            for i in range(given.repeats):
                times.append(latency(client, slider, picture, round(-1 + 0.02 * i, 3)))
                time.sleep(0.02)
            design, whole = map(float, run(client, COMPUTE.format(repeats=given.repeats)).split())
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        row = {
            "plant": plant,
            "slider to picture, median [ms]": round(statistics.median(times), 1),
            "90 % below [ms]": round(statistics.quantiles(times, n=10)[-1], 1),
            "compute [ms]": round(design, 1),
            "compute, words and drawing [ms]": round(whole, 1),
        }
        print(json.dumps(row, ensure_ascii=False), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()

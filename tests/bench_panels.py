"""How long from a slider to a new picture: ``python tests/bench_panels.py [plant …]``; not a test.

A real kernel, spoken to as JupyterLab does: a message that a slider has moved goes in, and the clock runs until the
message with the new picture has come out. What the browser then takes to draw it is not in it. *Compute* is the design
and both loops alone, in a process without a kernel.
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
from lqrlab.workbench.panels import lqr_designer, regulator_design
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
print(taken(regulator_design.design), taken(regulator_design.picture))
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plants", nargs="*", default=["cart_pole", "quadrotor"])
    parser.add_argument("--repeats", type=int, default=60)
    given = parser.parse_args()
    for plant in given.plants:
        manager, client = start_new_kernel(kernel_name="python3")
        try:
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

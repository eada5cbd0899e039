"""How long 1000 variants of every family take to draw, linearise and design for: ``python tests/bench_catalogue.py``.

Prints seconds of wall clock and of processor time for a first pass (compilation included) and a second one.
"""

import functools
import time

import jax

from lqrlab import compute, control, systems

BUCKETS = ((4, 2), (8, 4), (12, 6))


def bucket(name):
    """The smallest of three sizes that a family fits into."""
    plant = systems.family(name)
    n, m = len(plant.states), len(plant.inputs)
    return next(size for size in BUCKETS if n <= size[0] and m <= size[1])


def stacked(sizes):
    return [systems.stack(plants, *size) for size, plants in sizes.items()]


def measured(what, work):
    wall, processor = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(work())
    print(
        f"  {what:26s} {time.perf_counter() - wall:7.2f} s wall {time.process_time() - processor:7.2f} s processor"
    )
    return result


def main(num=1000):
    compute.setup(cache=False)
    names = systems.names()
    for round_ in ("first", "second"):
        print(f"{round_} pass, {len(names)} families, {num} variants each")
        plants = measured(
            "draw", lambda: {n: systems.sample(n, key=jax.random.key(0), num=num) for n in names}
        )
        sizes = {size: [plants[n] for n in names if bucket(n) == size] for size in BUCKETS}
        stacks = measured("linearise and stack", functools.partial(stacked, sizes))
        for (n, m), s in zip(BUCKETS, stacks):
            design = measured(
                f"design, padded to {n}, {m}", lambda s=s: control.lqrd(s.A, s.B, s.Q, s.R, s.dt)
            )
            print(f"  {int(design.stabilizing.sum())} of {design.stabilizing.size} stabilized")


if __name__ == "__main__":
    main()

"""Several processes that compute as one: JAX's own ``jax.distributed``, listening on one address alone."""

import os
import socket
import subprocess
import time
from collections.abc import Sequence

import jax

from lqrlab.compute import checks

_COORDINATOR, _COUNT, _RANK = "LQRLAB_COORDINATOR", "LQRLAB_PROCESSES", "LQRLAB_PROCESS"
_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def grouped() -> bool:
    """True if this process was started by :func:`start`."""
    return _COORDINATOR in os.environ


def join() -> int:
    """Become one of several processes, if there are any; before JAX computes anything. Returns this one's number.

    They are found by the environment that :func:`start` or a scheduler (Slurm, Open MPI) made. From then on
    ``jax.devices()`` are those of all processes, every process has to call the same functions in the same order,
    and only process 0 should write files.

    Process 0 listens for the others, and who reaches it can join them: it does so on this machine's loopback alone
    for :func:`start`, and on the address of ``JAX_COORDINATOR_ADDRESS`` (host:port of process 0, the same in all
    processes) under a scheduler, never on all of a machine's interfaces as JAX would;
    ``JAX_COORDINATOR_BIND_ADDRESS`` names another address.

    Raises:
        ValueError: a scheduler's processes without ``JAX_COORDINATOR_ADDRESS``.
    """
    if jax.distributed.is_initialized():
        return jax.process_index()
    if grouped():
        address, count, rank = (os.environ[name] for name in (_COORDINATOR, _COUNT, _RANK))
        jax.distributed.initialize(address, int(count), int(rank), coordinator_bind_address=address)
    elif any(int(os.environ.get(name, 1)) > 1 for name in _TASKS):
        address = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
        if not address.rpartition(":")[0]:
            raise ValueError(
                "JAX_COORDINATOR_ADDRESS: expected host:port of process 0, where the scheduler's processes find each "
                f"other, but found {address!r}; set it for all of them"
            )
        bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", address)
        jax.distributed.initialize(coordinator_bind_address=bind)
    return jax.process_index()


def start(command: Sequence[str], count: int) -> int:
    """Run a command ``count`` times on this machine, as one group; each calls :func:`join`.

    When one of them fails, the others, which would wait for it for ever, are ended.

    Args:
        command: a program and its arguments.
        count: processes.

    Returns:
        0, or the exit status of the first that failed.
    """
    checks.whole("count", count)
    if not (isinstance(command, list | tuple) and command):
        raise ValueError(f"command: expected a program and its arguments, as texts, but found {command!r}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    group = os.environ | {_COORDINATOR: address, _COUNT: str(count)}
    running = [subprocess.Popen(command, env=group | {_RANK: str(k)}) for k in range(count)]
    try:
        while None in (ends := [process.poll() for process in running]) and not any(ends):
            time.sleep(0.1)
        return next((status for status in ends if status), 0)
    except KeyboardInterrupt:  # they have heard it too, save, and end
        return max(process.wait() for process in running)
    finally:
        for process in running:
            process.kill()
            process.wait()

"""Several processes that compute as one, on one machine or on many: JAX's own ``jax.distributed``."""

import os
import socket
import subprocess
import time
from collections.abc import Sequence

import jax

from lqrlab.compute import checks

_COORDINATOR, _COUNT, _RANK = "LQRLAB_COORDINATOR", "LQRLAB_PROCESSES", "LQRLAB_PROCESS"


def grouped() -> bool:
    """Whether this process was started by :func:`start`."""
    return _COORDINATOR in os.environ


def join() -> int:
    """Become one of several processes, if there are any; before JAX computes anything. Returns this one's number.

    They are found by the environment that :func:`start` or a scheduler (Slurm, Open MPI) made. From then on
    ``jax.devices()`` are those of all processes, every process has to call the same functions in the same order,
    and only process 0 should write files.

    Process 0 listens for the others, and who reaches it can join them: it does so on this machine's loopback alone
    for :func:`start`, and on the address of ``JAX_COORDINATOR_ADDRESS`` (host:port of process 0, the same in all
    processes) under a scheduler, never on all of a machine's interfaces; ``JAX_COORDINATOR_BIND_ADDRESS`` names
    another address.

    Raises:
        ValueError: a scheduler's processes without ``JAX_COORDINATOR_ADDRESS``.
    """
    if jax.distributed.is_initialized():
        return jax.process_index()
    if grouped():
        count, rank = int(os.environ[_COUNT]), int(os.environ[_RANK])
        address = os.environ[_COORDINATOR]
        jax.distributed.initialize(address, count, rank, coordinator_bind_address=address)
    elif any(int(os.environ.get(name, 1)) > 1 for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")):
        address = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
        if not address.rpartition(":")[0]:
            raise ValueError(
                "JAX_COORDINATOR_ADDRESS: expected host:port of process 0, where the scheduler's processes find each "
                f"other, but found {address!r}; set it for all of them: without it process 0 would listen on all "
                "interfaces of its machine"
            )
        bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", address)
        jax.distributed.initialize(coordinator_bind_address=bind)
    return jax.process_index()


def start(command: Sequence[str], count: int, **environment: str) -> int:
    """Run a command ``count`` times on this machine, as one group; each calls :func:`join`.

    When one of them fails, the others, which would wait for it for ever, are ended.

    Args:
        command: a program and its arguments.
        count: processes.
        environment: variables on top of this process's.

    Returns:
        0, or the exit status of the first that failed.
    """
    checks.whole("count", count)
    words = isinstance(command, Sequence) and not isinstance(command, str)
    if not (words and command and all(isinstance(word, str | os.PathLike) for word in command)):
        raise ValueError(f"command: expected a program and its arguments, as texts, but found {command!r}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    base = os.environ | environment | {_COORDINATOR: address, _COUNT: str(count)}
    running = [subprocess.Popen(command, env=base | {_RANK: str(k)}) for k in range(count)]
    try:
        while True:
            ends = [process.poll() for process in running]
            if bad := [status for status in ends if status]:
                return bad[0]
            if None not in ends:
                return 0
            time.sleep(0.1)
    except KeyboardInterrupt:  # they have heard it too, save, and end
        return max(process.wait() for process in running)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()

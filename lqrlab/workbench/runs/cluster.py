"""Work on dask.distributed: a cluster of processes on this machine, or one at an address."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lqrlab.compute.files import PLANT_FILES
from lqrlab.workbench.runs.run_folder import RunError

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE = 8.0  # seconds
Engine = Callable[[Callable, Sequence], Iterator]
"""Does a function for each shard, here or elsewhere, and yields what it returns."""


@contextlib.contextmanager
def client(scheduler: str | None, workers: int, *, failures: int = 0) -> Iterator["Client"]:
    """A client of the cluster at an address, as tcp://head:8786, or of a new one with so many processes.

    A task of the new one survives ``failures`` deaths of a worker. A ``ValueError`` says that no scheduler with a
    worker answers there, a ``RunError`` that the processes could not be started.
    """
    if scheduler is not None and not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d+", scheduler):
        wrong = "expected the address that `dask scheduler` prints, as tcp://head:8786"
        raise ValueError(f"--scheduler {scheduler}: {wrong}")
    import dask
    import distributed

    # what dask would log with a traceback is said in words, here or where a shard is missing
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    settings = {"distributed.scheduler.allowed-failures": failures, "distributed.logging.distributed": "critical"}
    settings |= {"distributed.scheduler.worker-saturation": 1.0}  # a worker that dies takes one task along, no queue
    with contextlib.ExitStack() as held:
        try:
            if scheduler is not None:
                connected = held.enter_context(distributed.Client(scheduler, timeout=_PATIENCE))
                connected.wait_for_workers(1, timeout=_PATIENCE)
            else:
                held.enter_context(dask.config.set(settings))
                # a notebook computes in another process: the worker's memory says nothing
                cluster = distributed.LocalCluster(
                    workers, threads_per_worker=1, memory_limit=0, silence_logs=logging.CRITICAL, dashboard_address=None
                )
                connected = held.enter_context(distributed.Client(held.enter_context(cluster)))
        except Exception as error:
            if scheduler is not None:
                advice = f"`dask scheduler` starts one, `dask worker {scheduler}` a worker"
                wrong = f"no dask scheduler answers there, or it has no worker ({error}); {advice}"
                raise ValueError(f"--scheduler {scheduler}: {wrong}") from None
            wrong = f"dask could not start so many processes here ({type(error).__name__}: {error})"
            advice = "ask for fewer, or start them yourself and give --scheduler"
            raise RunError(f"--workers {workers}: {wrong}; {advice}") from error
        yield connected


@contextlib.contextmanager
def engine(*, workers: int | None = None, scheduler: str | None = None) -> Iterator[Engine]:
    """Engine for ``lqrlab.dataset.generate``: shards are made by processes of this machine, or a scheduler's.

    These must see the data set's folder under the same path. A shard whose worker died is tried three times in all.
    """
    from distributed import KilledWorker

    with client(scheduler, workers or os.cpu_count() or 1, failures=2) as connected:

        def run(function: Callable, shards: Sequence) -> Iterator:
            plants = os.environ.get(PLANT_FILES, "")
            futures = connected.map(_prepared, shards, function=function, plants=plants, pure=False)
            for shard, future in zip(shards, futures):
                problem = future.exception()
                if problem is not None and not isinstance(problem, ValueError):
                    advice = "its workers died three times over; out of memory? Give fewer --workers"
                    why = advice if isinstance(problem, KilledWorker) else problem
                    raise RunError(f"{shard.name}: {why}; the same command resumes from here") from problem
                yield future.result()

        yield run


def _prepared(shard: object, function: Callable, plants: str) -> object:
    """On a worker: JAX set up as it is here, and the same files of plants."""
    from lqrlab import compute

    compute.setup()
    os.environ[PLANT_FILES] = plants
    return function(shard)

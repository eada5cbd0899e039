"""Work on dask.distributed: a cluster of processes on this machine, or one at an address."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lqrlab.workbench.pipeline import RunError


@contextlib.contextmanager
def client(scheduler: str | None, workers: int, *, failures: int = 0) -> Iterator[Any]:
    """A client of the cluster at an address, or of one of our own with so many processes.

    Args:
        scheduler: address, as tcp://head:8786; None for one of our own.
        workers: processes of our own.
        failures: how many deaths of a worker a task of our own cluster survives.

    Raises:
        ValueError: nothing answers at the address.
    """
    import logging

    import dask
    import distributed

    if scheduler:
        try:
            with distributed.Client(scheduler, timeout=10) as found:
                yield found
        except OSError as error:
            raise ValueError(f"--scheduler {scheduler}: does not answer ({error})") from None
        return
    # a notebook computes in a process of its own, so that the worker's memory says nothing
    settings = {
        "distributed.scheduler.allowed-failures": failures,
        "distributed.logging.distributed": "critical",
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
            dashboard_address="127.0.0.1:8787" if _free(8787) else "127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def _free(port: int) -> bool:
    import socket

    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


@contextlib.contextmanager
def engine(*, workers: int | None = None, scheduler: str | None = None) -> Iterator[Callable]:
    """What ``lqrlab.dataset.generate`` takes as its engine: shards on the workers of a cluster.

    A shard whose worker died is tried again, at most three times in all; an error ends all.

    Args:
        workers: processes on this machine; as many as there are cores by default.
        scheduler: address of a dask scheduler; its workers must see the data set's folder under the same path.
    """
    from distributed import KilledWorker

    with client(scheduler, workers or os.cpu_count() or 1, failures=2) as found:

        def run(function: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Any]:
            futures = found.map(_prepared, shards, function=function, pure=False)
            try:
                for shard, future in zip(shards, futures):
                    try:
                        yield future.result()
                    except KilledWorker:
                        raise RunError(
                            f"{shard.name}: the workers that made it died three times over; out of memory? fewer "
                            "--workers need less, and the same command goes on from here"
                        ) from None
            finally:
                found.cancel(futures)

        yield run


def _prepared(shard: Any, function: Callable[[Any], Any]) -> Any:
    """On a worker: JAX set up as it is here."""
    from lqrlab import compute

    compute.setup()
    return function(shard)

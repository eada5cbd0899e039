"""Work on dask.distributed: a cluster of processes on this machine, or one at an address."""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lqrlab import __version__
from lqrlab.workbench.runs.pipeline import RunError

_PATIENCE = 8  # seconds


@contextlib.contextmanager
def client(scheduler: str | None, workers: int, *, failures: int = 0) -> Iterator[Any]:
    """A client of the cluster at an address, or of one of our own with so many processes.

    Args:
        scheduler: address, as tcp://head:8786; None for one of our own.
        workers: processes of our own.
        failures: how many deaths of a worker a task of our own cluster survives.

    Raises:
        ValueError: it is no address, or no scheduler answers there.
    """
    import logging

    import dask
    import distributed

    if scheduler is not None:
        with _found(scheduler) as found:
            yield found
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


def _found(address: str) -> Any:
    """A client of the scheduler at an address, or an error in words within seconds."""
    import logging

    import dask
    import distributed

    if not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d+", address):
        raise ValueError(
            f"--scheduler {address}: expected the address that `dask scheduler` prints, as tcp://head:8786"
        )
    why: BaseException = TimeoutError(f"connected, but heard nothing for {_PATIENCE} s: another service?")
    clients: list[Any] = []

    def connect() -> None:
        nonlocal why
        try:
            with dask.config.set({"distributed.comm.timeouts.connect": _PATIENCE}):
                clients.append(distributed.Client(address, timeout=_PATIENCE))
        except Exception as error:
            why = error

    # what dask would log with a traceback is said in words, here or where a shard is missing
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    # who accepts a connection and says nothing would keep dask waiting for good
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(2 * _PATIENCE)
    if not clients:
        raise ValueError(
            f"--scheduler {address}: no dask scheduler answers there ({why}); `dask scheduler` starts one"
        ) from None
    return clients[0]


def _free(port: int) -> bool:
    import socket

    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


@contextlib.contextmanager
def engine(
    *, workers: int | None = None, scheduler: str | None = None, say: Callable[[str], None] = print
) -> Iterator[Callable]:
    """What ``lqrlab.dataset.generate`` takes as its engine: shards on the workers of a cluster.

    A shard whose worker died is tried again, at most three times in all; an error ends all. Where no worker is
    left it waits for one and says so: those of a queue come when they come.

    Args:
        workers: processes on this machine; as many as there are cores by default.
        scheduler: address of a dask scheduler; its workers must see the data set's folder under the same path
            and have this package.
        say: told, every few seconds, that nobody works.

    Raises:
        ValueError: there is no scheduler at the address.
        RunError: a shard could not be made: its workers died, a worker lacks the package or the folder, or the
            scheduler is gone.
    """
    from distributed import wait

    with client(scheduler, workers or os.cpu_count() or 1, failures=2) as found:

        def result(shard: Any, future: Any) -> Any:
            while not future.done():
                with contextlib.suppress(TimeoutError):
                    wait(future, timeout=_PATIENCE)
                if not future.done() and not found.nthreads():
                    say(f"no worker; `dask worker {found.scheduler.address}` starts one")
            return future.result()

        def run(function: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Any]:
            futures = found.map(_prepared, shards, function=function, pure=False)
            try:
                for shard, future in zip(shards, futures):
                    try:
                        made = result(shard, future)
                    except ValueError:
                        raise
                    except Exception as error:
                        raise RunError(_said(shard, error)) from error
                    yield made
            finally:
                with contextlib.suppress(OSError):  # where the scheduler is gone
                    found.cancel(futures)

        yield run


def _said(shard: Any, error: BaseException) -> str:
    """Why a shard was not made, and what to do."""
    from distributed import CancelledError, KilledWorker
    from distributed.comm import CommClosedError

    if isinstance(error, KilledWorker):
        return (
            f"{shard.name}: the workers that made it died three times over; out of memory? fewer --workers need "
            "less, and the same command goes on from here"
        )
    if isinstance(error, CancelledError | CommClosedError):
        return f"{shard.name}: the scheduler is gone; start it again, and the same command goes on from here"
    if isinstance(error, OSError):
        return f"{error}, said the worker that made {shard.name}; all workers must see the folder under this path"
    if isinstance(error, ImportError):
        return (
            f"{shard.name}: its worker has not what is needed ({error}); install lqrlab {__version__} there"
        )
    return f"{shard.name}: {type(error).__name__}: {error}"


def _prepared(shard: Any, function: Callable[[Any], Any]) -> Any:
    """On a worker: JAX set up as it is here."""
    from lqrlab import compute

    compute.setup()
    return function(shard)

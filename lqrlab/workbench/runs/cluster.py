"""Work on dask.distributed: a cluster of processes on this machine, or one at an address."""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lqrlab import __version__
from lqrlab.compute.files import PLANT_FILES
from lqrlab.workbench.runs.pipeline import RunError

if TYPE_CHECKING:
    from distributed import Client, Future

_PATIENCE = 8.0  # seconds
Engine = Callable[[Callable, Sequence], Iterator]
"""Does a function for each shard, here or elsewhere, and yields what it returns."""


@contextlib.contextmanager
def client(scheduler: str | None, workers: int, *, failures: int = 0) -> Iterator["Client"]:
    """A client of the cluster at an address, as tcp://head:8786, or of a new one with so many processes.

    A task of the new one survives ``failures`` deaths of a worker.

    Raises:
        ValueError: it is no address, or no scheduler answers there.
        RunError: the processes could not be started.
    """
    import dask
    import distributed

    settings = {"distributed.scheduler.allowed-failures": failures, "distributed.logging.distributed": "critical"}
    settings |= {"distributed.scheduler.worker-saturation": 1.0}  # a worker that dies takes one task along, no queue
    with contextlib.ExitStack() as held:
        if scheduler is not None:
            yield held.enter_context(_connected(scheduler))
            return
        held.enter_context(dask.config.set(settings))
        try:
            # a notebook computes in another process: the worker's memory says nothing
            cluster = distributed.LocalCluster(
                workers, threads_per_worker=1, memory_limit=0, silence_logs=logging.CRITICAL, dashboard_address=None
            )
            connected = held.enter_context(distributed.Client(held.enter_context(cluster)))
        except Exception as error:
            raise RunError(
                f"--workers {workers}: dask could not start so many processes here ({type(error).__name__}: {error}); "
                "ask for fewer, or start them yourself and give --scheduler"
            ) from error
        yield connected


def _connected(address: str) -> "Client":
    """A client of the scheduler at an address, or an error in words within seconds."""
    import dask
    import distributed

    if not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d+", address):
        raise ValueError(
            f"--scheduler {address}: expected the address that `dask scheduler` prints, as tcp://head:8786"
        )
    outcome: list[Client | Exception] = []

    def connect() -> None:
        try:
            with dask.config.set({"distributed.comm.timeouts.connect": _PATIENCE}):
                outcome.append(distributed.Client(address, timeout=_PATIENCE))
        except Exception as error:
            outcome.append(error)

    # what dask would log with a traceback is said in words, here or where a shard is missing
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    # who accepts a connection and says nothing would keep dask waiting for good
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(2 * _PATIENCE)
    answer = outcome[0] if outcome else TimeoutError(f"nothing heard for {_PATIENCE} s: another service?")
    if isinstance(answer, Exception):
        raise ValueError(
            f"--scheduler {address}: no dask scheduler answers there ({answer}); `dask scheduler` starts one"
        )
    return answer


@contextlib.contextmanager
def engine(
    *, workers: int | None = None, scheduler: str | None = None, say: Callable[[str], None] = print
) -> Iterator[Engine]:
    """Engine for ``lqrlab.dataset.generate``: shards are made on the workers of a cluster.

    They are processes of this machine, as many as it has cores by default, or those of a dask scheduler, which must
    see the data set's folder under the same path. A shard whose worker died is tried three times in all, without a
    worker it waits for one and says so; a ``RunError`` says why one could not be made.
    """
    from distributed import wait

    with client(scheduler, workers or os.cpu_count() or 1, failures=2) as connected:
        address = connected.scheduler_info()["address"]

        def result(future: "Future") -> object:
            while not future.done():
                with contextlib.suppress(TimeoutError):
                    wait(future, timeout=_PATIENCE)
                if not future.done() and not connected.nthreads():
                    say(f"no worker; `dask worker {address}` starts one")
            return future.result()

        def run(function: Callable, shards: Sequence) -> Iterator:
            plants = os.environ.get(PLANT_FILES, "")
            futures = connected.map(_prepared, shards, function=function, plants=plants, pure=False)
            try:
                for shard, future in zip(shards, futures):
                    try:
                        made = result(future)
                    except ValueError:
                        raise
                    except Exception as error:
                        raise RunError(f"{shard.name}: {_reason(error)}") from error
                    yield made
            finally:
                with contextlib.suppress(OSError):  # where the scheduler is gone
                    connected.cancel(futures)

        yield run


def _reason(error: BaseException) -> str:
    """Reason why a shard was not made, and what to do."""
    from distributed import CancelledError, KilledWorker
    from distributed.comm import CommClosedError

    again = "repeat the command: it resumes from here"
    match error:
        case KilledWorker():
            return f"the workers that made it died three times over; out of memory? With fewer --workers, {again}"
        case CancelledError() | CommClosedError():
            return f"the scheduler is gone; start it again and {again}"
        case ImportError():
            return f"its worker lacks what is needed ({error}); install lqrlab {__version__} there"
        case OSError():
            return f"{error}, said its worker; all workers must see the folder under this path"
    return f"{type(error).__name__}: {error}"


def _prepared(shard: object, function: Callable, plants: str) -> object:
    """On a worker: JAX set up as it is here, and the same files of plants."""
    from lqrlab import compute

    compute.setup()
    os.environ[PLANT_FILES] = plants
    return function(shard)

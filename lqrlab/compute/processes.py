"""Several processes that compute as one: JAX's own ``jax.distributed``, listening on one address alone."""

import os

import jax

_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def join() -> int:
    """Become one of several processes, if there are any; before JAX computes anything. Returns this one's number.

    They are found by the environment that Slurm's ``srun`` or Open MPI's ``mpirun`` made. From then on
    ``jax.devices()`` are those of all processes, every process has to call the same functions in the same order,
    and only process 0 should write files.

    Process 0 listens for the others, and who reaches it can join them: it does so on the address of
    ``JAX_COORDINATOR_ADDRESS`` (host:port of process 0, the same in all processes), never on all of a machine's
    interfaces as JAX would; ``JAX_COORDINATOR_BIND_ADDRESS`` names another address.

    Raises:
        ValueError: a scheduler's processes without ``JAX_COORDINATOR_ADDRESS``.
    """
    if jax.distributed.is_initialized():
        return jax.process_index()
    if any(int(os.environ.get(name, 1)) > 1 for name in _TASKS):
        address = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
        if not address.rpartition(":")[0]:
            raise ValueError(
                "JAX_COORDINATOR_ADDRESS: expected host:port of process 0, where the scheduler's processes find each "
                f"other, but found {address!r}; set it for all of them"
            )
        bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", address)
        jax.distributed.initialize(coordinator_bind_address=bind)
    return jax.process_index()

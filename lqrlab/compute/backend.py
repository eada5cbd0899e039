"""The settings that a run computes under, its processes, and the one place that changes JAX's own."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from lqrlab.compute import checks, debugging
from lqrlab.compute.configuration import Config, OneOf, Seed

T = TypeVar("T")


def setup(*, x64: bool = True, cache: bool = True, cpu_devices: int | None = None) -> None:
    """Set JAX up for lqrlab; call it first. Importing changes nothing.

    >>> compute.setup()
    >>> jnp.ones(2).dtype
    dtype('float64')

    Args:
        x64: allow float64. Riccati design needs it: in float32 a few loops in a thousand come out unstable.
        cache: keep compiled programs on disk (under ``$XDG_CACHE_HOME/lqrlab``). They are executed later, so the
            folder is made readable by its owner alone, and is not used if it belongs to somebody else.
        cpu_devices: as how many devices the processor appears, so that a batch that :meth:`Backend.split` shares out
            over them takes as many cores within one program; as one if left out.

    Raises:
        ValueError: ``cpu_devices`` after JAX has computed.
    """
    for name, given in (("x64", x64), ("cache", cache)):
        checks.flag(name, given)
    if cpu_devices is not None:
        checks.whole("cpu_devices", cpu_devices)
        try:
            jax.config.update("jax_num_cpu_devices", cpu_devices)
        except RuntimeError:
            raise ValueError(
                f"cpu_devices: expected before JAX computes for the first time, but found {len(jax.devices())} devices "
                "in use; restart the kernel and call setup first"
            ) from None
    jax.config.update("jax_enable_x64", x64)
    if cache and not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lqrlab" / "jax"
        with contextlib.suppress(OSError):  # a read-only or foreign home: compile anew each time
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            jax.config.update("jax_compilation_cache_dir", str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@dataclasses.dataclass(frozen=True)
class Backend(Config):
    """Device and precision of a stage: hashable, JSON both ways, recorded with a run.

    >>> compute.Backend.from_json('{"device": "cpu"}').device
    'cpu'

    Attributes:
        device: ``"auto"`` (JAX's default), a platform (``"cpu"``, ``"gpu"``) or one device (``"gpu:1"``).
        mesh: several devices at once, as ``"data=8"``. A batch is shared out over all of them; parameters and the
            optimizer's state are whole on each. Empty: one device, or those of all processes
            (:func:`lqrlab.compute.join`).
        dtype: of parameters.
        compute_dtype: that networks compute in; parameters and their updates stay as they are. As ``dtype`` if left
            out. Not float16: gradients vanish below its range unless each step scales its loss, while bfloat16, of
            the same size, has the range of float32.
        precision: of float32 matrix products on devices that would round them (``"highest"``: not at all).
        jit: False runs everything line by line, to look into it.
        debug: ``"compiles"``: each compilation and its reason are logged; ``"nans"``: stop where one arises.
        seed: of :attr:`key`. Data sets, models and training draw from the seeds of their configs.
    """

    device: str = "auto"
    mesh: str = ""
    dtype: Annotated[str, OneOf("float32", "float64")] = "float32"
    compute_dtype: Annotated[str, OneOf("", "float32", "bfloat16", "float64")] = ""
    precision: Annotated[str, OneOf("default", "high", "highest")] = "high"
    jit: bool = True
    debug: Annotated[str, OneOf("off", "compiles", "nans")] = "off"
    seed: Seed = 0

    def __post_init__(self) -> None:
        half = "bfloat16: below the range of float16 gradients vanish unless each step scales its loss"
        self.require("compute_dtype", self.compute_dtype != "float16", half)
        super().__post_init__()
        object.__setattr__(self, "compute_dtype", self.compute_dtype or self.dtype)
        self.require("device", bool(re.fullmatch(r"\w+(:\d+)?", self.device)), "'auto', 'cpu', 'gpu' or 'gpu:1'")
        self.require("mesh", not (self.mesh and ":" in self.device), f"none with the device {self.device!r}")
        self.require("mesh", not self.mesh or self._wanted > 0, "a number of devices as 'data=8'")

    @property
    def _wanted(self) -> int:
        """Devices that ``mesh`` asks for; 0 if it asks for none."""
        found = re.fullmatch(r"data=([1-9]\d*)", self.mesh.replace(" ", ""))
        return int(found[1]) if found else 0

    @property
    def key(self) -> Array:
        """The random key of ``seed``."""
        return jax.random.key(self.seed)

    def _devices(self) -> list[jax.Device]:
        platform = self.device.partition(":")[0]
        return jax.devices() if platform == "auto" else jax.devices(platform)

    @property
    def jax_device(self) -> jax.Device:
        """The device that arrays are put on; a ``ValueError`` names those there are."""
        index = int(self.device.partition(":")[2] or 0)
        try:
            return [d for d in self._devices() if d.process_index == jax.process_index()][index]
        except (RuntimeError, IndexError):
            present = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
            raise ValueError(f"device: {self.device!r} is not on this machine, which has {present}") from None

    @property
    def jax_mesh(self) -> Mesh | None:
        """The devices of ``mesh``, or of all processes; None where there is one device alone."""
        if not self._wanted and jax.process_count() == 1:
            return None
        devices = self._devices()
        count = self._wanted or len(devices)
        if count > len(devices):
            raise ValueError(
                f"mesh: {self.mesh!r} asks for {count} devices, but there are {len(devices)}; on a CPU, "
                f"compute.setup(cpu_devices={count}), called before JAX computes, makes as many"
            )
        return Mesh(np.array(devices[:count]), ("data",))

    @property
    def place(self) -> jax.Device | NamedSharding:
        """Placement of arrays that every device needs: the device, or whole on each device of the mesh."""
        mesh = self.jax_mesh
        return self.jax_device if mesh is None else NamedSharding(mesh, PartitionSpec())

    def put(self, tree: T) -> T:
        """The arrays of a pytree in :attr:`place`."""
        return jax.device_put(tree, self.place)

    def share(self, tree: T) -> T:
        """The arrays of a pytree shared out over the mesh by their first axis; whole where it does not divide."""
        mesh = self.jax_mesh
        if mesh is None:
            return self.put(tree)
        cut = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        even = jax.tree.map(lambda a: np.ndim(a) > 0 and np.shape(a)[0] % mesh.size == 0, tree)
        return jax.device_put(tree, jax.tree.map(lambda fits: cut if fits else self.place, even))

    def split(self, fn: Callable[..., PyTree[Array]]) -> Callable[..., PyTree[Array]]:
        """``fn`` of batches such that each device of the mesh works on its share, also inside ``jit`` and ``grad``.

        XLA runs a program of many small steps on one core of a CPU. With one device for each core
        (:func:`setup`) all of them work, and none waits for another's slowest problem.

        >>> design = jax.jit(compute.Backend(mesh="data=1").split(lambda A: control.dlqr(A, A, A, A).K))
        >>> design(jnp.ones((6, 1, 1))).shape
        (6, 1, 1)

        Args:
            fn: of arrays and pytrees of arrays whose first axes have one length, a multiple of the devices'.
        """
        mesh = self.jax_mesh
        if mesh is None:
            return fn
        spec = PartitionSpec(mesh.axis_names)
        return jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let device, precision, jit and debug hold within a block, for any stage: ``with backend.active(): ...``.

        Of the others JAX has no such settings: arrays go to the mesh by :meth:`put` and :meth:`share`, and what takes
        a backend, such as :func:`lqrlab.learning.fit`, looks at the types and the seed.

        Raises:
            ValueError: float64 that JAX is not allowed to compute in.
        """
        for name in ("dtype", "compute_dtype"):
            allowed = jax.config.read("jax_enable_x64") or getattr(self, name) != "float64"
            self.require(name, allowed, "float32, or lqrlab.compute.setup() before, which allows float64")
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.default_matmul_precision(self.precision))
            if self.device != "auto":
                stack.enter_context(jax.default_device(self.jax_device))
            if not self.jit:
                stack.enter_context(jax.disable_jit())
            if self.debug != "off":
                stack.enter_context(debugging.compiles() if self.debug == "compiles" else jax.debug_nans(True))
            yield


_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def join() -> int:
    """Become one of several processes, if there are any; before JAX computes anything. Returns this one's number.

    They are found by the environment that Slurm's ``srun`` or Open MPI's ``mpirun`` made. From then on
    ``jax.devices()`` are those of all processes, all call the same functions in order, only process 0 writes files.

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

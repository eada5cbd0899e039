"""Placement of a run's arrays: on one device, or shared out over a mesh."""

import dataclasses
import math
from typing import TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from lqrlab.compute import Backend

T = TypeVar("T")

_WORTH_CUTTING = 1024  # elements


@dataclasses.dataclass(frozen=True)
class Placement:
    """Batches are shared out over a backend's mesh; along ``fsdp`` parameters and the optimizer's state are cut too.

    Attributes:
        backend: a device or a mesh.
    """

    backend: Backend

    @property
    def mesh(self) -> Mesh | None:
        """None on a single device."""
        return self.backend.jax_mesh

    def put_batches(self, tree: T) -> T:
        """Place arrays ``[steps, batch, …]``, the second axis shared out."""
        if self.mesh is None:
            return jax.device_put(tree, self.backend.place)
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec(None, self.mesh.axis_names)))

    def put_state(self, state: T) -> T:
        """Place a train state, large arrays cut along ``fsdp``."""
        return jax.device_put(state, jax.tree.map(lambda a: self._sharding(a.shape), state))

    def whole(self, tree: T) -> T:
        """Arrays as the host's, from wherever their parts are."""
        return jax.device_get(jax.device_put(tree, self.backend.place) if jax.process_count() > 1 else tree)

    def constrain_batch(self, tree: T) -> T:
        """Inside ``jit``: leading axes shared out."""
        if self.mesh is None:
            return tree
        spec = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))
        return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, spec), tree)

    def constrain_state(self, state: T) -> T:
        """Inside ``jit``: each part of a train state where :meth:`put_state` placed it."""
        if self.mesh is None:
            return state
        return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, self._sharding(a.shape)), state)

    def constrain_whole(self, tree: T) -> T:
        """Inside ``jit``: whole on every device."""
        return jax.lax.with_sharding_constraint(tree, self.backend.place) if self.mesh else tree

    def _sharding(self, shape: tuple[int, ...]) -> jax.Device | Sharding:
        """Of an array of the state: cut along its longest axis that ``fsdp`` divides, if it is worth it."""
        count = dict(self.mesh.shape).get("fsdp", 1) if self.mesh else 1
        axes = [(size, -i) for i, size in enumerate(shape) if size % count == 0]
        if self.mesh is None or count == 1 or not axes or math.prod(shape) < _WORTH_CUTTING:
            return self.backend.place
        cut = -max(axes)[1]
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * cut, "fsdp"))

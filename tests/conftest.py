"""Settings of every test: on the CPU, in float64, quickly compiled, and strict about shapes."""

import os

import jaxlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if jaxlib.__version__.startswith("0.10."):  # a flag that a jaxlib does not know ends the process
    # tests compile far longer than they compute: this halves the time of the suite
    quick = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"

import jax
import pytest
from jaxtyping import install_import_hook

# the shapes and types that functions declare are checked where arrays are computed
ROOMS = (
    "compute.linalg",
    "compute.jaxprs",
    "systems",
    "control",
    "simulation",
    "dataset",
    "identification",
    "learning",
    "evaluation",
    "environments",
)
install_import_hook([f"lqrlab.{room}" for room in ROOMS], "typecheck.checked")

from lqrlab import compute  # noqa: E402  (after the hook)

compute.setup()
jax.config.update("jax_numpy_rank_promotion", "raise")  # (64, 1) - (64,) is a bug, not a matrix
jax.config.update(
    "jax_numpy_dtype_promotion", "strict"
)  # float32 meeting float64 is a conversion that was forgotten


@pytest.fixture(autouse=True, scope="module")
def programs_are_given_back():
    """Compiled programs of a whole run are more than a process may map into memory: XLA crashes then."""
    yield
    jax.clear_caches()

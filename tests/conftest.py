"""Settings of every test: on the CPU, in float64, and strict about shapes."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

from lqrlab import compute

compute.setup()
jax.config.update("jax_numpy_rank_promotion", "raise")  # (64, 1) - (64,) is a bug, not a matrix


@pytest.fixture(autouse=True, scope="module")
def programs_are_given_back():
    """Compiled programs of a whole run are more than a process may map into memory: XLA crashes then."""
    yield
    jax.clear_caches()

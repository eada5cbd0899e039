"""Settings of every test: on the CPU, in float64, and strict about shapes."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from lqrlab import compute

compute.setup()
jax.config.update("jax_numpy_rank_promotion", "raise")  # (64, 1) - (64,) is a bug, not a matrix

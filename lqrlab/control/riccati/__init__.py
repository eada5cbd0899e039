"""Algebraic Riccati equations: structure-preserving doubling, the matrix sign function, SciPy at last; derivatives."""

"""Algebraic Riccati equations: doubling, the matrix sign function where it stalls; derivatives."""

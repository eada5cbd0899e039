"""Small dense matrix algebra without LAPACK: one problem at a time (:mod:`dense`), or the batch on the last axis."""

from lqrlab.compute.linalg.dense import expand_batch, matvec, quadratic, solve, solve_many, stored, symmetric

__all__ = ["expand_batch", "matvec", "quadratic", "solve", "solve_many", "stored", "symmetric"]
